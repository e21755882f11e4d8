"""Several trainings of one recipe, an evaluation of each, and one comparison of all.

Every run is a process of its own, started as a user would start it. Targets that read a teacher share its cache;
targets that read the reference share the reference's. `sweep.json` records the state of each run, so that a killed
sweep continues.
"""

import itertools
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from qsft.evals.compare import compare
from qsft.evals.published import published_setting
from qsft.evals.report import summarize
from qsft.experiments.eval_request import EvalRequest
from qsft.experiments.find_evaluations import SWEEP_RECORD, find_methods
from qsft.files import read_json, shown, write_json
from qsft.ledger import changed_settings, move_aside
from qsft.recipe.job import configure
from qsft.recipe.keys import keys, read_word
from qsft.recipe.prepare import check_teacher_given
from qsft.recipe.recipe_file import Recipe, read_recipe, run_name
from qsft.recipe.relaunch import LAUNCHER_OPTIONS, run_child, split_words
from qsft.redaction import redact_words
from qsft.run_directory import BASE, LAST, TRAINER_STATE, checkpoint_paths
from qsft.targets.registry import TARGETS, make_target
from qsft.train.checkpoints import resolve_checkpoint
from qsft.validation import counted, did_you_mean

TRAIN = "train"
EVAL = "eval"
COMPARISON = "comparison"  # the directory of the comparison of all runs


class Run(NamedTuple):
    """One point of the grid: a target (or `base`) with its hyper-parameters."""

    target: str
    hparams: dict[str, Any]

    @property
    def name(self) -> str:
        return run_name(self.target, self.hparams)


def expand_grid(axes: Sequence[str]) -> list[Run]:
    """Return the runs of `target=sft,target_sft eta=0.2,0.5`.

    A hyper-parameter is varied for the targets that have it.

    >>> [run.name for run in expand_grid(["target=sft,target_sft", "eta=0.2,0.5"])]
    ['sft', 'target_sft-eta0.2', 'target_sft-eta0.5']

    Raises:
        ValueError: A target, a hyper-parameter or a value is not valid.
    """
    values = _parse_axes(axes)
    targets = [str(name) for name in values.pop("target", ["target_sft"])]
    runs = [run for target in targets for run in _points(target, values)]
    for name in values:
        if not any(name in run.hparams for run in runs):
            _raise_unknown_axis(name, targets)
    return runs


def _parse_axes(axes: Sequence[str]) -> dict[str, list[Any]]:
    """Return {name: values} of `name=value,value` words, without repeated values."""
    found: dict[str, list[Any]] = {}
    for axis in axes:
        name, _, text = axis.partition("=")
        values = text.split(",")
        if not name or not all(values):
            hyper_parameters = {name for target in TARGETS.values() for name in target.hyper_parameters}
            names = {f"{name}=" for name in ("target", *hyper_parameters)}
            guess = "" if f"{name}=" in names else did_you_mean(f"{name}=", names)
            raise ValueError(
                f"--grid {axis!r} is not `name=value,value`, such as target=sft,dft or eta=0.2,0.5.{guess}"
            )
        if name in found:
            raise ValueError(f"--grid has {name} twice. Write all its values together: {name}=value,value.")
        found[name] = [read_word(value) for value in dict.fromkeys(values)]
    return found


def _points(target: str, axes: Mapping[str, Sequence[Any]]) -> Iterator[Run]:
    """Yield the runs of one target; every combination of values is validated."""
    if target == BASE:
        yield Run(BASE, {})
        return
    make_target(target)
    names = [name for name in axes if name in TARGETS[target].hyper_parameters]
    for values in itertools.product(*(axes[name] for name in names)):
        hparams = dict(zip(names, values))
        if hparams:
            make_target(target, **hparams)
        yield Run(target, hparams)


def _raise_unknown_axis(name: str, targets: Sequence[str]) -> None:
    parameters = {parameter for target in targets if target != BASE for parameter in TARGETS[target].hyper_parameters}
    message = (
        f"none of the targets {', '.join(targets)} has a hyper-parameter {name!r}."
        f"{did_you_mean(name, {*parameters, 'target'})} They have: {', '.join(sorted(parameters)) or 'none'}."
    )
    if name in keys():
        message += (
            f" A key of the recipe holds for the whole sweep: give --{name} value, and another --output_dir for "
            "another value."
        )
    raise ValueError(message)


@dataclass(frozen=True)
class Sweep:
    """A recipe, the runs of its grid and where they go.

    Args:
        recipe: name or file of the recipe; None if `overrides` give the whole training.
        runs: the points of the grid.
        output_dir: directory of all runs.
        overrides: options of `qsft train` for every training, those of the launcher included.
        eval_options: options of `qsft eval` by name. Tasks and protocol that are not among them are the recipe's.
        paper: published numbers to show beside; None for the recipe's own, if it is one of the paper's.
    """

    recipe: str | None
    runs: Sequence[Run]
    output_dir: Path
    overrides: Sequence[str] = ()
    eval_options: Mapping[str, Any] = field(default_factory=dict)
    paper: str | None = None

    @cached_property
    def recipe_overrides(self) -> list[str]:
        """The overrides that results depend on: the number of processes is not among them."""
        return split_words(self.overrides, ("accelerate_config", *LAUNCHER_OPTIONS))[1]

    def recipe_of(self, run: Run) -> Recipe:
        """Return the recipe with the target of a run."""
        if run.target == BASE:
            return read_recipe(self.recipe, self.recipe_overrides)
        return read_recipe(self.recipe, [*self._run_options(run), *self.recipe_overrides])

    def _run_options(self, run: Run) -> list[str]:
        hparams = [f"--target_kwargs.{key}={value}" for key, value in run.hparams.items()]
        return ["--target", run.target, *hparams, "--output_dir", str(self.output_dir / run.name)]

    def check_runs(self) -> None:
        """Raise ValueError for a wrong key, or a target without its teacher, in any of the runs."""
        for run in self.runs:
            recipe = self.recipe_of(run)
            if run.target != BASE:
                check_teacher_given(configure(recipe, processes=1))

    def eval_request(self, run: Run) -> EvalRequest:
        if run.target == BASE:
            return EvalRequest.for_untrained_student(self.recipe_of(run).values, self.eval_options)
        return EvalRequest.for_run(self.recipe_of(run), self.eval_options)

    def commands(self, run: Run) -> dict[str, list[str]]:
        """Return the command of each step of a run."""
        qsft = [sys.executable, "-m", "qsft"]
        evaluate = [*qsft, "eval", *self.eval_request(run).argv()]
        if run.target == BASE:
            return {EVAL: evaluate}
        recipe = [] if self.recipe is None else [self.recipe]
        train = [*qsft, "train", *recipe, *self._run_options(run), *self.overrides]
        return {TRAIN: [*train, *_resume_options(self.output_dir / run.name)], EVAL: evaluate}

    def settings(self, run: Run) -> dict[str, Any]:
        """Return what the result of each step depends on, as sweep.json records it."""
        evaluation = {EVAL: self.eval_request(run).as_json()}
        if run.target == BASE:
            return evaluation
        return {TRAIN: {"recipe": self.recipe, "overrides": redact_words(self.recipe_overrides)}, **evaluation}

    def plan(self) -> str:
        """Return a table of the runs and of the steps each still needs.

        Raises:
            ValueError: A run was started with other settings.
        """
        recipe = "" if self.recipe is None else f" of {self.recipe}"
        lines = [f"{counted(len(self.runs), 'run')}{recipe} in {shown(self.output_dir)}:"]
        for run in self.runs:
            self._check_settings(run)
            remaining = [step for step in self.settings(run) if step not in self.completed(run)]
            lines.append(f"  {run.name:32} {' then '.join(remaining) or 'done'}")
        return "\n".join(lines)

    def move_aside(self) -> Path | None:
        """Move the record, the runs and the comparison of an earlier sweep aside; return where they are now."""
        names = [SWEEP_RECORD, COMPARISON, *(run.name for run in self.runs)]
        return move_aside(self.output_dir, [self.output_dir / name for name in names])

    def execute(self) -> None:
        """Run every step that is not complete, then write and print the comparison of all runs with the first."""
        for number, run in enumerate(self.runs, 1):
            for step, command in self.commands(run).items():
                if step not in self.completed(run):
                    shown_command = shlex.join(redact_words(command[1:]))
                    print(f"\n[{number}/{len(self.runs)}] {run.name}: {step}\n{shown_command}", flush=True)
                    self._run_step(run, step, command)
        evaluations = {run.name: self.eval_request(run).output_dir for run in self.runs}
        published = self._published()
        if len(evaluations) == 1 and published is None:
            [directory] = evaluations.values()
            print(f"\nThe only run is evaluated in {shown(directory)}; there is nothing to compare it with.")
            return
        comparison = compare(
            list(evaluations.values()), published, names=list(evaluations), trained_with=find_methods(evaluations)
        )
        print(f"\n{comparison}\n{shown(comparison.write(self.output_dir / COMPARISON))}")

    def _published(self) -> str | None:
        """The published numbers to compare with: those requested, or the recipe's if they are about these tasks."""
        if self.paper is not None:
            return self.paper
        if self.recipe is None:
            return None
        name = Path(self.recipe).stem
        published = published_setting(name)
        if published is None:
            return None
        tasks = list(summarize(self.eval_request(self.runs[0]).output_dir).results)
        return name if published.shares(tasks) else None

    def state(self) -> dict[str, dict[str, Any]]:
        """Return, for each run that was started, the settings of its steps and the steps that are complete."""
        file = self.output_dir / SWEEP_RECORD
        if not file.exists():
            return {}
        return read_json(file, "Delete it: complete runs are then trained and evaluated again.")

    def completed(self, run: Run) -> list[str]:
        return self.state().get(run.name, {}).get("done", [])

    def _check_settings(self, run: Run) -> None:
        """Raise ValueError where a step that left results was started with other settings."""
        recorded = self.state().get(run.name, {})
        completed = self.completed(run)
        has_results = {
            TRAIN: TRAIN in completed or bool(checkpoint_paths(self.output_dir / run.name)),
            EVAL: EVAL in completed,
        }
        place = shown(self.output_dir)
        for step, settings in self.settings(run).items():
            changed = changed_settings(recorded.get(step, {}), settings)
            if has_results[step] and changed:
                raise ValueError(
                    f"the {step} step of {run.name} in {place} was started with different settings: "
                    f"{'; '.join(changed)}. Give another --output_dir, or pass --overwrite, which moves the earlier "
                    "runs aside and starts again."
                )

    def _run_step(self, run: Run, step: str, command: list[str]) -> None:
        """Run one step and record that it is complete. A training stopped by a signal exits with 0 as well."""
        finished = self.output_dir / run.name / TRAINER_STATE
        if step == TRAIN:
            finished.unlink(missing_ok=True)  # of an earlier run in this directory
        self._write_state(run, self.completed(run))
        code, signaled = run_child(command)
        if code == 0 and (run.target == BASE or finished.is_file()):
            self._write_state(run, [*self.completed(run), step])
        elif not signaled:
            problem = "failed" if code else "was stopped"
            raise ValueError(f"the sweep stopped: {step} of {run.name} {problem}. Rerun the command to continue.")
        if signaled:
            raise KeyboardInterrupt

    def _write_state(self, run: Run, completed: list[str]) -> None:
        state = self.state()
        state[run.name] = {**self.settings(run), "done": completed}
        write_json(self.output_dir / SWEEP_RECORD, state)


def _resume_options(output_dir: Path) -> list[str]:
    """The options with which a training that was stopped or killed continues from its newest complete checkpoint."""
    if not checkpoint_paths(output_dir):
        return []
    try:
        resolve_checkpoint(output_dir, LAST)
    except ValueError:  # killed inside its first save
        return ["--overwrite"]
    return ["--resume_from_checkpoint", LAST]
