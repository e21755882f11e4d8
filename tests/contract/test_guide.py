"""The snippets of the guide run, and the commands of README and guide are understood; slow: they run."""

import json
import re
import shlex
from pathlib import Path

import jaxtyping
import pytest
import readme
from commands import PARSED_ONLY, RUN, run

from qsft.cli import build_parser
from qsft.commands import split_recipe
from qsft.files import write_lines
from qsft.recipe.recipe_file import read_overrides
from qsft.recipe.relaunch import LAUNCHER_OPTIONS, split_words

REPO = Path(__file__).parents[2]
NOT_COMMANDS = ("cache_format", "cli")  # pages with strings of the format, and with the output of --help
PAGES = [readme.README, *(page for page in sorted((REPO / "docs").glob("*.md")) if page.stem not in NOT_COMMANDS)]

# What makes a page's snippets small and local; every text must occur in its page.
SMALL = 'output_dir="out", use_cpu=True, bf16=False, max_steps=2, max_length=64, report_to=[]'
MODELS = {
    '"Qwen/Qwen3-0.6B"': '"{files}/student"',
    '"Qwen/Qwen3-4B-Instruct-2507"': '"{files}/teacher"',
}
REPLACED = {
    "from_trl.md": {**MODELS, 'output_dir="out"': SMALL},
    "lora_qlora_liger.md": {**MODELS, 'output_dir="out"': SMALL},
    "cache.md": MODELS,
    "evaluation.md": {'"Qwen/Qwen3-0.6B"': '"{files}/student"'},
}
SIGNATURES = "api"  # the generated page: its Python blocks are signatures
WITH_SNIPPETS = [page.name for page in PAGES[1:] if page.stem != SIGNATURES and readme.snippets("python", page)]


@pytest.mark.parametrize("name", WITH_SNIPPETS)
def test_snippets_run_in_order(name, tiny_files, tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run them: shapes are not checked
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path / "home"))
    text = "\n".join(readme.snippets("python", REPO / "docs" / name))
    for old, new in REPLACED.get(name, {}).items():
        assert old in text, f"{old} is not in {name}"
        text = text.replace(old, new.format(files=tiny_files))
    exec(compile(text, name, "exec"), {})


def documented_commands():
    """Every command of README and guide, in code blocks and in the prose, once each."""
    found = [command for page in PAGES for command in (*readme.commands(page), *readme.mentioned(page))]
    return list(dict.fromkeys(found))


def cluster_commands():
    """Commands for several GPUs or nodes: what follows `$` in console blocks."""
    blocks = [block for page in PAGES for block in readme.snippets("console", page)]
    lines = [line.split(" #")[0].removeprefix("$ ").strip() for block in blocks for line in block.splitlines()]
    return list(dict.fromkeys(lines))


def is_name(words):
    """Whether the prose only names a command: `qsft eval`, `qsft cache build`."""
    subcommands = 1 if words[1] in ("cache", "explore") else 0
    return len([word for word in words if not word.startswith("--")]) <= 2 + subcommands


def check_parses(words):
    """Parse words as the command line does; a command that is only named must have a help text."""
    if is_name(["qsft", *words]):
        with pytest.raises(SystemExit, match=r"^0$"):
            build_parser().parse_args([*words, "--help"])
        return
    args, unknown = build_parser().parse_known_args(words)
    if getattr(args, "takes_recipe", False):
        _, overrides = split_recipe(unknown)
        read_overrides(split_words(overrides, LAUNCHER_OPTIONS)[1])
    else:
        assert not unknown or words[0] == "curate", f"not an option of qsft {words[0]}: {unknown}"


@pytest.mark.parametrize("command", [command for command in documented_commands() if command.startswith("qsft ")])
def test_commands_are_understood(command):
    check_parses(shlex.split(command)[1:])


@pytest.mark.parametrize("command", cluster_commands())
def test_commands_for_clusters_name_files_that_exist(command):
    assert all((REPO / word).is_file() for word in command.split() if word.startswith("recipes/"))
    _, module, words = command.partition(" -m qsft ")
    if module:
        check_parses(words.split())


@pytest.mark.slow
def test_the_commands_run(folder, tiny_files, capfd):
    rows = [{"problem": f"w{i} + w{i + 1} = ?", "solution": f"w{i % 9}"} for i in range(32)]
    write_lines(folder / "my.jsonl", rows)
    (folder / "questions.jsonl").write_text(readme.snippets("json", REPO / "docs" / "evaluation.md")[0])
    for command, extra in RUN.items():
        assert run(command, extra, tiny_files) == 0, f"{command}\n{capfd.readouterr().err[-3000:]}"
    assert (folder / "runs" / "mine" / "model.safetensors").is_file()


@pytest.mark.docs
def test_every_command_runs_in_a_test_or_has_a_reason_not_to():
    blocks = {command for page in PAGES for command in readme.commands(page)}
    commands = {command for command in blocks if not command.startswith("make ")}
    assert commands - {*RUN, *PARSED_ONLY} == set()


@pytest.mark.docs
def test_make_targets_exist():
    makefile = (REPO / "Makefile").read_text()
    for command in documented_commands():
        if command.startswith("make "):
            assert re.search(rf"^{command.split()[1]}:.*##", makefile, re.MULTILINE), command


@pytest.mark.parametrize("notebook", sorted((REPO / "notebooks").glob("*.ipynb")), ids=lambda file: file.stem)
def test_notebooks_import_what_exists(notebook):
    """`make notebook` runs them, which takes minutes; a name that has moved is noticed here."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code").splitlines()
    imports = [line.strip() for line in code if re.match(r"\s*from qsft\b", line)]
    assert imports
    for line in imports:
        exec(line, {})
