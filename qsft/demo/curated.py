"""Training data of the demo's data-level methods, made from the noisy demonstrations with the base's help."""

from pathlib import Path
from random import Random
from typing import Any

from datasets import Dataset, load_from_disk

from qsft.curate.context import CurationInputs
from qsft.curate.curation import curate
from qsft.curate.registry import Options
from qsft.data.sources import DataSettings
from qsft.demo.measure import MAX_NEW_TOKENS
from qsft.demo.scenario import Scenario
from qsft.demo.task import ClockProblem, make_tokenizer
from qsft.demo.training import Phases, load

OTHERS_COLUMN = "others"
OTHER_DEMONSTRATIONS = 3  # further solutions per problem that GRAPE chooses from
SETTINGS: dict[str, dict[str, Any]] = {
    "rft": {"num_samples": 4, "max_new_tokens": MAX_NEW_TOKENS},
    "star": {"hint": "{question} the clock knows {gold}", "max_new_tokens": MAX_NEW_TOKENS},
    "grape": {"columns": OTHERS_COLUMN},
    "critical": {"alternatives": 2, "max_new_tokens": MAX_NEW_TOKENS},
}
OPTIONS = Options(gold="qsft.demo.task:answer", verifier="qsft.demo.task:verify", overwrite=True)
# Responses per problem at most, for the progress bar. STaR tries failed problems again with a hint.
RESPONSES = {"rft": 4, "star": 2, "grape": 1, "critical": 1}
MOST_PROBLEMS = {"critical": 512}  # it tries every token, so it costs most


def curated_demonstrations(
    name: str, scenario: Scenario, data: Dataset, base: Path, output_dir: Path, phases: Phases, label: str
) -> Dataset:
    """Return as many documents as `data` has, drawn from what a data-level method makes of it.

    The number stays the same so that all methods train equally long.
    """
    examples = data.select(range(min(len(data), MOST_PROBLEMS.get(name, len(data)))))
    if name == "grape":
        examples = examples.add_column(OTHERS_COLUMN, other_demonstrations(examples, scenario))
    inputs = CurationInputs(examples, DataSettings(), load(base), make_tokenizer())
    with phases.phase(f"curate by {label}", len(examples) * RESPONSES[name], "responses") as progress:
        curate(name, SETTINGS[name], inputs, output_dir, OPTIONS, watch=lambda record: progress.advance())
    made = load_from_disk(str(output_dir)).shuffle(seed=scenario.seed)
    columns = [column for column in ("input_ids", "labels", "critical") if column in made.column_names]
    return made.select_columns(columns).select([index % len(made) for index in range(len(data))])


def other_demonstrations(examples: Dataset, scenario: Scenario) -> list[list[str]]:
    """Return further solutions of the same problems, without <eos>, by demonstrators who slip as often."""
    random = Random(f"others {scenario.seed}")
    texts = []
    for input_ids in examples["input_ids"]:
        problem = ClockProblem.from_document(input_ids)
        solutions = [scenario.demonstrator.solution(problem, random) for _ in range(OTHER_DEMONSTRATIONS)]
        texts.append([" ".join(solution[:-1]) for solution in solutions])
    return texts
