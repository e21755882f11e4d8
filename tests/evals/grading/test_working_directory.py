"""Files in the working directory are not executed by the processes that grade, whatever they are named.

Real processes with the names that they would import: `python -m` puts the working directory first on the path.
"""

import os
import subprocess
import sys

import pytest

TRAP = "open({file!r}, 'w').close()\nraise SystemExit('a file of the working directory was executed')\n"
SCRIPT = """\
from qsft import grade

assert grade(r"so \\boxed{0.5}", r"\\frac{1}{2}").correct
assert grade("The answer is B.", "B", options={"A": "red", "B": "blue"}).correct
print("graded")
"""
COMMAND = "from qsft.cli import command\ncommand()\n"


@pytest.fixture
def hostile_directory(tmp_path):
    """A working directory whose files are named like modules that grading imports."""
    directory = tmp_path / "work"
    directory.mkdir()
    for name in ("sympy", "math_verify", "latex2sympy2_extended", "antlr4", "qsft", "json"):
        (directory / f"{name}.py").write_text(TRAP.format(file=str(tmp_path / f"{name}.executed")))
    return directory


def run_script(script, directory, *words):
    """A script that lies elsewhere, run in a directory."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    command = [sys.executable, str(script), *map(str, words)]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def executed(tmp_path):
    return sorted(path.stem for path in tmp_path.glob("*.executed"))


def test_a_script_elsewhere_that_calls_grade(hostile_directory, tmp_path):
    script = tmp_path / "script" / "grade_them.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    done = run_script(script, hostile_directory)
    assert executed(tmp_path) == []
    assert (done.returncode, done.stdout) == (0, "graded\n"), done.stderr[-2000:]


def test_the_eval_command(hostile_directory, tmp_path, sum_directory, sum_file):
    script = tmp_path / "bin" / "qsft_command.py"  # as the console script: it lies elsewhere
    script.parent.mkdir()
    script.write_text(COMMAND)
    settings = ("--prompt", "plain", "--num_samples", "2", "--max_new_tokens", "8", "--limit", "4")
    words = ("eval", sum_directory, "--tasks", sum_file, *settings, "--output_dir", tmp_path / "run")
    done = run_script(script, hostile_directory, *words)
    assert executed(tmp_path) == []
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| sums | 4 | 2 |" in done.stdout
    assert (tmp_path / "run" / "grades" / "sums.jsonl").is_file()
