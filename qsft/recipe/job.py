"""A recipe made concrete on this machine: the trainer's configuration, the model's, the tokenizer, the data."""

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from qsft.data.load import TrainingData, load_training_data
from qsft.data.read import one_of, read_rows
from qsft.data.sources import find_source
from qsft.recipe.read import Recipe
from qsft.recipe.settings import ORIGIN, RecipeSettings, split_batch

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PretrainedConfig, PreTrainedTokenizerBase
    from trl import ModelConfig

    from qsft.train.config import TargetSFTConfig
    from qsft.train.trainer import TargetSFTTrainer

DEMO = "demo"  # the data set that the package makes itself
DEFAULT_BATCH = 8  # TrainingArguments' per_device_train_batch_size


@dataclass(frozen=True)
class Job:
    """What a recipe means for `processes` processes. Data and tokenizer are loaded when first asked for."""

    recipe: Recipe
    settings: RecipeSettings
    model: "ModelConfig"
    args: "TargetSFTConfig"
    processes: int

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The student's tokenizer."""
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerBase = self._of_the_model(AutoTokenizer)
        return tokenizer

    @cached_property
    def config(self) -> "PretrainedConfig":
        """The student's configuration."""
        from transformers import AutoConfig

        config: PretrainedConfig = self._of_the_model(AutoConfig)
        return config

    def _of_the_model(self, kind: Any) -> Any:
        """What transformers' `kind` finds under the model's name; an error that names the model if there is nothing."""
        from qsft.evals.model_under_test import of_the_model

        model = self.model
        how = {"revision": model.model_revision, "trust_remote_code": self.args.trust_remote_code}
        return of_the_model(kind, model.model_name_or_path, option="--model_name_or_path", **how)

    @cached_property
    def data(self) -> TrainingData:
        """The training rows; the first process of each machine prepares them, the others read its result."""
        return self.load(self.settings, multiple_of=self.rows_per_step)

    @cached_property
    def eval_data(self) -> TrainingData | None:
        """Rows of `eval_split`, prepared in the same way, all of them."""
        if self.settings.eval_split is None:
            return None
        return self.load(replace(self.settings, dataset_split=self.settings.eval_split, sample_rows=None))

    def load(self, settings: RecipeSettings, multiple_of: int = 1) -> TrainingData:
        """The documents of other settings than the recipe's own, prepared as the recipe's are."""
        max_length = None if self.args.packing else self.args.max_length
        with self.args.main_process_first(desc="loading data"):
            data = load_training_data(
                settings,
                self.tokenizer,
                max_length=max_length,
                multiple_of=multiple_of,
                num_proc=self.args.dataset_num_proc,
                rows=self.stored_rows(settings),
            )
        void = {key: value for key, value in self.recipe.set_aside.items() if key in ORIGIN}
        return replace(data, manifest={**data.manifest, **({"set aside": void} if void else {})})

    def stored_rows(self, settings: RecipeSettings) -> "Dataset":
        """The rows as they are stored, before anything is made of them; the demo's are made from the seed."""
        if settings.dataset != DEMO or settings.data_dir is not None:
            return read_rows(settings.dataset, find_source(settings.dataset), settings)
        from qsft.demo.data import demonstrations
        from qsft.demo.settings import Settings

        one_of("dataset_split", settings.dataset_split, ["train"])
        return demonstrations(Settings(seed=self.args.seed))

    @property
    def rows_per_step(self) -> int:
        """Rows to cut the data to a multiple of. Packing makes new rows of them, so there is nothing to cut before."""
        return 1 if self.args.packing else self.settings.global_batch_size or 1

    @property
    def global_batch(self) -> int:
        """Sequences per optimiser step over all processes."""
        return self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps * self.processes

    def trainer(self, **kwargs: Any) -> "TargetSFTTrainer":
        """The trainer; making it builds or completes the teacher's cache, on all processes."""
        from trl import get_peft_config, get_quantization_config

        from qsft.train.trainer import TargetSFTTrainer

        return TargetSFTTrainer(
            model=self.model.model_name_or_path,
            args=self.args,
            train_dataset=self.data.dataset,
            eval_dataset=self.eval_data.dataset if self.eval_data else None,
            processing_class=self.tokenizer,
            peft_config=get_peft_config(self.model),
            quantization_config=get_quantization_config(self.model),
            **kwargs,
        )


def configure(recipe: Recipe, processes: int | None = None) -> Job:
    """The job a recipe describes, its global batch split over the processes of this launch.

    With `processes` given it is a job on paper, for that many processes: no device is asked what it can do.
    """
    from trl import ModelConfig

    from qsft.targets.zoo import make_target
    from qsft.train.config import TargetSFTConfig

    settings, model, values = recipe.settings, ModelConfig(**recipe.part(ModelConfig)), recipe.part(TargetSFTConfig)
    if settings.dataset == DEMO and model.model_name_or_path is None:
        model.model_name_or_path, values["teacher_model_name_or_path"] = _demo_models(values.get("seed", 0))
    if model.model_name_or_path is None:
        raise ValueError("no model is given. Set model_name_or_path to a hub id or a local directory.")
    values.setdefault("output_dir", recipe.output_dir)
    on_paper, processes = processes is not None, processes or launched_processes()
    if settings.global_batch_size is not None:
        wanted = values.get("per_device_train_batch_size", DEFAULT_BATCH)
        batch, accumulation = split_batch(settings.global_batch_size, wanted, processes)
        values |= {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
    try:
        args = TargetSFTConfig(**values | ({"use_cpu": True} if on_paper else {}))
    except ValueError as error:
        if "use_cpu" not in str(error):
            raise
        raise ValueError(
            "this recipe trains in bf16 on a GPU, and none was found. To try it on the CPU add "
            "--use_cpu true --bf16 false, with small models; `qsft plan` needs no GPU."
        ) from error
    make_target(args.target, **(args.target_kwargs or {}))  # a wrong one is refused now, not after the download
    if not on_paper and args.world_size != processes:
        raise ValueError(
            f"the launcher promised {processes} processes, but {args.world_size} take part. With accelerate on the CPU "
            "use recipes/accelerate/cpu.yaml: `--cpu` and MULTI_CPU start one process only."
        )
    args.model_init_kwargs = _model_init_kwargs(model, args)
    job = Job(recipe, settings, model, args, processes)
    if on_paper or settings.curate is None:
        return job
    from qsft.recipe.curate import curated_settings

    return replace(job, settings=curated_settings(job))


def launched_processes() -> int:
    """How many processes accelerate or torchrun started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _demo_models(seed: int) -> tuple[str, str]:
    """Directories of the demo's base and teacher, built now if they are not kept."""
    from qsft.demo.prepare import demo_models

    models = demo_models(seed)
    return str(models.base), str(models.teacher)


def _model_init_kwargs(model: "ModelConfig", args: "TargetSFTConfig") -> dict[str, Any]:
    wanted = {
        "revision": model.model_revision,
        "trust_remote_code": args.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
    }
    given: dict[str, Any] = args.model_init_kwargs or {}  # a str no more: TRL has parsed it
    return {**wanted, **given}
