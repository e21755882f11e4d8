"""The README's parts that are generated, and its snippets for the tests that run them.

`python tests/readme.py --write` (make docs) writes the generated parts anew; a test fails when they are stale.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


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


def snippets(language: str, page: Path = README) -> list[str]:
    """The code blocks of a page in a language; those without one for ""."""
    return [code for name, code in BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


def commands(page: Path = README) -> list[str]:
    """The shell commands of a page, without their comments."""
    lines = [line.split(" #")[0].strip() for block in snippets("bash", page) for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def diff_sides(diff: str) -> tuple[str, str]:
    """The two scripts that a diff is between, before and after."""
    lines = [(line[:1], line[1:]) for line in diff.splitlines()]
    before, after = ("\n".join(text for sign, text in lines if sign != other) for other in "+-")
    return before, after


def prose(page: Path = README) -> str:
    """A page without its code blocks."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def inline(page: Path = README) -> list[str]:
    """What stands between backticks in the prose, each once."""
    return list(dict.fromkeys(re.findall(r"`([^`\n]+)`", prose(page))))


def mentioned(page: Path = README) -> list[str]:
    """The commands that the prose mentions."""
    return [code for code in inline(page) if re.match(r"(qsft|make|accelerate|python|pip) \S", code)]


def links() -> list[str]:
    """Where the links and pictures of the prose point."""
    return re.findall(r"\]\(([^)\s]+)\)", prose())


def anchors() -> set[str]:
    """The anchors that a reader's renderer gives the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def takes_everything(response: str, row: dict) -> bool:
    """A verifier for `qsft curate --verifier readme:takes_everything`."""
    return True


if __name__ == "__main__":
    before = README.read_text(encoding="utf-8")
    after = refreshed(before)
    if "--write" in sys.argv:
        README.write_text(after, encoding="utf-8")
    sys.exit(0 if "--write" in sys.argv or after == before else "README.md is stale: run `make docs`")
