"""The README's scripts train, and its generated table is current."""

import json

import pytest
import readme

# What makes a snippet small and local: text → text. Each text must occur in the snippet.
SMALL = 'output_dir="out", use_cpu=True, bf16=False, max_steps=2, max_length=64, logging_steps=1'
REPLACED = {
    '"Qwen/Qwen2.5-Math-1.5B"': '"{files}/student"',
    '"trl-lib/Capybara"': '"{files}/chats"',
    'output_dir="out"': SMALL,
}
TEACHER = {'"Qwen/Qwen2.5-Math-1.5B-Instruct"': '"{files}/teacher"'}


@pytest.fixture(scope="module")
def chats(tiny_files):
    """A conversational data set that `load_dataset` reads by its path."""
    path = tiny_files / "chats" / "train.jsonl"
    path.parent.mkdir()
    turns = [[("user", f"w{i} + w{i + 1} = ?"), ("assistant", f"w{i % 9} w{i % 7}")] for i in range(32)]
    rows = [{"messages": [{"role": role, "content": text} for role, text in turn]} for turn in turns]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.parent


def execute(snippet, replaced, files, names):
    """Run a snippet with some of its text replaced; the names it defines are added to `names`."""
    for old, new in replaced.items():
        assert old in snippet, f"{old} is not in the snippet"
        snippet = snippet.replace(old, new.format(files=files))
    exec(compile(snippet, "README.md", "exec"), names)


def test_the_scripts_train(folder, tiny_files, chats):
    with_teacher, without_teacher = readme.snippets("python")
    names = {}
    execute(with_teacher, {**REPLACED, **TEACHER}, tiny_files, names)
    assert names["trainer"].state.global_step == 2
    assert names["trainer"].cache is not None
    assert (folder / "out" / "checkpoint-2").is_dir()

    # In one namespace: the second snippet uses the first one's imports.
    execute(without_teacher, {**REPLACED, 'output_dir="out"': SMALL.replace('"out"', '"dft"')}, tiny_files, names)
    names["trainer"].train()
    assert names["trainer"].target_name == "dft"
    assert names["trainer"].cache is None


@pytest.mark.parametrize("page", readme.GENERATED, ids=lambda page: page.stem)
def test_generated_parts_are_current(page):
    assert readme.refreshed(page) == page.read_text(encoding="utf-8"), "run `make docs`"
