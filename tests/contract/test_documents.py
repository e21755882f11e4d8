"""What README and guide name exists: files, links, recipes, settings, messages. `make docs-check` runs these."""

import ast
import json
import re
from pathlib import Path

import api_reference
import cli_reference
import pytest
import readme
import run_notebooks

import qsft
from qsft.evals.protocol import PROTOCOLS
from qsft.evals.report import COLUMNS
from qsft.recipe.recipe_file import packaged_recipes
from qsft.train.metrics import MEANS, QUARTILES, TEACHER_SHARES

pytestmark = pytest.mark.docs

REPO = Path(__file__).parents[2]
NAMES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(REPO / name for name in NAMES), *sorted((REPO / "docs").glob("*.md"))]


def text_of(name):
    return (REPO / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for link in readme.links(page):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in readme.anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_and_recipes_that_are_named_exist(page):
    text = page.read_text(encoding="utf-8")
    recipes = set(re.findall(r"\b(?:numina|openr1|m23k)_[a-z0-9_]+", text))
    assert recipes <= {file.stem for file in packaged_recipes()}
    for file in re.findall(r"`((?:qsft|recipes|tests|notebooks|examples|tools)/[\w./]*)`", text):
        assert (REPO / file).exists(), file


def test_the_command_line_page_is_current():
    assert cli_reference.page() == cli_reference.PAGE.read_text(encoding="utf-8"), "run `make docs`"


def test_the_api_page_is_current():
    assert api_reference.page() == api_reference.PAGE.read_text(encoding="utf-8"), "run `make docs`"


def test_the_api_page_documents_every_public_name():
    documented = [name for names in api_reference.SECTIONS.values() for name in names]
    assert sorted(documented) == sorted(qsft._MODULES)


def test_every_metric_is_explained():
    for name in (*MEANS, *QUARTILES, *TEACHER_SHARES, "fallback_tokens", "mean_token_accuracy"):
        assert f"`{name}`" in text_of("metrics.md"), name


def test_every_protocol_and_column_of_a_report_is_explained():
    text = text_of("evaluation.md")
    assert [name for name in (*PROTOCOLS, *COLUMNS[1:]) if f"`{name}`" not in text] == []


def package_texts():
    """Every string of the package, with what an f-string inserts left out."""
    for file in (REPO / "qsft").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_the_messages_of_the_troubleshooting_page_are_the_packages_own():
    quoted = re.findall(r'^\| "([^"]+)" \|', text_of("troubleshooting.md"), re.MULTILINE)
    assert len(quoted) >= 25
    everything = "\n".join(package_texts())
    assert [message for message in quoted if message not in everything] == []


@pytest.mark.parametrize("file", run_notebooks.NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_have_outputs_and_the_address_of_the_repository(file):
    text = file.read_text(encoding="utf-8")
    assert run_notebooks.set_repository(text) == text, "run `make notebook ARGS=--write`"
    repository = run_notebooks.repository_url().removeprefix("https://")
    assert f"colab.research.google.com/{repository.replace('.com', '')}/blob/main/notebooks/{file.name}" in text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "not run from top to bottom"
    assert str(REPO) not in text
