"""A working directory with files named like modules that qsft imports; each writes a marker when it is executed."""

import os
import subprocess
import sys

TRAP = "open({file!r}, 'w').close()\nraise SystemExit('a file of the working directory was executed')\n"
COMMAND = "from qsft.cli import command\nif __name__ == '__main__':\n    command()\n"


def plant(tmp_path, *names):
    """Return a directory with a file for each module name."""
    directory = tmp_path / "work"
    directory.mkdir()
    for name in names:
        (directory / f"{name}.py").write_text(TRAP.format(file=str(tmp_path / f"{name}.executed")))
    return directory


def executed(tmp_path):
    """Return the names of the planted files that were executed."""
    return sorted(path.stem for path in tmp_path.glob("*.executed"))


def run_script(tmp_path, directory, source, *words):
    """Run a script that lies elsewhere, as a console script does, in a directory."""
    script = tmp_path / "elsewhere" / "qsft_script.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(source)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    command = [sys.executable, str(script), *map(str, words)]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
