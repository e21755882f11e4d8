"""constraints.txt is a lock: it names all that is installed, in versions that every Python promised can install.

Where it did not, pip's resolver went backwards through years of releases of everything that depends on the gap.
"""

import configparser
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.docs  # about files of the repository: `make docs-check`, which CI runs
REPO = Path(__file__).parents[2]
OLDEST = "3.11.0"  # of python_requires: Debian's own python3 is 3.11.2
PYTHONS = ("3.11", "3.12", "3.13")


def pins(file):
    lines = [line for line in (REPO / file).read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in lines)
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(one.name): one for one in requirements}


@pytest.fixture(scope="module")
def setup():
    parser = configparser.ConfigParser()
    parser.read(REPO / "setup.cfg")
    return parser


def required(setup, extra):
    """The requirements of the package with an extra, its own extras resolved."""
    for line in setup["options.extras_require"][extra].split("\n"):
        if line.startswith("qsft["):
            for other in Requirement(line).extras:
                yield from required(setup, other)
        elif line:
            yield Requirement(line)


def needed(requirements, python):
    """The names of all that the requirements bring, as far as it is installed here, on a version of Python."""
    seen = set()
    waiting = list(requirements)
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        for extra in {"", *one.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            waiting += [more for more in children(name) if applies(more, extra, python)]
    return {name for name, _ in seen}


def children(name):
    try:
        return [Requirement(line) for line in distribution(name).requires or ()]
    except PackageNotFoundError:
        return []


def applies(requirement, extra, python):
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": extra}
    return requirement.marker is None or requirement.marker.evaluate(environment)


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_of_every_extra_but_vllm_is_pinned(setup, python):
    base = [Requirement(line) for line in setup["options"]["install_requires"].split("\n") if line]
    extras = [name for name in setup["options.extras_require"] if name != "vllm"]
    found = needed([*base, *(one for extra in extras for one in required(setup, extra))], python)
    # torch for a GPU brings its own libraries, each in the one version it names.
    found = {name for name in found if not name.startswith(("nvidia-", "cuda-"))} - {"triton"}
    assert len(found) > 100
    assert found - set(pins("constraints.txt")) == set()


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-oldest.txt"])
def test_pins_are_in_the_ranges_that_setup_cfg_promises(setup, file):
    base = [Requirement(line) for line in setup["options"]["install_requires"].split("\n") if line]
    pinned = pins(file)
    for one in base:
        (pin,) = pinned[canonicalize_name(one.name)].specifier
        assert one.specifier.contains(pin.version), f"{one} against {pin} of {file}"


def test_no_pin_needs_a_later_python_than_the_package():
    pinned = set(pins("constraints.txt"))
    found = {canonicalize_name(one.name): one.metadata["Requires-Python"] for one in distributions()}
    assert len(pinned & set(found)) > 50
    assert f"python_requires = >={OLDEST.removesuffix('.0')}" in (REPO / "setup.cfg").read_text()
    too_new = {name: found[name] for name in pinned & set(found) if OLDEST not in SpecifierSet(found[name] or "")}
    assert not too_new
