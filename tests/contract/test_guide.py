"""The guide is true: every snippet runs, every command runs or is parsed, every name it must explain is there."""

import json
import re
import runpy
import shlex
from pathlib import Path

import jaxtyping
import pytest
import readme
from commands import LOCAL, README_BLOCKS, README_PROSE, SAMPLES, TINY, run

import qsft
from qsft.cli import build_parser
from qsft.commands import split_recipe
from qsft.evals.protocol import PROTOCOLS
from qsft.evals.report import COLUMNS
from qsft.files import write_lines
from qsft.recipe.recipe_file import packaged_recipes, read_overrides
from qsft.recipe.relaunch import LAUNCHER_OPTIONS, split_words
from qsft.train.metrics import MEANS, QUARTILES, TEACHER_SHARES

REPO = Path(__file__).parents[2]
PAGES = sorted((REPO / "docs").glob("*.md"))
RECIPES = {file.stem for file in packaged_recipes()}

# The guide's commands that the README has not, which test_readme.py runs, in an order in which they can run.
RUN = {
    "qsft train --model_name_or_path Qwen/Qwen3-0.6B --dataset_name my.jsonl --question_column problem "
    "--response_column solution --target dft --output_dir runs/mine": LOCAL,
    "qsft train numina_qwen_math_1p5b": f"{TINY} --save_steps 2",
    "qsft train numina_qwen_math_1p5b --resume_from_checkpoint last": f"{TINY} --save_steps 2",
    "qsft eval RECIPE --limit 100 --num_samples 4": SAMPLES,
    # A random model answers nothing right, so every response is taken; tests/curate verifies for real.
    "qsft curate rft numina_qwen_math_1p5b --output_dir data/numina-rft --num_samples 8": (
        f"{TINY} --num_samples 2 --max_new_tokens 64 --temperature 3 --verifier readme:takes_everything"
    ),
    "qsft train numina_qwen_math_1p5b --target sft --dataset_name data/numina-rft": (
        f"{LOCAL} --output_dir runs/numina-rft"
    ),
    "qsft curate rft --help": "",
    "qsft plan RECIPE": "",
    "qsft sweep numina_qwen_math_1p5b --grid target=base,sft,dft,kd_hybrid,target_sft": "--dry_run",
    "qsft sweep numina_qwen_math_1p5b --grid target=kd_hybrid,target_sft eta=0.2,0.5,1.0 c=0.2,0.5,0.8,1.0": (
        "--dry_run"
    ),
    "qsft sweep openr1_qwen_math_1p5b --grid target=target_sft_constant,target_sft_mixture c=0.2,0.5,1.0": "--dry_run",
    "qsft eval runs/numina_qwen_math_1p5b-target_sft --tasks questions.jsonl --num_samples 4": (
        f"{SAMPLES} --output_dir evals/own"
    ),
    "qsft eval runs/numina_qwen_math_1p5b-target_sft --rescore": "--output_dir evals/own",
}
# … and those that are only parsed, with the reason.
PARSED = {
    "qsft eval runs/numina_qwen_math_1p5b-target_sft --backend vllm "
    "--engine gpu_memory_utilization=0.8 enforce_eager=true": "needs vLLM: tests/vllm samples with it",
    "accelerate launch recipes/NAME.yaml": "NAME is the reader's: the README launches one",
    "qsft compare base RUN RUN": "any runs: the README compares two",
    "qsft demo --methods rft,star,grape,critical": "takes minutes: a slow test of tests/demo runs it",
}

# What makes a snippet small and local, as in test_readme.py; every text must occur in its page.
SMALL = "use_cpu=True, bf16=False, max_steps=2, max_length=64, report_to=[]"
MODELS = {
    '"Qwen/Qwen3-0.6B"': '"{files}/student"',
    '"Qwen/Qwen3-4B-Instruct-2507"': '"{files}/teacher"',
}
REPLACED = {
    "from_trl.md": {**MODELS, 'output_dir="out"': f'output_dir="out", {SMALL}'},
    "cache.md": MODELS,
    "evaluation.md": {'"Qwen/Qwen3-0.6B"': '"{files}/student"'},
    "write_a_target.md": {},
}


def code(page):
    return "\n".join(readme.snippets("python", page))


def commands():
    """Every command of the guide, in the order it stands in; the format's page has strings of the format instead."""
    pages = [page for page in PAGES if page.stem != "cache_format"]
    return dict.fromkeys(command for page in pages for command in (*readme.commands(page), *readme.mentioned(page)))


def console():
    """What stands behind `$`: commands for several GPUs or nodes."""
    blocks = [block for page in PAGES for block in readme.snippets("console", page)]
    return [line.split(" #")[0].removeprefix("$ ").strip() for block in blocks for line in block.splitlines()]


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


def is_name(words):
    """Whether the prose only names a command: `qsft eval`, `qsft cache build`."""
    return len([word for word in words if not word.startswith("--")]) <= 2 + (words[1] in ("cache", "explore"))


def test_every_command_is_run_or_has_a_reason_not_to_be():
    makefile = (REPO / "Makefile").read_text()
    made = [command for command in commands() if command.startswith("make ")]
    assert all(re.search(rf"^{command.split()[1]}:.*##", makefile, re.MULTILINE) for command in made)
    asked = {command for command in commands() if command not in made and not is_name(command.split())}
    assert asked - {*README_BLOCKS, *README_PROSE} == {*RUN, *PARSED}


@pytest.mark.slow
def test_the_commands_run(folder, tiny_files, capfd):
    rows = [{"problem": f"w{i} + w{i + 1} = ?", "solution": f"w{i % 9}"} for i in range(32)]
    write_lines(folder / "my.jsonl", rows)
    (folder / "questions.jsonl").write_text(readme.snippets("json", REPO / "docs" / "evaluation.md")[0])
    for command, extra in RUN.items():
        assert run(command, extra, tiny_files) == 0, f"{command}\n{capfd.readouterr().err[-3000:]}"
    assert (folder / "runs" / "mine" / "model.safetensors").is_file()


# What the page on the paper says of a recipe's cost: gigabytes of cache, steps, gigabytes per GPU and under what.
COSTS = {
    "numina_qwen_math_1p5b": ("7.5", "264", "DDP", "38"),
    "openr1_qwen_math_1p5b": ("7.0", "58", "DDP", "38"),
    "m23k_qwen_1p5b": ("1.9", "91", "DDP", "51"),
    "numina_qwen_math_7b": ("7.5", "264", "FSDP2", "31"),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", COSTS)
def test_the_costs_are_those_of_the_plan(recipe, folder, tiny_files, capsys, monkeypatch):
    cache, steps, strategy, memory = COSTS[recipe]
    monkeypatch.setenv("COLUMNS", "200")
    assert run(f"qsft plan {recipe} --gpus 8 --gpu_memory 80", "", tiny_files) == 0
    plan = capsys.readouterr().out
    assert re.search(rf"teacher cache +{re.escape(cache)} GB", plan)
    assert re.search(rf"optimizer steps +{steps}\b", plan)
    total = re.search(rf"│ {strategy} .*│ +([\d.]+) GB │ yes", plan)[1]
    assert round(float(total)) == int(memory)
    page = (REPO / "docs" / "reproducing.md").read_text(encoding="utf-8")
    assert all(re.search(rf"\b{re.escape(figure)}\b", page) for figure in (cache, steps, f"{memory} GB"))


@pytest.mark.parametrize("command", [one for one in {**commands(), **README_BLOCKS} if one.startswith("qsft ")])
def test_commands_are_understood(command):
    """Also those that a slow test runs: an option that is gone is noticed at once."""
    understood(shlex.split(command)[1:])


@pytest.mark.parametrize("command", console())
def test_commands_for_clusters_name_files_that_exist(command):
    assert all((REPO / word).is_file() for word in command.split() if word.startswith("recipes/"))
    _, module, words = command.partition(" -m qsft ")
    if module:
        understood(words.split())


def understood(words):
    """Parse words as the command line does; the name of a command has a help text."""
    if is_name(["qsft", *words]):
        with pytest.raises(SystemExit, match=r"^0$"):
            build_parser().parse_args([*words, "--help"])
    else:
        args, unknown = build_parser().parse_known_args(words)
        if getattr(args, "takes_recipe", False):
            _, overrides = split_recipe(unknown)
            read_overrides(split_words(overrides, LAUNCHER_OPTIONS)[1])
        else:
            assert not unknown or words[0] == "curate", f"no option of qsft {words[0]}: {unknown}"


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


def test_the_page_of_evaluation_explains_every_protocol_and_column():
    text = (REPO / "docs" / "evaluation.md").read_text(encoding="utf-8")
    assert [name for name in (*PROTOCOLS, *COLUMNS[1:]) if f"`{name}`" not in text] == []


def test_the_picture_of_a_sick_run_can_be_drawn(tmp_path):
    script = runpy.run_path(str(REPO / "tools" / "draw_health.py"))
    history = [{"step": step, **dict.fromkeys(script["PANELS"], 0.5 / step)} for step in (1, 2)]
    assert {*script["PANELS"]} <= {"loss", *MEANS, *TEACHER_SHARES}
    for theme in ("light", "dark"):
        script["draw"]([history] * 3, theme, tmp_path / "health.svg")
        drawn = (tmp_path / "health.svg").read_text()
        assert all(f">{text}<" in drawn for text in (*script["PANELS"], *script["RUNS"]))


@pytest.mark.parametrize("notebook", sorted((REPO / "notebooks").glob("*.ipynb")), ids=lambda file: file.stem)
def test_notebooks_are_stripped_and_import_what_exists(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    ran = [cell for cell in cells if cell["cell_type"] == "code"]
    assert ran
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in ran)
    # `make notebook` runs them, which takes minutes; a name that has moved is noticed here.
    lines = [line.strip() for cell in ran for line in cell["source"] if re.match(r"\s*from qsft\b", line)]
    assert lines
    for line in lines:
        exec(line, {})
