"""Data-level methods: they change the demonstrations instead of the loss. One module per method, registered by name."""
