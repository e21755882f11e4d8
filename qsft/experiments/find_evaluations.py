"""Find the evaluations that `qsft compare` is given: by directory, by the run they belong to, or as `base`."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from qsft.evals.compare import run_names
from qsft.evals.eval_directory import GRADES
from qsft.evals.published import Method
from qsft.experiments.eval_request import EvalRequest
from qsft.files import read_json
from qsft.recipe.record import read_recipe_record
from qsft.run_directory import BASE, EVALUATION, evaluation_directory, run_of

SWEEP_RECORD = "sweep.json"


def find_evaluations(runs: Sequence[str]) -> dict[str, Path]:
    """Return the evaluation directories of some runs by a short name of each.

    Args:
        runs: evaluations, directories of models that have one, or "base" for their student before training.
    """
    trained = [run for run in runs if run != BASE]
    directories = [_evaluation_in(Path(run)) for run in trained]
    # A run is known by its own name, not that of its evaluation.
    names = run_names([path.parent if path.name == EVALUATION else path for path in directories])
    if BASE not in runs:
        return dict(zip(names, directories))
    base = find_base_evaluation(directories)
    name_of = dict(zip(trained, names))
    directory_of = dict(zip(trained, directories))
    found: dict[str, Path] = {}
    for run in runs:  # the first one is what the others are compared with
        if run == BASE:
            found[BASE] = base
        else:
            found[name_of[run]] = directory_of[run]
    return found


def find_base_evaluation(evaluations: Sequence[Path]) -> Path:
    """Return where the student of some evaluated runs was evaluated before training: by their sweep, or by itself.

    Raises:
        ValueError: the runs have no recipe, or not the same student.
        FileNotFoundError: the student was not evaluated; the message has the command.
    """
    runs = [run_of(path) for path in evaluations]
    for run in runs:
        sweep = run.parent / SWEEP_RECORD
        if sweep.is_file():
            base = read_json(sweep, "Delete it.").get(BASE)
            if base:
                return EvalRequest.from_json(base["eval"]).output_dir
    records = [record for record in map(read_recipe_record, runs) if record is not None]
    students = {record.student for record in records}
    if len(students) != 1:
        named = ", ".join(sorted(map(str, students))) or "none, because no recipe trained them"
        raise ValueError(
            f"{BASE!r} is the student of all runs before training, but the students of these runs are: {named}. "
            f"Give the directory of its evaluation instead of {BASE!r}."
        )
    request = EvalRequest.for_untrained_student(records[0].values, {})
    if not (request.output_dir / GRADES).is_dir():
        command = shlex.join(["qsft", "eval", *request.argv()])
        raise FileNotFoundError(f"{BASE!r} was not evaluated yet. Run `{command}` once.")
    return request.output_dir


def find_methods(evaluations: Mapping[str, Path]) -> dict[str, Method]:
    """Return the target and hyper-parameters of the runs that a recipe trained, by name; `base` is not trained."""
    methods: dict[str, Method] = {}
    for name, directory in evaluations.items():
        record = read_recipe_record(directory)
        if name == BASE:
            methods[name] = Method(BASE, {})
        elif record is not None:
            methods[name] = Method(record.target, record.target_kwargs)
    return methods


def _evaluation_in(path: Path) -> Path:
    """The evaluation inside a run's directory, or the path itself."""
    inside = evaluation_directory(path)
    if (inside / GRADES).is_dir() and not (path / GRADES).is_dir():
        return inside
    return path
