"""Files in the working directory are not executed by the processes that grade, whatever they are named."""

import pytest
from planted import COMMAND, executed, plant, run_script

SCRIPT = """\
from qsft import grade

assert grade(r"so \\boxed{0.5}", r"\\frac{1}{2}").correct
assert grade("The answer is B.", "B", options={"A": "red", "B": "blue"}).correct
print("graded")
"""


@pytest.fixture
def hostile_directory(tmp_path):
    """A working directory whose files are named like modules that grading imports."""
    return plant(tmp_path, "sympy", "math_verify", "latex2sympy2_extended", "antlr4", "qsft", "json")


def test_a_script_elsewhere_that_calls_grade(hostile_directory, tmp_path):
    done = run_script(tmp_path, hostile_directory, SCRIPT)
    assert executed(tmp_path) == []
    assert (done.returncode, done.stdout) == (0, "graded\n"), done.stderr[-2000:]


def test_the_eval_command(hostile_directory, tmp_path, sum_directory, sum_file):
    settings = ("--prompt", "plain", "--num_samples", "2", "--max_new_tokens", "8", "--limit", "4")
    words = ("eval", sum_directory, "--tasks", sum_file, *settings, "--output_dir", tmp_path / "run")
    done = run_script(tmp_path, hostile_directory, COMMAND, *words)
    assert executed(tmp_path) == []
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| sums | 4 | 2 |" in done.stdout
    assert (tmp_path / "run" / "grades" / "sums.jsonl").is_file()
