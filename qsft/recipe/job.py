"""The job that a recipe describes: configurations of model and trainer, the target, the batch of each process.

Configuring only computes. Loading, curating and training are in prepare.py and run.py.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from trl import ModelConfig

from qsft.processes import world_size
from qsft.recipe.keys import RecipeSettings
from qsft.recipe.recipe_file import Recipe
from qsft.targets.registry import DEFAULT_TARGET, make_target
from qsft.targets.target import Target
from qsft.train.config import TargetSFTConfig, as_dict
from qsft.validation import counted

DEFAULT_BATCH = 8  # TrainingArguments' per_device_train_batch_size


@dataclass(frozen=True)
class Job:
    """What a recipe means for a number of processes.

    Args:
        recipe: the recipe.
        settings: the keys that are neither the model's nor the trainer's.
        model: TRL's configuration of the model.
        args: the configuration of the trainer.
        processes: number of processes.
        target: the target.
    """

    recipe: Recipe
    settings: RecipeSettings
    model: ModelConfig
    args: TargetSFTConfig
    processes: int
    target: Target

    @property
    def student(self) -> str:
        """The model to train: a hub id, a directory, or the `module:function` that makes it."""
        return str(self.model.model_name_or_path)

    @property
    def rows_per_step(self) -> int:
        """The number that the training examples are cut to a multiple of; packing makes new examples, so it is 1."""
        if self.args.packing:
            return 1
        return self.settings.global_batch_size or 1

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step over all processes."""
        return self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps * self.processes

    def optimizer_steps(self, examples: int) -> int | str:
        """Steps of the whole run, or a text where packing decides how many examples there are."""
        if self.args.max_steps > 0:
            return self.args.max_steps
        if self.args.packing:
            return "known after packing"
        steps_per_epoch = math.ceil(examples / self.global_batch)
        return math.ceil(steps_per_epoch * self.args.num_train_epochs)


def on_this_device(recipe: Recipe) -> Recipe:
    """Return the recipe for work that is not training, which a machine without a GPU does on its CPU."""
    if torch.cuda.is_available():
        return recipe
    return replace(recipe, values={**recipe.values, "use_cpu": True, "bf16": False, "fp16": False})


def configure(recipe: Recipe, processes: int | None = None) -> Job:
    """Return the job that a recipe describes; nothing is loaded, downloaded or trained.

    Args:
        recipe: the recipe.
        processes: number of processes to plan for, on no particular device. By default those of this launch, on the
            device that it trains on.

    Raises:
        ValueError: A target, batch, model or device does not fit.
    """
    settings = recipe.settings
    model = ModelConfig(**recipe.part(ModelConfig))
    values = recipe.part(TargetSFTConfig)
    target = make_target(recipe.values.get("target", DEFAULT_TARGET), **recipe.values.get("target_kwargs") or {})
    if model.model_name_or_path is None:
        raise ValueError("no model is given. Add --model_name_or_path NAME: a model id or path.")
    is_planned = processes is not None
    count = world_size() if processes is None else processes
    values["output_dir"] = recipe.output_dir
    if settings.global_batch_size is not None:
        values |= _batch_values(settings.global_batch_size, values, count)
    if is_planned:
        values["use_cpu"] = True
    job = Job(recipe, settings, model, _trainer_config(values, model), count, target)
    if not is_planned and job.args.world_size != count:
        raise ValueError(
            f"only {job.args.world_size} of {count} processes take part. With accelerate on the CPU use "
            "recipes/accelerate/cpu.yaml: `--cpu` and MULTI_CPU start one process only."
        )
    return job


def _batch_values(global_batch: int, values: dict[str, Any], processes: int) -> dict[str, int]:
    """The batch of each process and the accumulation that make up the global batch."""
    per_device = values.get("per_device_train_batch_size", DEFAULT_BATCH)
    batch, accumulation = split_batch(global_batch, per_device, processes)
    given = values.get("gradient_accumulation_steps")
    if given is not None and given != accumulation:
        raise ValueError(
            f"gradient_accumulation_steps={given} contradicts global_batch_size={global_batch}: with "
            f"{counted(processes, 'process')} and at most {counted(per_device, 'sequence')} per process it is "
            f"{accumulation}. Leave gradient_accumulation_steps out, or set global_batch_size to null and choose "
            "both batch keys yourself."
        )
    return {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}


def _trainer_config(values: dict[str, Any], model: ModelConfig) -> TargetSFTConfig:
    try:
        args = TargetSFTConfig(**values)
    except ValueError as error:
        if "use_cpu" not in str(error):
            raise
        raise ValueError(
            "this training is in bf16 on a GPU, and no GPU was found. To try it on the CPU add --use_cpu true --bf16 "
            "false, with small models; `qsft plan` does not need a GPU."
        ) from error
    loading = {
        "revision": model.model_revision,
        "trust_remote_code": args.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
    }
    args.model_init_kwargs = {**loading, **as_dict(args.model_init_kwargs)}
    return args


def split_batch(global_batch: int, per_device: int, processes: int) -> tuple[int, int]:
    """Return (batch of each process, accumulation steps), whose product over all processes is the global batch.

    Args:
        global_batch: sequences per optimizer step.
        per_device: the largest batch of one process.
        processes: number of processes.

    >>> split_batch(256, 16, 8)
    (16, 2)
    """
    if global_batch < 1 or per_device < 1:
        raise ValueError(
            f"global_batch_size={global_batch} and per_device_train_batch_size={per_device} must be at least 1."
        )
    share, remainder = divmod(global_batch, processes)
    if remainder:
        raise ValueError(
            f"global_batch_size={global_batch} cannot be divided over {processes} processes. Process counts that work: "
            f"{', '.join(map(str, divisors(global_batch)))}. Or set --global_batch_size to a multiple of {processes}."
        )
    batch = max(size for size in divisors(share) if size <= per_device)
    return batch, share // batch


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
