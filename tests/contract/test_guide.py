"""The guide is true: every snippet runs, every command runs or is parsed, every name it must explain is there."""

import json
import re
import shlex
from pathlib import Path

import jaxtyping
import pytest
import readme

import qsft
from qsft.cli import build_parser
from qsft.recipe.recipe_file import packaged_recipes, read_recipe
from qsft.train.metrics import MEANS, QUARTILES, TEACHER_SHARES

REPO = Path(__file__).parents[2]
PAGES = sorted((REPO / "docs").glob("*.md"))
RECIPES = {file.stem for file in packaged_recipes()}
FIRST = ("accelerate", "make", "qsft")

# What makes a snippet small and local, as in test_readme.py; every text must occur in its page.
SMALL = "use_cpu=True, bf16=False, max_steps=2, max_length=64, report_to=[]"
LOCAL = {
    '"Qwen/Qwen3-0.6B"': '"{files}/student"',
    '"Qwen/Qwen3-4B-Instruct-2507"': '"{files}/teacher"',
}
REPLACED = {
    "from_trl.md": {**LOCAL, 'output_dir="out"': f'output_dir="out", {SMALL}'},
    "cache.md": LOCAL,
    "evaluation.md": {'"Qwen/Qwen3-0.6B"': '"{files}/student"'},
    "write_a_target.md": {},
}


def code(page):
    return "\n".join(readme.snippets("python", page))


def commands():
    """(page, command) of every block and every command in the prose."""
    for page in PAGES:
        # the format's page puts strings of the format between backticks, not commands
        said = readme.mentioned(page) if page.stem != "cache_format" else []
        for command in [*readme.commands(page), *said]:
            yield pytest.param(page, command, id=f"{page.stem}: {command[:60]}")


def test_every_page_with_a_snippet_is_run():
    assert {page.name for page in PAGES if code(page)} == set(REPLACED)


@pytest.mark.parametrize("name", REPLACED)
def test_snippets_run_in_order(name, tiny_files, tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run them: shapes are not checked
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QSFT_HOME", str(tmp_path / "home"))
    text = code(REPO / "docs" / name)
    for old, new in REPLACED[name].items():
        assert old in text, f"{old} is not in {name}"
        text = text.replace(old, new.format(files=tiny_files))
    exec(compile(text, name, "exec"), {})


@pytest.mark.parametrize(("page", "command"), commands())
def test_commands_are_understood(page, command):
    """The README's are run by test_readme.py; here each is parsed as the command line would, recipes and keys too."""
    words = [word for word in shlex.split(command) if word != "…"]
    assert words[0] in FIRST, command
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:.*##", (REPO / "Makefile").read_text(), re.MULTILINE), command
    elif words[0] == "accelerate":
        files = [word for word in words if word.endswith(".yaml") and "NAME" not in word]
        assert all((REPO / file).is_file() for file in files), command
    else:
        understood(words[1:])


def understood(words):
    words = [{"NAME": "target", "RECIPE": "demo"}.get(word, word) for word in words]
    words = re.sub(r" --accelerate_config (ddp|fsdp2|zero2|zero3)\b", "", " ".join(words)).split(" ")  # the launcher's
    if words[0] == "train" and len(words) > 1:  # all its words are the recipe's
        return read_recipe(*((words[1], words[2:]) if words[1] in RECIPES else (None, words[1:])))
    if len([word for word in words if not word.startswith("--")]) <= 1 + (words[0] in ("cache", "explore")):
        words = [*words, "--help"]  # the name of a command in the prose
        with pytest.raises(SystemExit, match=r"^0$"):
            build_parser().parse_args(words)
        return None
    parsed, rest = build_parser().parse_known_args(words)
    return read_recipe(parsed.recipe, rest) if rest else parsed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_recipes_and_files_that_are_named_exist(page):
    text = page.read_text(encoding="utf-8")
    recipes = set(re.findall(r"\b(?:numina|openr1|m23k)_[a-z0-9_]+", text))
    assert recipes <= RECIPES
    for file in re.findall(r"`((?:qsft|recipes|tests|notebooks)/[\w./]+\.\w+)`", text):
        assert (REPO / file).exists(), file


def test_the_api_page_documents_every_public_name():
    shown = re.findall(r"^::: (\S+)$", (REPO / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted(f"{home}.{name}" for name, home in qsft._HOME.items())


def test_the_log_table_explains_every_metric():
    text = (REPO / "docs" / "from_trl.md").read_text(encoding="utf-8")
    for name in (*MEANS, *QUARTILES, *TEACHER_SHARES, "fallback_tokens", "mean_token_accuracy"):
        assert f"`{name}`" in text, name


@pytest.mark.parametrize("notebook", sorted((REPO / "notebooks").glob("*.ipynb")), ids=lambda file: file.stem)
def test_notebooks_are_stripped(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    ran = [cell for cell in cells if cell["cell_type"] == "code"]
    assert ran
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in ran)
