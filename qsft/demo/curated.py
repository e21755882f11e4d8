"""The data-level methods in the demo's world: each turns the noisy demonstrations into others, with the base's help."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from datasets import Dataset, load_from_disk

from qsft.curate.catalogue import Options
from qsft.curate.curation import Material, curate
from qsft.data.sources import DataSettings
from qsft.demo.contenders import Method
from qsft.demo.measure import LONGEST
from qsft.demo.scenario import Scenario
from qsft.demo.training import Phases, load
from qsft.demo.world import EOS, PROMPT_LENGTH, WORDS, ClockProblem, given_answer, make_tokenizer

OTHERS = 3  # further demonstrators that GRAPE chooses from
ATTEMPTS = {"star": 2}  # at most: the second, with the hint, is for failures
MOST = {"critical": 512}  # problems: it tries every token, so it costs most

SETTINGS: dict[str, dict[str, Any]] = {
    "rft": {"n": 4, "max_new_tokens": LONGEST},
    "star": {"hint": "{question} the clock knows {gold}", "max_new_tokens": LONGEST},
    "grape": {"columns": "others"},
    "critical": {"alternatives": 2, "max_new_tokens": LONGEST},
}
OPTIONS = Options(gold="qsft.demo.curated:answer", verifier="qsft.demo.curated:verify", fresh=True)


def curated_rows(scenario: Scenario, method: Method, data: Dataset, base: Path, out: Path, phases: Phases) -> Dataset:
    """As many documents as the demonstrations are, drawn from what a method makes of them: all train equally long."""
    name = str(method.curate)
    rows = data.select(range(min(len(data), MOST.get(name, len(data)))))
    rows = rows.add_column("others", other_demonstrations(rows, scenario)) if name == "grape" else rows
    responses = len(rows) * SETTINGS[name].get("n", 1) * ATTEMPTS.get(name, 1)
    material = Material(rows, DataSettings(), load(base), make_tokenizer())
    with phases.phase(f"curate by {method.label}", responses, "responses") as progress:
        curate(name, SETTINGS[name], material, out, OPTIONS, watch=lambda record: progress.advance())
    made = load_from_disk(str(out)).shuffle(seed=scenario.seed)
    made = made.select_columns([name for name in ("input_ids", "labels", "critical") if name in made.column_names])
    return made.select([at % len(made) for at in range(len(data))])


def other_demonstrations(rows: Dataset, scenario: Scenario) -> list[list[str]]:
    """Further solutions to the same problems, by demonstrators who slip as often, without <eos>."""
    random, problems = Random(f"others {scenario.seed}"), map(problem_of, rows["input_ids"])
    write = scenario.demonstrator.solution
    return [[" ".join(write(problem, random)[:-1]) for _ in range(OTHERS)] for problem in problems]


def problem_of(ids: list[int]) -> ClockProblem:
    """The problem that a document begins with."""
    _, start, *operations, _ = (WORDS[i] for i in ids[:PROMPT_LENGTH])
    return ClockProblem(int(start), tuple(operations))


def answer(row: Mapping[str, Any]) -> str:
    """The true answer of a document's problem."""
    return problem_of(row["input_ids"]).answer


def verify(response: str, row: Mapping[str, Any]) -> bool:
    """Whether a response that came to its end gives the true answer."""
    return bool(given_answer([*response.split(), EOS]) == answer(row))
