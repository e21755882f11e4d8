"""The bar chart as a PNG file, for slides and READMEs. Matplotlib draws it; it comes with the extra `demo`."""

from pathlib import Path

from qsft.demo.results import Results
from qsft.page import BLUE, SKY

GREY = "#9aa3ad"


def write_picture(results: Results, path: Path) -> bool:
    """Write Average@n of every model with its standard error as bars; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    lines = [results.line(label) for label in reversed(results.labels)]
    given = {method.label: GREY if method.control else BLUE for method in results.methods}
    figure = Figure(figsize=(7.2, 0.6 + 0.42 * len(lines)), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    axes.barh(
        [line.label for line in lines],
        [line.average for line in lines],
        xerr=[line.standard_error for line in lines],
        color=[given.get(line.label, SKY) for line in lines],
        error_kw={"ecolor": "#333333", "capsize": 2},
    )
    for place, line in enumerate(lines):
        axes.text(line.average + line.standard_error + 1, place, f"{line.average:.1f}", va="center", fontsize=9)
    axes.set(xlim=(0, 108), xlabel=f"Average@{results.settings.samples} in % (noise {results.settings.noise:g})")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return True
