"""What a data-level method is handed: models to draw from, a trainer between rounds, a verifier."""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsft.data.curate.run import write
from qsft.data.curate.workshop import Kept, Request, Response, Verify
from qsft.recipe.job import Job, configure
from qsft.recipe.keys import ORIGIN

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from qsft.evals.model_under_test import ModelUnderTest, Processes


@dataclass(frozen=True)
class Options:
    """How a method is run, beside its own settings."""

    gold: str | None = None
    verifier: str | None = None
    question_column: str | None = None
    response_column: str | None = None
    limit: int | None = None
    backend: str = "auto"
    dtype: str = "auto"
    rows_at_once: int | None = None
    tensor_parallel_size: int = 1
    fresh: bool = False


@dataclass
class Models:
    """The job's model and those of later rounds, one at a time in memory."""

    job: Job
    options: Options
    group: "Processes"
    looks_inside: bool = False
    _loaded: "tuple[str, ModelUnderTest] | None" = field(default=None, repr=False)

    def source(self, path: str | None = None) -> "ModelUnderTest":
        """The model at a path, or the job's own; loading one drops the other."""
        from qsft.evals.model_under_test import ModelUnderTest

        path = path or str(self.job.model.model_name_or_path)
        if self._loaded is None or self._loaded[0] != path:
            self.free()
            backend = "transformers" if self.looks_inside else self.options.backend
            found = ModelUnderTest(
                path,
                self.job.tokenizer,
                backend,
                self.options.dtype,
                self.options.rows_at_once,
                self.options.tensor_parallel_size,
                device=self.group.device,
                processes=self.group.count,
            )
            self._loaded = path, found
        return self._loaded[1]

    def draw(self, requests: Sequence[Request], how: Mapping[str, Any], path: str | None) -> Iterable[Response]:
        """Responses as they finish."""
        from qsft.evals.request import Request as Asked

        drawn: Iterable[Response] = self._sampler(path, **how).sample([Asked(*request) for request in requests])
        return drawn

    def inside(self) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
        """The model itself."""
        sampler = self._sampler(None)
        return sampler.model, sampler.tokenizer

    def _sampler(self, path: str | None, **how: Any) -> Any:
        from qsft.evals.protocol import Sampling
        from qsft.teacher.source import whole_in_every_process

        with whole_in_every_process():  # each process draws by itself, though training may shard the model
            return self.source(path).sampler(Sampling(**{"n": 1, **how}))

    @property
    def context(self) -> int | None:
        """How many tokens the model can read."""
        from transformers import AutoConfig

        from qsft.evals.request import context_of

        return context_of(AutoConfig.from_pretrained(str(self.job.model.model_name_or_path)))

    def record(self) -> dict[str, Any]:
        """What must be the same for a run to be continued."""
        source = self.source()
        return {"name": source.name, **source.record()}

    def free(self) -> None:
        """Give the memory back."""
        import gc

        import torch

        self._loaded = None
        gc.collect()
        torch.cuda.empty_cache()


def train_round(models: Models, kept: Sequence[Kept], start: str | None, directory: Path) -> str:
    """The model of a next round: `start` (or the job's model) trained on the rows by the recipe's own settings."""
    model, done = directory / "model", directory / "done.json"
    if done.is_file():
        return str(model)
    if models.group.rank == 0:
        write(directory / "data", kept, {"round": directory.name})
    models.group.wait()
    models.free()
    settled = {"curate", *ORIGIN}
    values = {key: value for key, value in models.job.recipe.values.items() if key not in settled}
    values |= {
        "dataset": str(directory / "data"),
        "model_name_or_path": start or str(models.job.model.model_name_or_path),
        "output_dir": str(model),
    }
    values.setdefault("target", "sft")
    trainer = configure(replace(models.job.recipe, values=values)).trainer()
    trainer.train()
    trainer.save_model(str(model))
    trainer.accelerator.wait_for_everyone()
    if models.group.rank == 0:
        done.write_text("{}\n", encoding="utf-8")
    models.group.wait()
    return str(model)


@contextmanager
def verifier(name: str | None) -> Iterator[Verify]:
    """The evaluator's grading in processes of its own, or the user's `module:function`, called (response, row)."""
    if name is not None:
        function = load_function(name)
        yield lambda text, problem: bool(function(text, dict(problem.row)))
        return
    from qsft.evals.grade import Judges

    with Judges() as judges:
        yield lambda text, problem: judges.submit(text, problem.gold, options=problem.options)


def load_function(name: str) -> Callable[..., Any]:
    """The function that `module:function` names; the current directory is searched too."""
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise ValueError(f"--verifier {name!r} is not module:function, such as checks:is_right for checks.py here.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--verifier {name!r} cannot be loaded: {error}.") from error
    return found  # type: ignore[no-any-return]
