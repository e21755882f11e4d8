"""A run's logged metrics as a page, for people without a tracker; several runs are drawn over each other."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsft.page import COLORS, ROLES, escape, faint, figure, page, static, table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

STATE = "trainer_state.json"
QUARTILES = ("gamma_q25", "gamma_q75")
# What stands together, in this order; metrics that are not listed come last under a heading of their own.
GROUPS: dict[str, tuple[str, ...]] = {
    "Loss": ("loss", "label_loss", "residual_loss", "nll", "eval_loss", "eval_nll"),
    "Trust in the label, γ": ("gamma", "gamma_q50"),
    "Student and teacher on the label": ("rescue", "filter", "agree", "student_only"),
    "What the teacher covers": (
        "support_mass", "teacher_tail", "label_in_topk", "teacher_disagrees", "fallback_tokens",
    ),
    "Model and optimiser": ("mean_token_accuracy", "entropy", "grad_norm", "learning_rate"),
}  # fmt: skip
NOT_DRAWN = {"step", "epoch", "num_tokens", "total_flos", "train_loss", *QUARTILES}
TOTALS = ("runtime", "samples_per_second", "steps_per_second")  # of a whole run, not curves
ABOUT = {
    "loss": "what is minimised",
    "label_loss": "the label's part of the loss",
    "residual_loss": "the residual's part of the loss",
    "nll": "−log p of the label, what plain SFT would print",
    "gamma": "mean γ; the band is the middle half of the tokens",
    "gamma_q50": "the median of γ",
    "rescue": "share of tokens only the teacher finds likely",
    "filter": "share of tokens neither finds likely",
    "agree": "share of tokens both find likely",
    "student_only": "share of tokens only the student finds likely",
    "support_mass": "the student's mass on the teacher's kept tokens",
    "teacher_tail": "the teacher's mass outside its kept tokens",
    "label_in_topk": "share of labels among the teacher's kept tokens",
    "teacher_disagrees": "share of tokens where the teacher's first choice is not the label",
}
SHARES = {*GROUPS["Student and teacher on the label"], *GROUPS["What the teacher covers"], "gamma", "gamma_q50"}
# Runs differ in colour and in dash, so that curves which lie on each other are both seen.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CSS_DASHES = ("solid", "dashed", "dotted", "dashed", "dashed", "dashed")


@dataclass(frozen=True)
class Run:
    """A run's name and its log: one dict per log line, with `step`."""

    name: str
    history: tuple[dict[str, Any], ...]

    @property
    def metrics(self) -> list[str]:
        """The names that have a number at some step, in the order in which they appear."""
        names = {name: None for line in self.history for name, value in line.items() if _is_number(value)}
        return [name for name in names if name not in NOT_DRAWN and not name.endswith(TOTALS)]

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """(steps, values) of a metric; values that are not finite are left out."""
        points = [(line["step"], line[metric]) for line in self.history if _is_number(line.get(metric))]
        return [step for step, _ in points], [value for _, value in points]


def read_run(directory: str | Path, name: str | None = None) -> Run:
    """The log of an output directory: its own trainer_state.json, or that of its newest checkpoint."""
    directory = Path(directory)
    checkpoints = sorted(directory.glob(f"checkpoint-*/{STATE}"), key=lambda file: int(file.parent.name.split("-")[-1]))
    path = next((file for file in (directory / STATE, *reversed(checkpoints)) if file.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"there is no {STATE} in {directory} or its checkpoints. Give a run's output_dir; it is written with the "
            "first checkpoint (save_strategy, save_steps) and at the end of training."
        )
    try:
        history = json.loads(path.read_text(encoding="utf-8"))["log_history"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a trainer's state: it has no log_history. Give a run's output_dir.") from error
    lines = tuple(line for line in history if isinstance(line.get("step"), int))
    if not lines:
        raise ValueError(f"{path} holds no logged step yet. Wait for the first one, or lower logging_steps.")
    return Run(name or directory.resolve().name, lines)


def read_runs(directories: Sequence[str | Path]) -> list[Run]:
    """The runs of several directories, under names that tell them apart."""
    names = [Path(directory).resolve().name for directory in directories]
    doubled = len(set(names)) < len(names)
    return [read_run(directory, str(directory) if doubled else None) for directory in directories]


def run_figures(runs: Sequence[Run]) -> dict[str, list[tuple[str, "Figure"]]]:
    """Heading → (metric, figure): every logged metric over steps, the runs over each other."""
    present = list(dict.fromkeys(metric for run in runs for metric in run.metrics))
    listed = {metric for group in GROUPS.values() for metric in group}
    groups = {**GROUPS, "Other": tuple(metric for metric in present if metric not in listed)}
    return {
        heading: [(metric, _figure(runs, metric)) for metric in group if metric in present]
        for heading, group in groups.items()
        if any(metric in present for metric in group)
    }


def run_page(runs: Sequence[Run], *, title: str | None = None) -> str:
    """The figures of one or several runs as HTML."""
    key = "".join(
        f'<span class="key"><i style="border-top: 3px {dash} var(--{ROLES[colour]})"></i>{escape(run.name)}</span>'
        for run, colour, dash in zip(runs, cycle(COLORS), cycle(CSS_DASHES))
    )
    sections = [
        f'<h2>{escape(heading)}</h2><div class="grid">{"".join(_card(runs, *one) for one in figures)}</div>'
        for heading, figures in run_figures(runs).items()
    ]
    steps = max(line["step"] for run in runs for line in run.history)
    lede = f"{len(runs)} run{'s' if len(runs) > 1 else ''}, up to step {steps:,}; every metric that was logged."
    names = ", ".join(run.name for run in runs)
    body, style = f"<p>{key}</p>" + "".join(sections), static("qsft.explore", "run.css")
    return page(title or f"Training curves: {names}", body, lede=lede, style=style)


def _card(runs: Sequence[Run], metric: str, fig: "Figure") -> str:
    curves = {run.name: run.curve(metric)[1] for run in runs if metric in run.metrics}
    ends = [(name, *map(float, (ys[0], ys[-1], min(ys), max(ys)))) for name, ys in curves.items()]
    caption = f"{metric}: {ABOUT[metric]}" if metric in ABOUT else metric
    return figure(fig, caption, height=230, table=table(("run", "first", "last", "lowest", "highest"), ends))


def _figure(runs: Sequence[Run], metric: str) -> "Figure":
    import plotly.graph_objects as go

    fig = go.Figure()
    for run, colour, dash in zip(runs, cycle(COLORS), cycle(DASHES)):
        if metric == "gamma":  # the band between its quartiles: two invisible lines, the space between them filled
            hidden = {"mode": "lines", "line": {"width": 0}, "fillcolor": faint(colour), "hoverinfo": "skip"}
            for quartile, fill in zip(QUARTILES, (None, "tonexty")):
                x, y = run.curve(quartile)
                fig.add_scatter(x=x, y=y, fill=fill, **hidden)
        steps, values = run.curve(metric)
        mode = "lines" if len(steps) > 1 else "markers"
        line = {"color": colour, "dash": dash, "width": 2}
        fig.add_scatter(
            x=steps, y=values, name=escape(run.name), mode=mode, line=line, hovertemplate="step %{x}: %{y:.4g}"
        )
    fig.update_layout(showlegend=False, xaxis={"title": "step"}, margin={"t": 10, "b": 40}, hovermode="x unified")
    fig.update_yaxes(rangemode="tozero" if metric in SHARES else "normal")
    return fig


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
