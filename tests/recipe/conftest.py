"""Overrides that point a recipe at the tiny models and data."""

from tiny_recipe import local_words, tiny_run  # noqa: F401
