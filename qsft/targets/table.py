"""The table of rows as data, as Markdown for the README, and one row in full for `qsft targets NAME`."""

import inspect

from qsft.targets.registry import TARGETS, make_target
from qsft.targets.target import LossTarget, Target

COLUMNS = ("name", "γ", "π̃", "scale", "hyper-parameters", "needs", "reference")
COMBINING = "\u0303"  # the tilde of π̃, which takes no width


def entry(name: str) -> dict[str, str]:
    """The table's row for a named target with its default hyper-parameters: the COLUMNS, and its title."""
    target, build = make_target(name), TARGETS[name]
    title, _, reference = " ".join((build.__doc__ or "").split()).removesuffix(")").rpartition(" (")
    hparams = ", ".join(f"{p.name}={p.default}" for p in inspect.signature(build).parameters.values())
    needs = ", ".join(sorted(target.needs))
    cells = (name, *map(_formula, target.parts), hparams or "–", needs or "–", reference)
    return dict(zip(COLUMNS, cells, strict=True)) | {"title": title}


def entries() -> list[dict[str, str]]:
    return [entry(name) for name in TARGETS]


def markdown() -> str:
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    for row in entries():
        name, *cells = (row[column].replace("|", "\\|") for column in COLUMNS)
        lines.append(" | ".join((f"`{name}`", *cells)))
    return "\n".join(f"| {line} |" for line in lines)


def describe(name: str) -> str:
    """One row in full: words, formula, hyper-parameters, needs and how to use it."""
    e = entry(name)
    shown = [column for column in COLUMNS[1:] if (column, e[column]) != ("needs", "–")]
    return (
        f"{e['title']}\n\n"
        f"  Q = γ·δ_y + (1−γ)·π̃      loss = scale·CE(Q, p)      gradient = scale·(p − Q)\n\n"
        + "".join(f"{column:<{17 + column.count(COMBINING)}}{e[column]}\n" for column in shown)
        + f'\nmake_target("{name}")        qsft train RECIPE --target {name}'
    )


def formula(target: Target) -> str:
    """A target in one line: "γ = p_y, π̃ = π_T, scale = 1", or the name of the loss it comes from."""
    if isinstance(target, LossTarget):
        return f"Q = p − ∂L/∂z, L = {target.record()['loss']}"
    gamma, residual, scale = map(_formula, target.parts)
    equals = "" if residual.startswith("∝") else "= "
    return f"γ = {gamma}, π̃ {equals}{residual}, scale = {scale}"


def _formula(part: object) -> str:
    return "–" if part is None else str(getattr(part, "formula", getattr(part, "__name__", type(part).__name__)))
