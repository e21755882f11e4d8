"""The README is true: its snippets and commands run, the files it names are there, what is generated is fresh."""

import configparser
import json
import re
import shlex
from pathlib import Path

import pytest
import readme
from commands import README_BLOCKS, README_PROSE, run

from qsft.recipe.recipe_file import packaged_recipes, read_recipe
from qsft.targets.registry import make_target

REPO = Path(__file__).parents[2]

LEFT_BEHIND = """
    caches/numina_qwen_math_1p5b/manifest.json runs/numina_qwen_math_1p5b-target_sft/_eval/report.html
    runs/numina_qwen_math_1p5b-sft/_eval/report.html comparison/comparison.html
    targets.html tokens.html alignment.html run.html
"""

# What makes a snippet small and local: text → text. Every one must be found in the snippet it is for.
SMALL = "use_cpu=True, bf16=False, max_steps=2, max_length=64, logging_steps=1"
MODELS = {
    '"Qwen/Qwen2.5-Math-1.5B"': '"{files}/student"',
    '"trl-lib/Capybara"': '"{files}/chats"',
    'output_dir="out"': f'output_dir="out", {SMALL}',
}
BEFORE = MODELS
AFTER = {**MODELS, '"Qwen/Qwen2.5-Math-1.5B-Instruct"': '"{files}/teacher"'}
OWN_TARGET = {
    '"Qwen/Qwen3-0.6B"': '"{files}/student"',
    '"Qwen/Qwen3-4B-Instruct-2507"': '"{files}/teacher"',
    'output_dir="out"': f'output_dir="out", {SMALL}',
}
OWN_LOSS = {
    '"Qwen/Qwen3-0.6B"': '"{files}/student"',
    "train_dataset=dataset": f'train_dataset=dataset, args=TargetSFTConfig(output_dir="loss", {SMALL})',
}


@pytest.fixture(scope="module")
def chats(tiny_files):
    """A conversational data set that `load_dataset` reads by its path."""
    path = tiny_files / "chats" / "train.jsonl"
    path.parent.mkdir()
    turns = [[("user", f"w{i} + w{i + 1} = ?"), ("assistant", f"w{i % 9} w{i % 7}")] for i in range(32)]
    rows = [{"messages": [{"role": role, "content": text} for role, text in turn]} for turn in turns]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.parent


def assert_all_known(commands, table):
    """Each command stands in the table or is a target of the Makefile, and the table holds no other."""
    makefile = (REPO / "Makefile").read_text()
    made = {command for command in commands if re.fullmatch(r'make [a-z-]+( ARGS=".+")?', command)}
    for command in made:
        assert re.search(rf"^{command.split()[1]}:.*##", makefile, re.MULTILINE), f"`{command}`: no such target"
    studies = {command for command in commands if command.startswith("python -m ")}
    assert all((REPO / command.split()[2].replace(".", "/") / "__main__.py").is_file() for command in studies)
    assert set(commands) - made - studies == set(table), "README.md and this test's table of commands differ"


@pytest.mark.slow
def test_the_commands_run_in_the_order_they_stand_in(folder, tiny_files, capfd):
    assert_all_known(readme.commands(), README_BLOCKS)
    for command in readme.commands():
        if not command.startswith("make "):
            code = run(command, README_BLOCKS[command], tiny_files)
            assert code == 0, f"{command}\n{capfd.readouterr().err[-3000:]}"
    for path in LEFT_BEHIND.split():
        assert (folder / path).is_file(), path


def test_the_commands_that_the_prose_mentions_are_known():
    assert_all_known(readme.mentioned(), README_PROSE)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.slow if "--quick" in words else ())
        for command, words in README_PROSE.items()
    ],
)
def test_the_commands_that_the_prose_mentions_run(command, folder, tiny_files):
    assert run(command, README_PROSE[command], tiny_files) == 0


def test_ci_runs_the_two_commands():
    (parts,) = re.findall(r"^for name in (.+); do$", (REPO / ".ci" / "run").read_text(), re.MULTILINE)
    assert {"test", "test-slow", "test-vllm", "test-oldest", "site", "notebook"} <= set(parts.split())
    assert readme.commands()[:2] == ["make demo", "make test"]


def test_options_in_the_prose_are_keys_of_a_recipe():
    options = [code for code in readme.inline() if code.startswith("--")]
    assert options
    for words in options:
        values = read_recipe("numina_qwen_math_1p5b", shlex.split(words)).values
        make_target(values["target"], **values.get("target_kwargs", {}))


def execute(snippet, replaced, files, names=None):
    """The names that a snippet leaves, run with some of its text replaced."""
    for old, new in replaced.items():
        assert old in snippet, f"{old} is not in the snippet"
        snippet = snippet.replace(old, new.format(files=files))
    names = {} if names is None else names
    exec(compile(snippet, "README.md", "exec"), names)
    return names


@pytest.mark.parametrize("side", ["before", "after"])
def test_both_sides_of_the_diff_train(side, folder, tiny_files, chats):
    (diff,) = readme.snippets("diff")
    before, after = readme.diff_sides(diff)
    script, replaced = (before, BEFORE) if side == "before" else (after, AFTER)
    assert ("qsft" in script) == (side == "after")
    trainer = execute(script, replaced, tiny_files)["trainer"]
    assert trainer.state.global_step == 2
    assert (folder / "out" / "checkpoint-2").is_dir()
    assert hasattr(trainer, "cache") == (side == "after")


def test_the_diff_is_two_names_and_one_line():
    """As the heading says: two names replaced where they stand, one line added."""
    (diff,) = readme.snippets("diff")
    before, after = (side.splitlines() for side in readme.diff_sides(diff))
    renamed = [re.sub("SFTConfig|SFTTrainer", r"Target\g<0>", line).replace("from trl", "from qsft") for line in before]
    added = [line for line in after if line not in renamed]
    assert len(added) == 1
    assert [line for line in after if line not in added] == renamed


def test_own_targets_train(folder, tiny_files, tiny_tokenizer):
    from datasets import Dataset

    own_target, own_loss = readme.snippets("python")
    ids = tiny_tokenizer("w1 + w2 = w3 <|eos|>")["input_ids"]
    names = {"dataset": Dataset.from_list([{"input_ids": ids, "labels": [-100, *ids[1:]]}] * 32)}
    for snippet, replaced in ((own_target, OWN_TARGET), (own_loss, OWN_LOSS)):
        trainer = execute(snippet, replaced, tiny_files, names)["trainer"]
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert len(losses) == 2
        assert losses[0] > 0


@pytest.mark.parametrize("page", readme.GENERATED, ids=lambda page: page.stem)
def test_generated_parts_are_fresh(page):
    assert readme.refreshed(page) == page.read_text(encoding="utf-8"), "run `make docs`"


@pytest.mark.parametrize("link", [link for link in readme.links() if "://" not in link])
def test_links_lead_somewhere(link):
    path, _, anchor = link.partition("#")
    assert not anchor or anchor in readme.anchors()
    assert (REPO / path).exists()


def test_files_that_the_prose_names_are_there():
    named = [code for code in readme.inline() if re.fullmatch(r"[\w./-]+(/|\.(py|md|cfg|yaml|html))", code)]
    assert named
    for name in named:
        assert (REPO / name).exists() or (REPO / "qsft" / name).exists(), name


@pytest.fixture(scope="module")
def notebook():
    return json.loads((REPO / "notebooks" / "quickstart.ipynb").read_text(encoding="utf-8"))


def test_no_file_but_setup_cfg_says_where_the_repository_is(notebook):
    setup = configparser.ConfigParser()
    setup.read(REPO / "setup.cfg")
    address = setup["metadata"].get("url", "github.com/qsft")
    files = ["README.md", "CONTRIBUTING.md", "notebooks", "docs", "qsft", "recipes"]
    texts = [path for name in files for path in ([REPO / name, *(REPO / name).rglob("*")])]
    for path in texts:
        if path.suffix in (".md", ".ipynb", ".py", ".yaml", ".yml"):
            assert address not in path.read_text(encoding="utf-8"), path


def test_recipes_that_are_named_come_with_the_package(notebook):
    packaged = {file.stem for file in packaged_recipes()}
    cells = "".join(line for cell in notebook["cells"] for line in cell["source"])
    text = cells + readme.README.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:recipes/(?=\w+\.yaml)|\b(?=numina_|openr1_|m23k_))([a-z0-9_]+)", text))
    assert named
    assert named <= packaged
