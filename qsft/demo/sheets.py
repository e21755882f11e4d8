"""The demo's tables as words, for the terminal and the page alike."""

from collections.abc import Callable
from dataclasses import dataclass

from qsft.demo.closed_form import KINDS
from qsft.demo.findings import ours
from qsft.demo.reading import ERRORS
from qsft.demo.results import Results


@dataclass(frozen=True)
class Sheet:
    """A table: `strong` is the first cell of the row to stress, `note` what one should know to read it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str
    strong: str | None = None


def accuracy(results: Results) -> Sheet:
    """Average@n, greedy and pass@n of every model."""
    n, seeds = results.settings.samples, len(results.seeds)
    spread = f"over {seeds} seeds" if seeds > 1 else f"over {results.settings.problems} problems"
    controls = ", ".join(method.label for method in results.methods if method.control)
    lines = [results.line(label) for label in results.labels]
    return Sheet(
        "Accuracy in %",
        ("model", f"Average@{n}", "greedy", f"pass@{n}"),
        [
            (
                line.label,
                f"{line.average:.1f} ± {line.standard_error:.1f}",
                f"{line.greedy:.1f}",
                f"{line.pass_at_n:.1f}",
            )
            for line in lines
        ],
        f"± is the standard error {spread}; samples are drawn at temperature 1."
        + (f" {controls}: the teacher at temperature 0.5, a control." if controls else ""),
        _strong(results),
    )


def first_errors(results: Results) -> Sheet:
    """Where sampled solutions first go wrong."""
    lines = [results.line(label) for label in results.labels]
    return Sheet(
        "First error of a sampled solution, % of samples",
        ("model", *ERRORS),
        [(line.label, *_rounded(*(line.errors[kind] for kind in ERRORS))) for line in lines],
        "+/− and ×: a wrong result by its operation; copying: a wrong operation, operand or answer; form: not a chain.",
        _strong(results),
    )


def theory(results: Results) -> Sheet:
    """The probability of the right result of a step: closed form beside measurement."""
    columns = tuple(f"{kind} {what}" for kind in KINDS for what in ("closed form", "measured"))
    rows = []
    for method in results.methods:
        cells = [_mean(results, method.label, what, kind) for kind in KINDS for what in ("closed form", "measured")]
        rows.append((method.label, *cells))
    return Sheet(
        "p(right result) of one step, %",
        ("method", *columns),
        rows,
        "Closed form: where expected training goes at a fixed context with labels d and teacher T. SFT: d; KD: "
        "c·T+(1−c)·d, a mixture; Target-SFT: ∝ T·(1−d)^(−1/η), a product of experts; a dash: none is known "
        "(the p-loss goes to a vertex).",
        _strong(results),
    )


def demonstration(results: Results) -> Sheet:
    """One demonstration token by token."""
    shown = results.seeds[0].demonstration
    slips = any(token.slip for token in shown.tokens)
    return Sheet(
        f"One {'noisy ' if slips else ''}demonstration, token by token: {shown.question}",
        ("token", "p_θ", "p_T", "γ", "top of Q", ""),
        [
            (
                token.word,
                f"{token.student:.2f}",
                f"{token.teacher:.2f}",
                f"{token.gamma:.2f}",
                token.favourite,
                " ".join(word for word in (token.tag, "(slip)" if token.slip else "") if word),
            )
            for token in shown.tokens
        ],
        "p_θ: the base before fine-tuning; p_T: the teacher; γ: how far Target-SFT trusts the token; top of Q: "
        "the likeliest word of its target. rescue: the base finds the token unlikely, the teacher does not; filter: "
        "both find it unlikely.",
    )


SHEETS: tuple[Callable[[Results], Sheet], ...] = (demonstration, accuracy, first_errors, theory)


def _strong(results: Results) -> str | None:
    hero = ours(results)
    return hero.label if hero else None


def _rounded(*values: float) -> list[str]:
    return [f"{value:.1f}" for value in values]


def _mean(results: Results, label: str, what: str, kind: str) -> str:
    """The mean over seeds of one entry of the comparison; a dash where a seed has none."""
    entries = [seed.closed_form[label][what] for seed in results.seeds]
    values = [entry[kind] for entry in entries if entry is not None and kind in entry]
    return f"{100 * sum(values) / len(values):.1f}" if values else "–"
