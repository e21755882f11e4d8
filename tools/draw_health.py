"""Draw the metrics of one healthy and two failing runs, light and dark: python tools/draw_health.py --output_dir DIR.

Three teachers guide the same student on the same demonstrations of the demo: a right one, one that is confident and
wrong, and one that does not fit (random weights). Runs and models are written to the current directory.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from rich.console import Console

from qsft.demo.foundation import make_models, untrained
from qsft.demo.scenario import Scenario
from qsft.demo.training import Phases, save

METRICS = ("loss", "nll", "gamma", "rescue", "filter", "label_in_topk", "support_mass", "teacher_tail")
ON_A_LOG_SCALE = ("loss", "nll")
OF_FREE_RANGE = ("rescue",)  # a few percent; the other shares are drawn from 0 to 1

Log = Sequence[Mapping[str, Any]]  # the lines of a run's log that have a loss


class Line(NamedTuple):
    """How a run is drawn, by its label in the legend."""

    label: str
    dash: str


class Theme(NamedTuple):
    """Colors that are readable on the site's light or dark background."""

    text: str
    grid: str
    runs: tuple[str, str, str]


LINES = (
    Line("a right teacher", "-"),
    Line("confident and wrong", "--"),
    Line("does not fit", ":"),
)
THEMES = {
    "light": Theme("#40464e", "#e3e5e8", ("#0072B2", "#D55E00", "#AA4499")),
    "dark": Theme("#c5cad3", "#3a3f4b", ("#56B4E9", "#F0893E", "#E79FCB")),
}


def train_three_runs() -> list[Log]:
    """The logs of the three runs, in the order of LINES."""
    phases = Phases(Console(stderr=True))
    base, right = make_models(Scenario(), phases)
    _, wrong = make_models(Scenario(teacher="wrong"), phases)
    unfit = Path("random_weights")
    save(untrained(seed=1), unfit)
    return [train(base, teacher) for teacher in (right, wrong, unfit)]


def train(base: Path, teacher: Path) -> Log:
    """What `qsft train demo` logs with this teacher."""
    run = Path("runs", teacher.name)
    options = {
        "--model_name_or_path": base,
        "--teacher_model_name_or_path": teacher,
        "--teacher_cache": Path("caches", teacher.name),
        "--output_dir": run,
        "--logging_steps": 2,
        "--disable_tqdm": "true",
    }
    words = [str(word) for option in options.items() for word in option]
    subprocess.run([sys.executable, "-m", "qsft", "train", "demo", *words], check=True)
    state = json.loads((run / "trainer_state.json").read_text(encoding="utf-8"))
    return [line for line in state["log_history"] if "loss" in line]


def draw(logs: Sequence[Log], theme: Theme, file: Path) -> None:
    """One small plot per metric, the runs over each other, on a transparent background."""
    with plt.rc_context(style(theme)):
        figure, axes = plt.subplots(4, 2, figsize=(6.4, 6.8), sharex=True, layout="constrained")
        for axis, metric in zip(axes.flat, METRICS, strict=True):
            draw_metric(axis, metric, logs, theme)
        for axis in axes[-1]:
            axis.set_xlabel("step", color=theme.text)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False)
        figure.savefig(file, transparent=True, metadata={"Date": None})
        plt.close(figure)


def draw_metric(axis: Axes, metric: str, logs: Sequence[Log], theme: Theme) -> None:
    """One metric of all runs."""
    axis.set_title(metric, loc="left", fontweight="bold")
    axis.grid(color=theme.grid, linewidth=0.8)
    axis.tick_params(length=0)
    if metric in ON_A_LOG_SCALE:
        axis.set_yscale("log", subs=())
        axis.set_yticks((0.3, 1, 3), ("0.3", "1", "3"))
    elif metric not in OF_FREE_RANGE:
        axis.set_ylim(-0.04, 1.04)
    for log, line, color in zip(logs, LINES, theme.runs, strict=True):
        steps = [entry["step"] for entry in log]
        values = [entry[metric] for entry in log]
        axis.plot(steps, values, line.dash, color=color, label=line.label, linewidth=1.6)


def style(theme: Theme) -> dict[str, Any]:
    """Matplotlib's settings for a theme; text stays text, and equal data gives an equal file."""
    return {
        "font.size": 8.5,
        "font.family": "sans-serif",
        "axes.titlesize": 9,
        "axes.titlecolor": theme.text,
        "axes.edgecolor": theme.grid,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.color": theme.text,
        "xtick.color": theme.text,
        "xtick.labelcolor": theme.text,
        "ytick.color": theme.text,
        "ytick.labelcolor": theme.text,
        "svg.hashsalt": "qsft",
        "svg.fonttype": "none",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Train the three runs, draw them for both themes and print the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", default=".", metavar="DIR", help="directory of the pictures (default: here)")
    args = parser.parse_args(argv)
    logs = train_three_runs()
    for name, theme in THEMES.items():
        file = Path(args.output_dir) / f"health_{name}.svg"
        draw(logs, theme, file)
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
