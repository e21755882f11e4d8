"""Draw a healthy and two failing runs in one picture, light and dark: python tools/draw_health.py --out DIR.

Three teachers guide the same student over the same demonstrations of the demo: the right one, one that is sure
of wrong facts, and one that never learned the language (random weights). Runs and models go to the current directory.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from rich.console import Console

from qsft.demo.foundation import make_models, untrained
from qsft.demo.scenario import Scenario
from qsft.demo.training import Phases, save

PANELS = ("loss", "nll", "gamma", "rescue", "filter", "label_in_topk", "support_mass", "teacher_tail")
RUNS = {"a teacher that is right": "-", "sure of wrong facts": "--", "does not know the language": ":"}
# text, lines of the grid, one color per run: readable on the site's light and on its dark background
THEMES = {
    "light": ("#40464e", "#e3e5e8", "#0072B2", "#D55E00", "#AA4499"),
    "dark": ("#c5cad3", "#3a3f4b", "#56B4E9", "#F0893E", "#E79FCB"),
}
History = Sequence[Mapping[str, Any]]


def train(name: str, base: Path, teacher: Path) -> History:
    """What `qsft train demo` logs with this teacher."""
    run = Path("runs", name)
    words = ["--model_name_or_path", str(base), "--teacher_model_name_or_path", str(teacher), "--logging_steps", "2"]
    places = ["--teacher_cache", f"caches/{name}", "--output_dir", str(run), "--disable_tqdm", "true"]
    subprocess.run([sys.executable, "-m", "qsft", "train", "demo", *words, *places], check=True)
    history = json.loads((run / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [line for line in history if "loss" in line]


def runs() -> list[History]:
    """The logs of the three runs, in the order of RUNS."""
    phases = Phases(Console(stderr=True))
    base, right = make_models(Scenario(), phases)
    _, wrong = make_models(Scenario(teacher="wrong"), phases)
    strange = Path("strange")
    save(untrained(seed=1), strange)
    return [train(teacher.name, base, teacher) for teacher in (right, wrong, strange)]


def draw(histories: Sequence[History], theme: str, file: Path) -> None:
    """Small multiples of the logged metrics, the runs over each other, on a transparent ground."""
    text, grid, *colors = THEMES[theme]
    style = {"font.size": 8.5, "axes.titlesize": 9, "text.color": text, "axes.edgecolor": grid}
    style |= {"svg.hashsalt": "qsft", "svg.fonttype": "none", "font.family": "sans-serif"}
    style |= {f"{axis}tick.{part}": text for axis in "xy" for part in ("color", "labelcolor")}
    with plt.rc_context({**style, "axes.titlecolor": text, "axes.spines.top": False, "axes.spines.right": False}):
        fig, axes = plt.subplots(4, 2, figsize=(6.4, 6.8), sharex=True, layout="constrained")
        for axis, metric in zip(axes.flat, PANELS):
            axis.set_title(metric, loc="left", fontweight="bold")
            axis.grid(color=grid, linewidth=0.8)
            axis.tick_params(length=0)
            if metric in ("loss", "nll"):
                axis.set_yscale("log", subs=())
                axis.set_yticks((0.3, 1, 3), ("0.3", "1", "3"))
            elif metric != "rescue":  # a few per cent
                axis.set_ylim(-0.04, 1.04)
            for history, (label, dash), color in zip(histories, RUNS.items(), colors):
                steps = [line["step"] for line in history]
                axis.plot(steps, [line[metric] for line in history], dash, color=color, label=label, linewidth=1.6)
        for axis in axes[-1]:
            axis.set_xlabel("step", color=text)
        fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False)
        fig.savefig(file, transparent=True, metadata={"Date": None})
        plt.close(fig)


def main(argv: Sequence[str] | None = None) -> int:
    """Train the three, draw them twice and say where the pictures are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=".", metavar="DIR", help="where the pictures go (default: here)")
    args = parser.parse_args(argv)
    histories = runs()
    for theme in THEMES:
        file = Path(args.out) / f"health_{theme}.svg"
        draw(histories, theme, file)
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
