"""What `pip install` brings: every file of the package, the recipes, the command, and nothing else."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import qsft

REPO = Path(__file__).parents[2]
SOURCES = ("qsft", "recipes", "setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")


def files(folder, prefix):
    """The files below a folder as a wheel names them; links are followed."""
    found = (Path(root, name) for root, _, names in os.walk(folder, followlinks=True) for name in names)
    return {f"{prefix}/{path.relative_to(folder)}" for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the sources, so that nothing of the build is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = REPO / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "-w", "dist"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "absent from the `packages`" not in done.stdout + done.stderr
    (path,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_it_holds_the_complete_package_and_nothing_else(wheel):
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == files(REPO / "qsft", "qsft") | files(REPO / "recipes", "qsft/recipe/files")
    assert "qsft/py.typed" in inside
    assert "qsft/static/shell.css" in inside


def test_it_holds_the_recipes(wheel):
    recipes = files(REPO / "recipes", "qsft/recipe/files")
    assert {"qsft/recipe/files/demo.yaml", "qsft/recipe/files/accelerate/zero3.yaml"} <= recipes
    assert recipes <= set(wheel.namelist())
    assert wheel.read("qsft/recipe/files/demo.yaml") == (REPO / "recipes" / "demo.yaml").read_bytes()


def test_its_description_names_the_command_the_license_and_the_version(wheel):
    info = f"qsft-{qsft.__version__}.dist-info"
    assert "qsft = qsft.cli:command" in wheel.read(f"{info}/entry_points.txt").decode()
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    description = wheel.read(f"{info}/METADATA").decode()
    assert f"\nVersion: {qsft.__version__}\n" in description
    assert "\nLicense-Expression: Apache-2.0\n" in description
    assert "\n# qsft\n" in description
