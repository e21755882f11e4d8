"""A recipe made concrete on this machine: the trainer's configuration, the model's, the tokenizer, the data."""

import math
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from trl import ModelConfig, get_peft_config, get_quantization_config

from qsft.data.load import TrainingData, load_training_data, one_of, read_rows
from qsft.inference.loading import explain_missing_model
from qsft.processes import world_size
from qsft.recipe.keys import ORIGIN, RecipeSettings
from qsft.recipe.recipe_file import DEFAULT_TARGET, Recipe
from qsft.targets.registry import make_target
from qsft.targets.target import Target
from qsft.teacher.format.manifest import MANIFEST
from qsft.train.config import TargetSFTConfig, as_dict
from qsft.train.teacher import expected_cache_directory
from qsft.train.trainer import TargetSFTTrainer

DEFAULT_BATCH = 8  # TrainingArguments' per_device_train_batch_size

# Data sets that are made from a seed together with their models, by functions that this room knows by name alone.
WORLDS = {
    "demo": {
        "rows": "qsft.demo.scenario:recipe_rows",  # of a seed
        "models": "qsft.demo.foundation:demo_models",  # of a seed: the base and the teacher
        "gold": "qsft.demo.world:answer",  # how `qsft curate` finds the answer of a row, and verifies one
        "verifier": "qsft.demo.world:verify",
    }
}


@dataclass(frozen=True)
class Job:
    """What a recipe means for `processes` processes. Data and tokenizer are loaded when first asked for."""

    recipe: Recipe
    settings: RecipeSettings
    model: ModelConfig
    args: TargetSFTConfig
    processes: int
    target: Target

    @property
    def student(self) -> str:
        return str(self.model.model_name_or_path)

    @cached_property
    def tokenizer(self) -> Any:
        return self.of_the_student(AutoTokenizer)

    def of_the_student(self, kind: Any) -> Any:
        """What transformers' `kind` finds under the model's name; an error that names the model if there is nothing."""
        how = {"revision": self.model.model_revision, "trust_remote_code": self.args.trust_remote_code}
        with explain_missing_model(self.student):
            return kind.from_pretrained(self.student, **how)

    @cached_property
    def data(self) -> TrainingData:
        """The training rows; the first process of each machine prepares them, the others read its result."""
        return self.load(self.settings, multiple_of=self.rows_per_step)

    def load(
        self, settings: RecipeSettings, *, multiple_of: int = 1, rows: Dataset | None = None, to_train: bool = True
    ) -> TrainingData:
        """The documents of other settings than the recipe's own, or of other rows, prepared as the recipe's are."""
        with self.args.main_process_first(desc="loading data"):
            data = load_training_data(
                settings,
                self.tokenizer,
                max_length=None if self.args.packing else self.args.max_length,
                multiple_of=multiple_of,
                num_proc=self.args.dataset_num_proc,
                rows=self.stored_rows(settings) if rows is None else rows,
                text_column=self.args.dataset_text_field if to_train else None,
            )
        void = {key: value for key, value in self.recipe.set_aside.items() if key in ORIGIN}
        return replace(data, manifest={**data.manifest, **({"set aside": void} if void else {})})

    def stored_rows(self, settings: RecipeSettings) -> Dataset:
        """The rows as they are stored, before anything is made of them; a world's are made from the seed."""
        world = WORLDS.get(settings.dataset_name or "")
        if world is None or settings.data_dir is not None:
            return read_rows(settings)
        one_of("dataset_train_split", settings.dataset_train_split, ["train"])
        return resolve_name(world["rows"])(self.args.seed)

    @property
    def rows_per_step(self) -> int:
        """Rows to cut the data to a multiple of. Packing makes new rows of them, so there is nothing to cut before."""
        return 1 if self.args.packing else self.settings.global_batch_size or 1

    @property
    def global_batch(self) -> int:
        """Sequences per optimiser step over all processes."""
        return self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps * self.processes

    def optimiser_steps(self, rows: int) -> int | str:
        """Steps of the whole run; unknown where packing decides how many rows there are."""
        if self.args.max_steps > 0:
            return self.args.max_steps
        if self.args.packing:
            return "known after packing"
        return math.ceil(-(-rows // self.global_batch) * self.args.num_train_epochs)

    @cached_property
    def cache_path(self) -> Path | None:
        """Where the cache of what the target reads is, or will be: the teacher's, or the reference's."""
        return expected_cache_directory(self.target, self.args, self.student, self.tokenizer)

    def trainer(self, rows: Dataset | None = None, **kwargs: Any) -> TargetSFTTrainer:
        """The trainer, of all rows or of these; making it builds or completes the teacher's cache, on all processes."""
        held_out, split = None, self.settings.dataset_test_split
        if split is not None:  # prepared in the same way, all of it
            held_out = self.load(replace(self.settings, dataset_train_split=split, sample_rows=None)).dataset
        return TargetSFTTrainer(
            model=self.student,
            args=self.args,
            train_dataset=self.data.dataset if rows is None else rows,
            eval_dataset=held_out,
            processing_class=self.tokenizer,
            peft_config=get_peft_config(self.model),
            quantization_config=get_quantization_config(self.model),
            **kwargs,
        )

    def sampled(self, n: int, seed: int) -> TargetSFTTrainer:
        """The trainer of a random draw of rows, a few more than n: some may have no label, or not be in the cache.

        A cache that is there is read, not added to. Without one the drawn rows go into a cache beside it, which the
        next draw adds to: the run's own stays untouched until the run fills it.
        """

        def drawn(rows: Dataset) -> Dataset:
            return rows.shuffle(seed=seed).select(range(min(len(rows), n + n // 4 + 8)))

        if self.settings.sample_rows is None:
            few = self.load(self.settings, rows=drawn(self.stored_rows(self.settings))).dataset
        else:  # the rows trained on are a draw themselves: only they are in the cache
            few = drawn(self.load(self.settings).dataset)
        args, cache = copy(self.args), self.cache_path
        if cache is not None and (cache / MANIFEST).is_file():
            args.teacher_cache, args.teacher_model_name_or_path = str(cache), None
            args.teacher_missing = "student"
        elif cache is not None:
            args.teacher_cache = f"{cache}-sample"
            if self.target.role == "reference" and args.reference_model_name_or_path != "teacher":
                args.teacher_model_name_or_path = None  # beside a teacher model the cache would be the teacher's
        return replace(self, args=args).trainer(few)


def configure(recipe: Recipe, processes: int | None = None) -> Job:
    """The job a recipe describes on the processes of this launch; given `processes`, on paper: no device is asked."""
    settings, model, values = recipe.settings, ModelConfig(**recipe.part(ModelConfig)), recipe.part(TargetSFTConfig)
    # A wrong target or batch is refused before anything is downloaded or, in a world, trained.
    target = make_target(recipe.values.get("target", DEFAULT_TARGET), **recipe.values.get("target_kwargs") or {})
    on_paper, processes = processes is not None, processes or world_size()
    values["output_dir"] = recipe.output_dir
    if settings.global_batch_size is not None:
        wanted = values.get("per_device_train_batch_size", DEFAULT_BATCH)
        batch, accumulation = split_batch(settings.global_batch_size, wanted, processes)
        values |= {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
    world = WORLDS.get(settings.dataset_name or "")
    if world is not None and model.model_name_or_path is None:
        base, teacher = resolve_name(world["models"])(values.setdefault("seed", 0))
        model.model_name_or_path = str(base)
        values.setdefault("teacher_model_name_or_path", str(teacher))
    if model.model_name_or_path is None:
        raise ValueError("no model is given. Set model_name_or_path to a hub id or a local directory.")
    job = Job(recipe, settings, model, _trainer_config(values, model, on_paper), processes, target)
    if on_paper:
        return job
    if job.args.world_size != processes:
        raise ValueError(
            f"only {job.args.world_size} of {processes} processes take part. With accelerate on the CPU use "
            "recipes/accelerate/cpu.yaml: `--cpu` and MULTI_CPU start one process only."
        )
    from qsft.recipe.curation import curated_settings

    return job if settings.curate is None else replace(job, settings=curated_settings(job))


def _trainer_config(values: dict[str, Any], model: ModelConfig, on_paper: bool) -> TargetSFTConfig:
    try:
        args = TargetSFTConfig(**values | ({"use_cpu": True} if on_paper else {}))
    except ValueError as error:
        if "use_cpu" not in str(error):
            raise
        remedy = "To try it on the CPU add --use_cpu true --bf16 false, with small models; `qsft plan` needs no GPU."
        raise ValueError(f"this training is in bf16 on a GPU, and none was found. {remedy}") from error
    loading = {"revision": model.model_revision, "trust_remote_code": args.trust_remote_code}
    loading |= {"attn_implementation": model.attn_implementation, "dtype": model.dtype}
    args.model_init_kwargs = {**loading, **as_dict(args.model_init_kwargs)}
    return args


def split_batch(global_batch: int, per_device: int, processes: int) -> tuple[int, int]:
    """(largest per-device batch up to the recipe's, accumulation steps): over all processes their product is global."""
    if global_batch < 1 or per_device < 1:
        raise ValueError(f"global_batch_size={global_batch} and per_device_train_batch_size={per_device} must be ≥ 1.")
    share, rest = divmod(global_batch, processes)
    if rest:
        raise ValueError(
            f"global_batch_size={global_batch} cannot be divided over {processes} processes. Process counts that work: "
            f"{', '.join(map(str, divisors(global_batch)))}. Or set --global_batch_size to a multiple of {processes}."
        )
    batch = max(size for size in divisors(share) if size <= per_device)
    return batch, share // batch


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
