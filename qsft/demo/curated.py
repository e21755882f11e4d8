"""The data-level methods in the demo's world: each turns the noisy demonstrations into others, with the base's help."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from datasets import Dataset, load_from_disk

from qsft.data.curate.forms import Tokens
from qsft.data.curate.ledger import Ledger
from qsft.data.curate.problems import read_problems
from qsft.data.curate.run import GENERATIONS, curate
from qsft.data.curate.workshop import Workshop
from qsft.demo.measure import LONGEST
from qsft.demo.methods import Method
from qsft.demo.models import load
from qsft.demo.progress import Advance, Phases
from qsft.demo.reading import given_answer
from qsft.demo.settings import Settings
from qsft.demo.vocabulary import EOS, WORDS, make_tokenizer
from qsft.demo.world import PROMPT_LENGTH, Problem
from qsft.evals.model_under_test import ModelUnderTest, Processes
from qsft.evals.protocol import Sampling
from qsft.evals.request import Request, context_of

OTHERS = 3  # further demonstrators that GRAPE chooses from
ATTEMPTS = {"star": 2}  # at most: the second, with the hint, is for failures
MOST = {"critical": 512}  # problems: it tries every token, so it costs most

SETTINGS: dict[str, dict[str, Any]] = {
    "rft": {"n": 4, "max_new_tokens": LONGEST},
    "star": {"hint": "{question} the clock knows {gold}", "max_new_tokens": LONGEST},
    "grape": {"columns": "others"},
    "critical": {"alternatives": 2, "max_new_tokens": LONGEST},
}


def curated_rows(settings: Settings, method: Method, data: Dataset, base: Path, out: Path, phases: Phases) -> Dataset:
    """As many documents as the demonstrations are, drawn from what a method makes of them: all train equally long."""
    name = str(method.curate)
    rows = with_answers(data.select(range(min(len(data), MOST.get(name, len(data))))))
    rows = rows.add_column("others", other_demonstrations(rows, settings)) if name == "grape" else rows
    problems = read_problems(rows, Tokens(make_tokenizer()), gold="answer")
    responses = len(problems) * SETTINGS[name].get("n", 1) * ATTEMPTS.get(name, 1)
    with phases.phase(f"curate by {method.label}", responses, "responses") as advance:
        workshop = make_workshop(base, out / GENERATIONS, advance)
        curate(name, SETTINGS[name], problems, workshop, out, made_by={"noise": settings.noise}, fresh=True)
    made = load_from_disk(str(out)).shuffle(seed=settings.seed)
    made = made.select_columns([name for name in ("input_ids", "labels", "critical") if name in made.column_names])
    return made.select([at % len(made) for at in range(len(data))])


def make_workshop(base: Path, directory: Path, advance: Advance) -> Workshop:
    """The base, the evaluator's sampler and the world's own rule."""
    model, tokenizer = load(base), make_tokenizer()
    source = ModelUnderTest(model, tokenizer)
    return Workshop(
        ledger=Ledger(directory, Processes(), lambda stage, total, done: Shown(advance)),
        draw=lambda wanted, how, _: source.sampler(Sampling(n=1, **how)).sample([Request(*one) for one in wanted]),
        verify=lambda response, problem: verify(response, problem.row),
        model=lambda: (model, tokenizer),
        context=context_of(model.config),
    )


class Shown:
    """Tells the demo's bar about every response."""

    def __init__(self, advance: Advance) -> None:
        self.advance = advance
        self.grades: list[bool] = []

    def add(self, tokens: int) -> None:
        """One more record."""
        self.advance(1)

    def __enter__(self) -> "Shown":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def with_answers(rows: Dataset) -> Dataset:
    """The rows with the true answer of each problem as a column."""
    return rows.add_column("answer", [problem_of(ids).answer for ids in rows["input_ids"]])


def other_demonstrations(rows: Dataset, settings: Settings) -> list[list[str]]:
    """Further solutions to the same problems, by demonstrators who slip as often, without <eos>."""
    random = Random(f"others {settings.seed}")
    problems = [problem_of(ids) for ids in rows["input_ids"]]
    return [
        [" ".join(settings.demonstrator.solution(problem, random)[:-1]) for _ in range(OTHERS)] for problem in problems
    ]


def problem_of(ids: list[int]) -> Problem:
    """The problem that a document begins with."""
    _, start, *operations, _ = (WORDS[i] for i in ids[:PROMPT_LENGTH])
    return Problem(int(start), tuple(operations))


def verify(response: str, row: Mapping[str, Any]) -> bool:
    """Whether a response that came to its end gives the true answer."""
    return bool(given_answer([*response.split(), EOS]) == row["answer"])
