"""The README's parts that are generated, and its snippets for the tests that run them.

`python tests/readme.py --write` (make docs) writes the generated parts anew; a test fails when they are stale.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def generated() -> dict[str, str]:
    """The text between `<!-- name -->` and `<!-- /name -->`, by name."""
    from qsft.targets import table

    return {"targets": table.markdown()}


def refreshed(text: str) -> str:
    """`text` with its generated parts as they should be."""
    for name, body in generated().items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, count = pattern.subn(lambda m, body=body: f"{m[1]}{body}\n{m[2]}", text)
        if count != 1:
            raise SystemExit(f"README.md has {count} parts between <!-- {name} --> and <!-- /{name} -->, not one")
    return text


def snippets(language: str) -> list[str]:
    """The README's code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def commands() -> list[str]:
    """The README's shell commands, without their comments."""
    lines = [line.split(" #")[0].strip() for block in snippets("bash") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


if __name__ == "__main__":
    before = README.read_text(encoding="utf-8")
    after = refreshed(before)
    if "--write" in sys.argv:
        README.write_text(after, encoding="utf-8")
    sys.exit(0 if "--write" in sys.argv or after == before else "README.md is stale: run `make docs`")
