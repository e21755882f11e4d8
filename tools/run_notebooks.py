"""Run the notebooks from top to bottom: python tools/run_notebooks.py [--write].

They run in a directory of their own, because a notebook writes files where it lies. `--write` stores their outputs in
notebooks/, and sets the address of the repository (`url` in setup.cfg) in their Colab badges and install cells.
"""

import argparse
import configparser
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((REPO / "notebooks").glob("*.ipynb"))
REPOSITORY = re.compile(r"github(?P<host>\.com)?/(?P<path>[\w.-]+/qsft)(?=[/\"])")
SECONDS_PER_CELL = 1800


def repository_url() -> str:
    """The address of the repository, from setup.cfg."""
    setup = configparser.ConfigParser()
    setup.read(REPO / "setup.cfg")
    return setup["metadata"]["url"]


def set_repository(text: str) -> str:
    """A cell's text with the address of the repository in Colab links and install commands."""
    path = repository_url().removeprefix("https://github.com/")
    return REPOSITORY.sub(lambda found: f"github{found['host'] or ''}/{path}", text)


def execute(notebook: Any, directory: Path) -> Any:
    """Run a notebook in `directory` and return it with its outputs."""
    from nbclient import NotebookClient

    for cell in notebook.cells:
        cell.source = set_repository(cell.source)
    client = NotebookClient(notebook, timeout=SECONDS_PER_CELL, resources={"metadata": {"path": str(directory)}})
    client.execute()
    return notebook


def is_warning(output: Any) -> bool:
    """Whether an output is a line on stderr, or one that DeepSpeed logs on stdout."""
    return output.get("name") == "stderr" or "[WARNING] [real_accelerator.py" in output.get("text", "")


def remove_what_depends_on_the_machine(notebook: Any, directory: Path) -> None:
    """Leave out times, warnings and paths of this machine."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if not is_warning(output)]
        for output in cell.outputs:
            if "text" in output:
                output.text = output.text.replace(f"{directory}/", "").replace(f"{Path.home()}/", "~/")
    notebook.metadata.language_info = {"name": "python"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run every notebook; with --write, store what it printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="store the outputs in notebooks/")
    args = parser.parse_args(argv)
    import nbformat  # here, because a test without the notebook extra reads the rest of this module

    for file in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as directory:
            print(f"running {file.name} ...", flush=True)
            notebook = execute(nbformat.read(file, as_version=4), Path(directory))
            if args.write:
                remove_what_depends_on_the_machine(notebook, Path(directory))
                nbformat.write(notebook, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
