"""Descriptions of targets: all named ones as a table, one in full for `qsft targets NAME`, any target in one line."""

from qsft.targets.registry import TARGETS, make_target
from qsft.targets.target import LossTarget, Target

FIRST_COLUMN = 17  # characters of the names in a description
COLUMNS = ("name", "γ", "π̃", "scale", "hyper-parameters", "needs", "reference")
COMBINING = "\u0303"  # the tilde of π̃, which takes no width
DEFAULT_VALUE = "scale·CE(Q, p), without the student's own part"


def entry(name: str) -> dict[str, str]:
    """The table's cells for a named target with its default hyper-parameters: COLUMNS, title, summary, loss, value."""
    target = make_target(name)  # raises for an unknown name
    named = TARGETS[name]
    gamma, residual, scale = (_formula(part) for part in target.parts)
    hyper_parameters = ", ".join(f"{key}={value}" for key, value in named.hyper_parameters.items())
    return {
        "name": name,
        "γ": gamma,
        "π̃": residual,
        "scale": scale,
        "hyper-parameters": hyper_parameters or "–",
        "needs": ", ".join(sorted(target.needs)) or "–",
        "reference": named.reference,
        "title": named.title,
        "summary": named.summary,
        "loss": named.loss,
        "value": DEFAULT_VALUE if target.value is None else _formula(target.value),
    }


def entries() -> list[dict[str, str]]:
    """The cells of all named targets."""
    return [entry(name) for name in TARGETS]


def markdown() -> str:
    """The table of all named targets in Markdown."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    for cells in entries():
        name, *rest = (cells[column].replace("|", "\\|") for column in COLUMNS)
        lines.append(" | ".join((f"`{name}`", *rest)))
    return "\n".join(f"| {line} |" for line in lines)


def describe(name: str) -> str:
    """One target in full: title, summary, formulas, hyper-parameters, needs and how to use it."""
    cells = entry(name)
    shown = ["loss", *COLUMNS[1:4], "value", *COLUMNS[4:]]
    if cells["needs"] == "–":
        shown.remove("needs")
    lines = [column.ljust(FIRST_COLUMN + column.count(COMBINING)) + cells[column] for column in shown]
    return (
        f"{cells['title']}\n{cells['summary']}\n\n"
        "  Q = γ·δ_y + (1−γ)·π̃      loss = scale·CE(Q, p)      gradient = scale·(p − Q)\n\n"
        + "\n".join(lines)
        + f'\n\nmake_target("{name}")        qsft train RECIPE --target {name}'
    )


def formula(target: Target) -> str:
    """A target in one line: "γ = p_y, π̃ = π_T, scale = 1", or the name of the loss it comes from."""
    if isinstance(target, LossTarget):
        return f"Q = p − ∂L/∂z, L = {target.record()['loss']}"
    gamma, residual, scale = (_formula(part) for part in target.parts)
    equals = "" if residual.startswith("∝") else "= "
    return f"γ = {gamma}, π̃ {equals}{residual}, scale = {scale}"


def _formula(part: object) -> str:
    """A part's formula, or its name where it has none, as a user's own function."""
    if part is None:
        return "–"
    return str(getattr(part, "formula", getattr(part, "__name__", type(part).__name__)))
