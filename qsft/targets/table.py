"""The table of rows as data, as Markdown for the README, and one row in full for `qsft targets NAME`."""

import inspect
from dataclasses import dataclass

from qsft.targets.did_you_mean import did_you_mean
from qsft.targets.induced import LossTarget
from qsft.targets.target import Target
from qsft.targets.zoo import TARGETS

COLUMNS = ("name", "γ", "π̃", "scale", "hyper-parameters", "needs", "reference")


@dataclass(frozen=True)
class Entry:
    """One row of the table, read off the row's function and the target it builds."""

    name: str
    title: str
    gamma: str
    residual: str
    scale: str
    hparams: str
    needs: str
    reference: str

    @property
    def cells(self) -> tuple[str, ...]:
        return self.name, self.gamma, self.residual, self.scale, self.hparams, self.needs, self.reference


def entry(name: str) -> Entry:
    """The table's row for a named target with its default hyper-parameters."""
    if name not in TARGETS:
        raise ValueError(f"there is no target {name!r}.{did_you_mean(name, TARGETS)} `qsft targets` lists them.")
    build = TARGETS[name]
    words = " ".join((build.__doc__ or "").split())
    title, _, reference = words.removesuffix(")").rpartition(" (")
    target = build()
    parameters = inspect.signature(build).parameters.values()
    return Entry(
        name=name,
        title=title,
        gamma=_formula(target.trust),
        residual="–" if target.residual is None else _formula(target.residual),
        scale=_formula(target.scale),
        hparams=", ".join(f"{p.name}={p.default}" for p in parameters) or "–",
        needs=", ".join(sorted(target.needs)) or "–",
        reference=reference,
    )


def entries() -> list[Entry]:
    """All rows, in the order of the paper's table."""
    return [entry(name) for name in TARGETS]


def markdown() -> str:
    """The table for the README."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    lines += [" | ".join((f"`{e.name}`", *(cell.replace("|", "\\|") for cell in e.cells[1:]))) for e in entries()]
    return "\n".join(f"| {line} |" for line in lines)


def describe(name: str) -> str:
    """One row in full: words, formula, hyper-parameters, needs and how to use it."""
    e = entry(name)
    needs = f"needs            {e.needs}\n" if e.needs != "–" else ""
    return (
        f"{e.title}\n\n"
        f"  Q = γ·δ_y + (1−γ)·π̃      loss = scale·CE(Q, p)      gradient = scale·(p − Q)\n\n"
        f"γ                {e.gamma}\nπ̃                {e.residual}\nscale            {e.scale}\n"
        f"hyper-parameters {e.hparams}\n{needs}reference        {e.reference}\n\n"
        f'make_target("{name}")        qsft train RECIPE --target {name}'
    )


def formula(target: Target | LossTarget) -> str:
    """A target in one line: "γ = p_y, π̃ = π_T, scale = 1", or the name of the loss it comes from."""
    if isinstance(target, LossTarget):
        return f"Q = p − ∂L/∂z, L = {target.record()['loss']}"
    residual = "–" if target.residual is None else _formula(target.residual)
    equals = "" if residual.startswith("∝") else "= "
    return f"γ = {_formula(target.trust)}, π̃ {equals}{residual}, scale = {_formula(target.scale)}"


def _formula(part: object) -> str:
    return str(getattr(part, "formula", getattr(part, "__name__", type(part).__name__)))
