"""The training curves of one or several runs as a page, for use without an experiment tracker."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsft.page import COLORS, ROLES, escape, faint, figure, page, static, table
from qsft.run_directory import TRAINER_STATE, checkpoint_paths
from qsft.validation import counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

QUARTILES = ("gamma_q25", "gamma_q75")
# Metrics by heading, in the order of the page; others come last under the heading "Other".
GROUPS: dict[str, tuple[str, ...]] = {
    "Loss": ("loss", "label_loss", "residual_loss", "nll", "eval_loss", "eval_nll"),
    "Trust in the label, γ": ("gamma", "gamma_q50"),
    "Student and teacher on the label": ("rescue", "filter", "agree", "student_only"),
    "What the teacher covers": (
        "support_mass", "teacher_tail", "label_in_topk", "teacher_disagrees", "fallback_tokens",
    ),
    "Model and optimizer": ("mean_token_accuracy", "entropy", "grad_norm", "learning_rate"),
}  # fmt: skip
NOT_DRAWN = {"step", "epoch", "num_tokens", "total_flos", "train_loss", *QUARTILES}
TOTALS = ("runtime", "samples_per_second", "steps_per_second")  # endings of metrics of a whole run
DESCRIPTIONS = {
    "loss": "what is minimized",
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
AXIS_FROM_ZERO = {*GROUPS["Student and teacher on the label"], *GROUPS["What the teacher covers"], "gamma", "gamma_q50"}
# Runs differ in color and dash, so that curves on top of each other are both visible.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CSS_DASHES = ("solid", "dashed", "dotted", "dashed", "dashed", "dashed")


@dataclass(frozen=True)
class Run:
    """A run's name and its log: one dict per logged step, with `step`."""

    name: str
    history: tuple[dict[str, Any], ...]

    @property
    def metrics(self) -> list[str]:
        """The metrics that have a number at some step, in the order in which they appear."""
        names: dict[str, None] = {}
        for line in self.history:
            for name, value in line.items():
                if _is_number(value) and name not in NOT_DRAWN and not name.endswith(TOTALS):
                    names[name] = None
        return list(names)

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Return (steps, values) of a metric, without values that are not finite."""
        points = [(line["step"], line[metric]) for line in self.history if _is_number(line.get(metric))]
        return [step for step, _ in points], [value for _, value in points]


def read_run(directory: str | Path, name: str | None = None) -> Run:
    """Return the log of an output directory: its own trainer_state.json, or that of its newest checkpoint.

    Raises:
        FileNotFoundError: if there is no trainer_state.json.
        ValueError: if it has no log, or nothing was logged yet.
    """
    directory = Path(directory)
    path = _find_state(directory)
    if path is None:
        raise FileNotFoundError(
            f"there is no {TRAINER_STATE} in {directory} or its checkpoints. Give a run's output_dir; the file comes "
            "with the first checkpoint (save_strategy, save_steps) and at the end of training."
        )
    try:
        history = json.loads(path.read_text(encoding="utf-8"))["log_history"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a trainer's state: it has no log_history. Give a run's output_dir.") from error
    lines = tuple(line for line in history if isinstance(line.get("step"), int))
    if not lines:
        raise ValueError(f"{path} has no logged step yet. Wait for the first one, or lower logging_steps.")
    return Run(name or directory.resolve().name, lines)


def _find_state(directory: Path) -> Path | None:
    for place in (directory, *checkpoint_paths(directory)):
        if (place / TRAINER_STATE).is_file():
            return place / TRAINER_STATE
    return None


def read_runs(directories: Sequence[str | Path]) -> list[Run]:
    """Return the runs of several directories, named by their paths if the directories' names are not unique."""
    names = {Path(directory).resolve().name for directory in directories}
    if len(names) < len(directories):
        return [read_run(directory, str(directory)) for directory in directories]
    return [read_run(directory) for directory in directories]


def run_figures(runs: Sequence[Run]) -> dict[str, list[tuple[str, "Figure"]]]:
    """Return (metric, figure) of every logged metric by heading; a figure shows all runs over steps."""
    logged = list(dict.fromkeys(metric for run in runs for metric in run.metrics))
    listed = {metric for group in GROUPS.values() for metric in group}
    groups = {**GROUPS, "Other": tuple(metric for metric in logged if metric not in listed)}
    figures = {}
    for heading, group in groups.items():
        drawn = [(metric, _metric_figure(runs, metric)) for metric in group if metric in logged]
        if drawn:
            figures[heading] = drawn
    return figures


def run_page(runs: Sequence[Run], *, title: str | None = None) -> str:
    """Return the figures of one or several runs as HTML."""
    parts = [f"<p>{_legend(runs)}</p>"]
    for heading, figures in run_figures(runs).items():
        cards = "".join(_metric_card(runs, metric, fig) for metric, fig in figures)
        parts.append(f'<h2>{escape(heading)}</h2><div class="grid">{cards}</div>')
    last_step = max(line["step"] for run in runs for line in run.history)
    names = ", ".join(run.name for run in runs)
    return page(
        title or f"Training curves: {names}",
        "".join(parts),
        lede=f"{counted(len(runs), 'run')}, up to step {last_step:,}; every logged metric.",
        style=static("qsft.explore", "run.css"),
    )


def _legend(runs: Sequence[Run]) -> str:
    keys = []
    for index, run in enumerate(runs):
        color = ROLES[COLORS[index % len(COLORS)]]
        dash = CSS_DASHES[index % len(CSS_DASHES)]
        line = f'<i style="border-top: 3px {dash} var(--{color})"></i>'
        keys.append(f'<span class="key">{line}{escape(run.name)}</span>')
    return "".join(keys)


def _metric_card(runs: Sequence[Run], metric: str, fig: "Figure") -> str:
    rows = []
    for run in runs:
        if metric in run.metrics:
            _, values = run.curve(metric)
            rows.append((run.name, float(values[0]), float(values[-1]), float(min(values)), float(max(values))))
    caption = f"{metric}: {DESCRIPTIONS[metric]}" if metric in DESCRIPTIONS else metric
    return figure(fig, caption, height=230, table=table(("run", "first", "last", "lowest", "highest"), rows))


def _metric_figure(runs: Sequence[Run], metric: str) -> "Figure":
    import plotly.graph_objects as go

    fig = go.Figure()
    for index, run in enumerate(runs):
        color = COLORS[index % len(COLORS)]
        if metric == "gamma":
            _add_quartile_band(fig, run, color)
        steps, values = run.curve(metric)
        fig.add_scatter(
            x=steps,
            y=values,
            name=escape(run.name),
            mode="lines" if len(steps) > 1 else "markers",
            line={"color": color, "dash": DASHES[index % len(DASHES)], "width": 2},
            hovertemplate="step %{x}: %{y:.4g}",
        )
    fig.update_layout(showlegend=False, xaxis={"title": "step"}, margin={"t": 10, "b": 40}, hovermode="x unified")
    fig.update_yaxes(rangemode="tozero" if metric in AXIS_FROM_ZERO else "normal")
    return fig


def _add_quartile_band(fig: "Figure", run: Run, color: str) -> None:
    """Add the band between the quartiles of γ: two invisible lines, the second filled down to the first."""
    for quartile, fill in zip(QUARTILES, (None, "tonexty")):
        steps, values = run.curve(quartile)
        fig.add_scatter(
            x=steps,
            y=values,
            fill=fill,
            mode="lines",
            line={"width": 0},
            fillcolor=faint(color),
            hoverinfo="skip",
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
