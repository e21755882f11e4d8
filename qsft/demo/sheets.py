"""The one report of the demo: its tables, charts and sentences, which the terminal, the page and the picture show."""

from dataclasses import dataclass, field

from qsft.demo.contexts import KINDS
from qsft.demo.results import BASE, TOKENS, Results
from qsft.demo.solutions import ERRORS


@dataclass(frozen=True)
class Chart:
    """Values by label: one series or several stacked as bars, otherwise several as points.

    errors   of a single series
    dots     by series and label: a value for every seed
    """

    series: dict[str, list[float]]
    unit: str
    errors: list[float] = field(default_factory=list)
    dots: dict[str, list[list[float]]] = field(default_factory=dict)
    stacked: bool = True
    methods: frozenset[str] = frozenset()
    controls: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Sheet:
    """A table: `strong` is the first cell of the row to stress, `note` what one should know to read it."""

    heading: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str
    strong: str | None = None
    chart: Chart | None = None


def sheets(results: Results) -> list[Sheet]:
    """All tables, in the order in which they are read."""
    return [accuracy(results), first_errors(results), theory(results), demonstration(results)]


def accuracy(results: Results) -> Sheet:
    """Average@n, greedy and pass@n of every model."""
    scenario, seeds, lines = results.scenario, len(results.seeds), results.lines
    spread = f"over {seeds} seeds" if seeds > 1 else f"over {scenario.problems} problems"
    controls = [method for method in results.methods if method.control]
    notes = [f"± is the standard error {spread}; samples are drawn at temperature 1."]
    notes += [f"{method.label}: {method.control}, a control." for method in controls]
    what = f"Average@{scenario.samples}"
    chart = Chart(
        {what: [line.average for line in lines]},
        f"{what} in % (noise {scenario.noise:g}, {scenario.teacher} teacher)",
        errors=[line.standard_error for line in lines],
        dots={what: [line.by_seed for line in lines]} if seeds > 1 else {},
        methods=frozenset(method.label for method in results.methods),
        controls=frozenset(method.label for method in controls),
    )
    return Sheet(
        "Accuracy",
        "Accuracy in %",
        ("model", what, "greedy", f"pass@{scenario.samples}"),
        [
            (
                line.label,
                f"{line.average:.1f} ± {line.standard_error:.1f}",
                f"{line.greedy:.1f}",
                f"{line.pass_at_n:.1f}",
            )
            for line in lines
        ],
        " ".join(notes),
        _strong(results),
        chart,
    )


def first_errors(results: Results) -> Sheet:
    """Where sampled solutions first go wrong."""
    lines = results.lines
    return Sheet(
        "Why: the first error",
        "First error of a sampled solution, % of samples",
        ("model", *ERRORS),
        [(line.label, *(f"{line.errors[kind]:.1f}" for kind in ERRORS)) for line in lines],
        "+/− and ×: a wrong result by its operation; copying: a wrong operation, operand or answer; form: not a chain.",
        _strong(results),
        Chart({kind: [line.errors[kind] for line in lines] for kind in ERRORS}, "% of samples"),
    )


def theory(results: Results) -> Sheet:
    """The probability of the right result of a step: closed form beside measurement."""
    asked = [(kind, what) for kind in KINDS for what in ("closed form", "measured")]
    return Sheet(
        "Theory beside it",
        "p(right result) of one step, %",
        ("method", *(f"{kind} {what}" for kind, what in asked)),
        [(m.label, *(_mean(results, m.label, kind, what) for kind, what in asked)) for m in results.methods],
        "Closed form: where expected training goes at a fixed context with labels d and teacher T. SFT: d; KD: "
        "c·T+(1−c)·d, a mixture; Target-SFT: ∝ T·(1−d)^(−1/η), a product of experts; a dash: none is known "
        "(the p-loss goes to a vertex).",
        _strong(results),
    )


def demonstration(results: Results) -> Sheet:
    """One demonstration token by token, and where more of them are."""
    shown = results.seeds[0].demonstration
    slips = any(token.slip for token in shown.tokens)
    return Sheet(
        "One demonstration, token by token",
        f"One {'noisy ' if slips else ''}demonstration, token by token: {shown.question}",
        ("token", "p_θ", "p_T", "γ", "top of Q", ""),
        [
            (
                token.word,
                *(f"{value:.2f}" for value in (token.student, token.teacher, token.gamma)),
                token.favourite,
                " ".join(filter(None, [token.tag, "(slip)" if token.slip else ""])),
            )
            for token in shown.tokens
        ],
        "p_θ: the base before fine-tuning; p_T: the teacher; γ: how far Target-SFT trusts the token; top of Q: "
        "the likeliest word of its target. rescue: the base finds the token unlikely, the teacher does not; filter: "
        f"both find it unlikely. More of them, coloured: {results.seeds[0].places[TOKENS]}",
    )


def next_steps(results: Results) -> list[tuple[str, str]]:
    """(command, what it does), what follows most naturally first, with the paths of this very run."""
    scenario, places = results.scenario, results.seeds[0].places
    steps = [
        ("qsft demo --seeds 3", "the same over three seeds", len(results.seeds) > 1),
        ("qsft demo --noise 0", "clean demonstrations: does anything beat plain SFT?", scenario.noise == 0),
        ("qsft demo --wrong-teacher", "a teacher that is sure and wrong", scenario.teacher == "wrong"),
        ("qsft demo --targets sft target:eta=0.2 target:eta=1.0", "any rows of the table, here η varied", False),
        ("qsft targets", "every published variant as a choice of (γ, π̃)", False),
        (
            "qsft train demo",
            "the same Target-SFT model from a recipe; so does accelerate launch recipes/demo.yaml",
            False,
        ),
        (
            f"qsft explore tokens --model {places[BASE]} --teacher_cache {places['teacher cache']}",
            "every token of the demonstrations, coloured by γ",
            False,
        ),
    ]
    return [(command, what) for command, what, done in steps if not done]


def _strong(results: Results) -> str | None:
    return results.hero.label if results.hero else None


def _mean(results: Results, label: str, kind: str, what: str) -> str:
    """The mean over seeds of one entry of the comparison; a dash where a seed has none."""
    entries = [seed.closed_form[label][what] for seed in results.seeds]
    values = [entry[kind] for entry in entries if entry is not None and kind in entry]
    return f"{100 * sum(values) / len(values):.1f}" if values else "–"
