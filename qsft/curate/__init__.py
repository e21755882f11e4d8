"""The data-level methods: a data set in, a data set out, by a model's own samples, scores or tokens."""
