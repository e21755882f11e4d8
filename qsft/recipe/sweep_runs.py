"""Several trainings of one recipe, an evaluation of each, one comparison: the paper's main table as one command.

Every run is a process of its own, started as a user would start it, so nothing of one run can leak into the next.
Rows that read a teacher share its cache, rows that anchor share the base's. `sweep.json` says how far each run is; a
killed sweep continues.
"""

import inspect
import itertools
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from qsft.evals.comparison import compare, published_setting
from qsft.evals.eval_directory import graded_tasks
from qsft.files import read_json, shown, write_json
from qsft.recipe.keys import read_word
from qsft.recipe.recipe_file import read_recipe, run_name
from qsft.recipe.relaunch import LAUNCHER_KEYS, run_child, split_words
from qsft.recipe.trained import BASE, PLAIN, base_words
from qsft.targets.registry import TARGETS, make_target
from qsft.train.checkpoints import LAST, checkpoints, resolve_checkpoint
from qsft.validation import did_you_mean

TRAINED = "trainer_state.json"  # what a training writes last, after the model; one that a signal stopped has none


class Run(NamedTuple):
    """One point of the grid."""

    target: str
    hparams: dict[str, Any]

    @property
    def name(self) -> str:
        return run_name(*self)


def expand_grid(words: Sequence[str]) -> list[Run]:
    """The runs of `target=sft,target eta=0.2,0.5`; a hyper-parameter is varied for the targets that take it.

    >>> [run.name for run in expand_grid(["target=sft,target", "eta=0.2,0.5"])]
    ['sft', 'target_sft-eta0.2', 'target_sft-eta0.5']
    """
    axes: dict[str, list[Any]] = {}
    for word in words:
        name, _, values = word.partition("=")
        if not name or not all(values.split(",")):
            raise ValueError(f"--grid {word!r} is not `name=value,value`, such as target=sft,dft or eta=0.2,0.5.")
        if name in axes:
            raise ValueError(f"--grid says {name} twice. Write all its values as one word: {name}=value,value.")
        axes[name] = [read_word(value) for value in dict.fromkeys(values.split(","))]
    targets = [str(name) for name in axes.pop("target", ["target_sft"])]
    runs = [run for target in targets for run in _points(target, axes)]
    for name in axes:
        if not any(name in run.hparams for run in runs):
            rows = [TARGETS[target] for target in targets if target != BASE]
            known = {key for row in rows for key in inspect.signature(row).parameters}
            raise ValueError(
                f"none of the targets {', '.join(targets)} has a hyper-parameter {name!r}.{did_you_mean(name, known)} "
                f"They take: {', '.join(sorted(known)) or 'none'}. A key of the recipe holds for the whole sweep: "
                f"--{name} value, and another --directory for another value."
            )
    return runs


def _points(target: str, axes: dict[str, list[Any]]) -> Iterator[Run]:
    """The target's runs; an unknown name and a wrong value are refused before anything runs."""
    if target != BASE:
        make_target(target)
    names = [name for name in axes if target != BASE and name in inspect.signature(TARGETS[target]).parameters]
    for values in itertools.product(*(axes[name] for name in names)):
        run = Run(target, dict(zip(names, values)))
        if names:
            make_target(target, **run.hparams)
        yield run


def make_sweep(asked: Namespace) -> "Sweep":
    """The sweep that the options of `qsft sweep` describe; a wrong key is refused now, not in the third run."""
    recipe = read_recipe(asked.recipe, without_launcher(asked.overrides))
    place = Path(asked.directory or f"sweeps/{recipe.name}")
    return Sweep(asked.recipe, expand_grid(asked.grid), place, asked.overrides, shlex.split(asked.eval), asked.paper)


def without_launcher(words: list[str]) -> list[str]:
    """What the results of a training depend on: on how many processes it runs is not part of it."""
    return split_words(words, ("accelerate_config", *LAUNCHER_KEYS))[1]


@dataclass(frozen=True)
class Sweep:
    """A recipe, the runs of its grid and where they go."""

    recipe: str
    runs: list[Run]
    directory: Path
    train_words: list[str]
    eval_words: list[str]  # tasks and protocol, unless they are among them, are what the run's recipe says
    paper: str | None = None  # published numbers to put beside; None is the recipe's own, if it is the paper's

    def commands(self, run: Run) -> dict[str, list[str]]:
        output, qsft = self.directory / run.name, [sys.executable, "-m", "qsft"]
        if run.target == BASE:
            return {"eval": [*qsft, "eval", *self.words(run)["eval"]]}
        hparams = [f"--target_kwargs.{key}={value}" for key, value in run.hparams.items()]
        train = ["train", self.recipe, "--target", run.target, *hparams, "--output_dir", str(output), *self.train_words]
        evaluate = ["eval", str(output), *self.eval_words]
        return {"train": [*qsft, *train, *_continued(output)], "eval": [*qsft, *evaluate]}

    def words(self, run: Run) -> dict[str, list[str]]:
        """What the results of each step of a run depend on."""
        own = without_launcher(self.train_words)
        if run.target == BASE:
            return {"eval": base_words(read_recipe(self.recipe, [*own, *PLAIN]).values, self.eval_words)}
        return {"train": [self.recipe, *own], "eval": self.eval_words}

    def plan(self) -> str:
        """The runs and what is left to do for each; runs that were started with different arguments are refused."""
        lines = [f"{len(self.runs)} runs of {self.recipe} in {shown(self.directory)}:"]
        for run in self.runs:
            self._refuse_different_words(run)
            left = [step for step in self.words(run) if step not in self.done(run)]
            lines.append(f"  {run.name:32} {' then '.join(left) or 'done'}")
        return "\n".join(lines)

    def state(self) -> dict[str, dict[str, list[str]]]:
        """Of each run that was started: the words of its training and evaluation, and the steps that are done."""
        file = self.directory / "sweep.json"
        return read_json(file, "Delete it: finished runs are trained and evaluated again.") if file.exists() else {}

    def done(self, run: Run) -> list[str]:
        return self.state().get(run.name, {}).get("done", [])

    def execute(self) -> None:
        """Run what is not done yet, then write and print the comparison of all runs with the first."""
        for number, run in enumerate(self.runs, 1):
            for step, command in self.commands(run).items():
                if step not in self.done(run):
                    print(f"\n[{number}/{len(self.runs)}] {run.name}: {step}\n{shlex.join(command[1:])}", flush=True)
                    self._start(run, step, command)
        runs = {run.name: self.evaluation(run) for run in self.runs}
        # What the paper prints, if that is something about the tasks that were measured.
        table = published_setting(Path(self.recipe).stem)
        printed = table and table.shares(graded_tasks(self.evaluation(self.runs[0])))
        paper = self.paper or (Path(self.recipe).stem if printed else None)
        comparison = compare(list(runs.values()), paper, names=list(runs))
        print(f"\n{comparison}\n{shown(comparison.write(self.directory / 'comparison'))}")

    def evaluation(self, run: Run) -> Path:
        """Where a run's evaluation is; that of the base is shared with other sweeps."""
        return Path(self.words(run)["eval"][-1]) if run.target == BASE else self.directory / run.name / "eval"

    def _refuse_different_words(self, run: Run) -> None:
        started, done, place = self.state().get(run.name, {}), self.done(run), shown(self.directory)
        kept = {"train": "train" in done or bool(checkpoints(self.directory / run.name)), "eval": "eval" in done}
        for step, words in self.words(run).items():
            if kept[step] and started.get(step) != words:
                raise ValueError(
                    f"the {step} step of {run.name} in {place} was started with different arguments: "
                    f"`{shlex.join(started.get(step, ['unknown']))}` there, `{shlex.join(words)}` now. "
                    f"Give another --directory, or delete {place}/{run.name} and its entry in sweep.json."
                )

    def _start(self, run: Run, step: str, command: list[str]) -> None:
        """Run one step and write down that it is finished; a training that a signal stopped exits with 0 too."""
        trained = self.directory / run.name / TRAINED
        if step == "train":
            trained.unlink(missing_ok=True)  # of a run that was here before
        self._record(run, self.done(run))
        code, signalled = run_child(command)
        if code == 0 and (run.target == BASE or trained.is_file()):
            self._record(run, [*self.done(run), step])
        elif not signalled:
            how = "failed" if code else "was stopped"
            raise ValueError(f"the sweep stopped: {step} of {run.name} {how}. Rerun the command to continue.")
        if signalled:
            raise KeyboardInterrupt  # the command says that it can be repeated

    def _record(self, run: Run, done: list[str]) -> None:
        write_json(self.directory / "sweep.json", {**self.state(), run.name: {**self.words(run), "done": done}})


def _continued(output: Path) -> list[str]:
    """How a training goes on that was stopped or killed before: from its newest whole checkpoint, if it has one."""
    if not checkpoints(output):
        return []
    try:
        resolve_checkpoint(output, LAST)
    except ValueError:  # killed inside its first save
        return ["--overwrite"]
    return ["--resume_from_checkpoint", LAST]
