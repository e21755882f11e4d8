"""The parts of README and guide that are generated, and their snippets for the tests that run them.

`python tools/readme.py --write` (make docs) writes the generated parts anew; a test fails when they are stale.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

REPO = Path(__file__).resolve().parent.parent
README = REPO / "README.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def targets() -> str:
    """The table of methods: name, one sentence, γ, π̃ and what it needs."""
    from qsft.commands.targets import needs_in_words
    from qsft.targets.table import entries

    rows = []
    for target in entries():
        cells = (f"`{target['name']}`", target["summary"], target["γ"], target["π̃"], needs_in_words(target))
        rows.append([cell.replace("|", "\\|") for cell in cells])
    return table(["name", "what it does", "γ", "π̃", "needs"], rows)


KINDS = {"peaked": "peaked", "Zipf-like": "Zipf-like", "real": "SmolLM2-135M"}  # of distributions, as in the table
NUMINA_LABEL_TOKENS = 27.0336e6


def sizes() -> str:
    """The table of a cache's size and error, from the figures that the benchmark left."""
    columns = ["encoding", "mean k", "bytes per label token", *(f"KL, {title}" for title in KINDS.values())]
    columns += ["27 M label tokens", "1 B label tokens"]
    rows = []
    for name, figures in results("cache")["encodings"].items():
        size = figures["bytes/label token"]
        encoding = ", ".join(f"`{part}`" for part in name.split(", "))
        cells = [encoding, f"{figures['mean k']:.0f}", f"{size:.0f}"]
        cells += [figures[f"KL, {kind}"].replace("e-0", "e-") for kind in KINDS]
        cells += [f"{NUMINA_LABEL_TOKENS * size / 1e9:.1f} GB", f"{size:.0f} GB"]
        rows.append(cells)
    return table(columns, rows)


TITLES = {
    "bare matmuls": "three matmuls",
    "full logits, SFT": "full logits, `F.cross_entropy` in float32 (SFT)",
    "full logits not in float32, SFT": "full logits, `F.cross_entropy` in bfloat16 (SFT)",
    "TRL fused head": "TRL, fused SFT head",
}
FRAMEWORKS = {"TRL": "trl", "axolotl": "axolotl", "ms-swift": "ms-swift"}  # name in print → package


def peers(shape: str = "smollm-bf16") -> str:
    """The table of other frameworks' losses, from the figures that the benchmark left."""
    head = results("head")
    rows = []
    for method, figures in head[shape]["methods"].items():
        title = TITLES.get(method, re.sub(r"^qsft (\w+)$", r"qsft `\1`", method))
        for framework, package in FRAMEWORKS.items():
            title = re.sub(rf"^{framework}\b", f"{framework} {head['versions'].get(package)}", title)
        rows.append([title, f"{figures['of bare matmuls']:.2f}", f"{figures['extra MB']:,.0f} MiB"])
    return table(["loss", "time", "extra memory"], rows)


def tiles() -> str:
    """The table of the time by tokens that are projected at a time, from the figures that the benchmark left."""
    shapes = [entry for entry in results("tiles").values() if "chunks" in entry]
    chunks = [name.removesuffix(" tokens") for name in shapes[0]["chunks"]]
    rows = []
    for entry in shapes:
        shape = entry["shape"]
        title = f"N={shape['tokens']}, H={shape['hidden']}, V={shape['vocabulary']:,}, {shape['dtype']}"
        rows.append([title, *(f"{figures['of the best']:.2f}" for figures in entry["chunks"].values())])
    return table(["tokens at a time", *chunks], rows)


DEMO_TITLES = {
    "SFT": "`sft`",
    "DFT": "`dft`",
    "KD 0.8": "`kd_hybrid`",
    "KD 1.0": "`kd`",
    "Target-SFT": "`target_sft`",
    "KD sharpened": "`kd`, temperature 0.5",
    "Beyond log": "`beyond_log`",
}


def demo() -> str:
    """The table of the demo's accuracy over several seeds, from the figures that are stored with the demo."""
    from qsft.demo.findings import committed_seeds

    seeds = committed_seeds()
    averages = seeds["averages"]
    errors = seeds["standard_errors"]
    cells = [f"{fmean(averages[label]):.1f} ± {errors[label]:.1f}" for label in DEMO_TITLES]
    return table(list(DEMO_TITLES.values()), [cells])


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def results(name: str) -> dict:
    """What a benchmark wrote into its committed file."""
    return json.loads((REPO / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


# The text between `<!-- name -->` and `<!-- /name -->` of a page, by name.
GENERATED = {
    README: {"targets": targets},
    REPO / "docs" / "cache.md": {"sizes": sizes},
    REPO / "docs" / "benchmarks.md": {"peers": peers, "tiles": tiles, "demo": demo},
}


def refreshed(page: Path) -> str:
    """A page's text with its generated parts as they should be."""
    text = page.read_text(encoding="utf-8")
    for name, body in GENERATED[page].items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, count = pattern.subn(lambda m, body=body: f"{m[1]}{body()}\n{m[2]}", text)
        if count != 1:
            raise SystemExit(f"{page} has {count} parts between <!-- {name} --> and <!-- /{name} -->, not one")
    return text


def snippets(language: str, page: Path = README) -> list[str]:
    """The code blocks of a page in a language; those without one for ""."""
    return [code for name, code in BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]


def commands(page: Path = README) -> list[str]:
    """The shell commands of a page, each on one line and without its comment."""
    blocks = [re.sub(r" *\\\n *", " ", block) for block in snippets("bash", page)]
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def prose(page: Path = README) -> str:
    """A page without its code blocks."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def inline(page: Path = README) -> list[str]:
    """What stands between backticks in the prose, each once."""
    return list(dict.fromkeys(re.findall(r"`([^`\n]+)`", prose(page))))


def mentioned(page: Path = README) -> list[str]:
    """The commands that the prose mentions."""
    return [code for code in inline(page) if re.match(r"(qsft|make|accelerate|python|pip) \S", code)]


def links(page: Path = README) -> list[str]:
    """Where the links and pictures of the prose point."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


def anchors(page: Path = README) -> set[str]:
    """The anchors that a reader's renderer gives the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def takes_everything(response: str, row: dict) -> bool:
    """A verifier for `qsft curate --verifier readme:takes_everything`."""
    return True


if __name__ == "__main__":
    stale = [page for page in GENERATED if refreshed(page) != page.read_text(encoding="utf-8")]
    if "--write" not in sys.argv:
        sys.exit(f"{', '.join(page.name for page in stale)}: stale, run `make docs`" if stale else 0)
    for page in stale:
        page.write_text(refreshed(page), encoding="utf-8")
