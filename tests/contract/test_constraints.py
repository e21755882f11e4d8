"""The pinned versions install on every Python that the package promises, not only on the one they were pinned with."""

from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

REPO = Path(__file__).parents[2]
OLDEST = "3.11.0"  # of python_requires: Debian's own python3 is 3.11.2


def test_no_pin_asks_for_a_later_python_than_the_package():
    lines = (REPO / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(Requirement(line).name) for line in lines if line and not line.startswith("#")}
    found = {canonicalize_name(one.name): one.metadata["Requires-Python"] for one in distributions()}
    assert len(pinned & set(found)) > 50
    assert f"python_requires = >={OLDEST.removesuffix('.0')}" in (REPO / "setup.cfg").read_text()
    too_new = {name: found[name] for name in pinned & set(found) if OLDEST not in SpecifierSet(found[name] or "")}
    assert not too_new
