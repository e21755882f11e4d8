"""Running models: loading them, and what everything that runs a model has to know about it."""
