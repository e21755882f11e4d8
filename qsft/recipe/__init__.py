"""A recipe is one flat file that is YAML and Python at once; this room reads it, plans it and runs it."""

from qsft.recipe.launch import launch
from qsft.recipe.recipe_file import Recipe, read_recipe

__all__ = ["Recipe", "launch", "read_recipe"]
