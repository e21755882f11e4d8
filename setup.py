"""The packages of qsft; everything else is in setup.cfg.

The recipes are in recipes/ of the repository and are installed as qsft/recipe/files.
"""

from setuptools import find_packages, setup

RECIPES = "qsft.recipe.files"

setup(
    packages=[*find_packages(include=["qsft", "qsft.*"]), RECIPES],
    package_dir={RECIPES: "recipes"},
)
