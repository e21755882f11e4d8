"""A recipe is one flat file that is YAML and Python at once; this room reads it, plans it and runs it."""

from qsft.recipe.read import Recipe, read_recipe
from qsft.recipe.run import launch

__all__ = ["Recipe", "launch", "read_recipe"]
