"""TargetSFTTrainer: TRL's SFTTrainer whose loss is a target distribution.

batch ─ TeacherCollator ─> model(**batch, target=target): backbone, then the fused head on label positions
      ─> loss sum and metric sums ─> divided once, in compute_loss ─> Trainer's loop
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from peft import PeftConfig, PeftModel
from pyarrow import ArrowNotImplementedError
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import EvalPrediction, SaveStrategy, TrainOutput
from transformers.utils import logging
from trl import SFTTrainer

from qsft.inference.loading import check_path_exists
from qsft.losses.head import LABEL_POSITIONS, MODEL_INPUTS, HeadOptions, attach_target_head
from qsft.losses.kernel_path import takes_kernels
from qsft.losses.sums import SUM_NAMES
from qsft.run_directory import LAST
from qsft.targets.registry import make_target
from qsft.targets.target import Target
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import Documents
from qsft.teacher.live import LiveTeacher
from qsft.train import checkpoints, model_card, precision, run_record, validate
from qsft.train.checkpoints import Checkpoint
from qsft.train.collator import TeacherCollator, documents_read_by
from qsft.train.columns import check_columns_exist, columns_read_by, prepare_with_columns
from qsft.train.config import adopt_config, as_dict
from qsft.train.head_check import check_head
from qsft.train.metrics import (
    TOKENS_READ,
    TRL_METRICS,
    MetricSums,
    check_finite,
    compute_metrics,
    mode_and_prefix,
)
from qsft.train.old_policy import OLD_LOGP, OldPolicy, score_labels
from qsft.train.open_teacher import open_cache, open_live, teacher_identity
from qsft.train.run_record import RunRecord
from qsft.train.teacher import CachedTeacher, LiveModel, TeacherArgument, resolve_teacher, streams_have_teacher

logger = logging.get_logger(__name__)

Batch = dict[str, Any]
TOKENS = SUM_NAMES.index("tokens")
KEPT = SUM_NAMES.index("kept")


class TargetSFTTrainer(SFTTrainer):
    """An SFTTrainer that trains toward the distribution `target` instead of the one-hot label.

    Args:
        target: a name in `qsft targets`, a Target or a LossTarget. Default: `args.target` with `args.target_kwargs`.
        teacher: a TeacherCache, a cache's directory, a model id, a model, or "base" (the student before training).
            Default: the teacher in `args`, or the reference for sft_kl, asft and iw_sft. See
            `train.teacher.resolve_teacher`.

    All other arguments are those of SFTTrainer. This class overrides these methods:

    - `compute_loss` returns the loss of the target.
    - `get_batch_samples`: for psft, it scores the batches of several steps at a time with the current student.
    - `train`: on resume, it compares the settings of the checkpoint with the current settings. If the data or the
      collator were replaced after construction, it gives them their teacher.
    - `get_eval_dataloader`, `get_test_dataloader`: documents that are new in evaluation and prediction get their
      teacher log-probs before the first batch. predict() prepares raw data as evaluate() does.
    - `log` adds the target's metrics, reduces them over processes once, and stops on a non-finite loss.
    - `create_model_card` adds a section on the target.
    - `_save_checkpoint` records the run in the checkpoint and completes it before older checkpoints are deleted.
      Trainer deletes them inside this method, by modification time.
    - `_prepare_dataset` truncates and packs the columns that the target reads together with the tokens. It does not
      change data that are already packed.
    - `_set_signature_columns_if_needed` keeps Trainer from dropping these columns.
    - `_reject_skip_prepare_without_labels` passes the wrapped collator to TRL, which checks its type.

    tests/train/test_library_contracts.py checks the private methods among them against transformers and TRL.
    """

    args: Any
    model: Any
    data_collator: Any
    loss_is_scaled_for_ga: Any
    _signature_columns: Any

    _tag_names = [*SFTTrainer._tag_names, "qsft"]  # noqa: RUF012
    _name = "Target-SFT"
    _paper = model_card.PAPER

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], dict[str, Any]] | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset
        | IterableDataset
        | DatasetDict
        | IterableDatasetDict
        | dict[str, Dataset | IterableDataset]
        | None = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Tensor, Tensor], Tensor] | None = None,
        quantization_config: BitsAndBytesConfig | None = None,
        peft_config: PeftConfig | None = None,
        formatting_func: Callable[[dict[str, Any]], str] | None = None,
        *,
        target: str | Target | None = None,
        teacher: TeacherArgument = None,
    ) -> None:
        if isinstance(model, str):
            check_path_exists(model)
        config: Any = adopt_config(args, model)
        validate.check_no_other_loss(config, compute_loss_func)
        validate.check_first_example(train_dataset)
        validate.warn_overridden_compute_loss(type(self), TargetSFTTrainer)
        takes_kernels(config.head_kernel, config.device.type)  # raises now, not at the first step
        self.target_name, self.target = _resolve_target(target, config)
        self.columns = columns_read_by(self.target, config)
        self.resolved_teacher = resolve_teacher(
            teacher,
            self.target,
            config,
            model,
            peft_config,
            quantization_config,
            target_name=self.target_name,
        )
        self._streams_have_teacher = streams_have_teacher(self.resolved_teacher)
        for dataset in validate.list_datasets(train_dataset, eval_dataset):
            validate.check_usable_columns(dataset, config, formatting_func)
            check_columns_exist(dataset, self.columns)
            self._check_stream_has_teacher(dataset)
        precision.keep_weights_in_float32(config, model)
        super().__init__(
            model=model,
            args=config,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            quantization_config=quantization_config,
            peft_config=peft_config,
            formatting_func=formatting_func,
        )
        validate.check_labels_left(self.train_dataset, train_dataset, config.max_length)
        validate.check_adapter(self.model, self.is_fsdp_enabled)
        validate.check_parallelism(self.accelerator.parallelism_config, config)
        precision.keep_loss_in_float32(self.accelerator)
        precision.keep_4bit_weights_trainable(self.model)
        attach_target_head(self.model, HeadOptions(config.head_kernel, config.head_tile_mib))
        # compute_loss divides by the label tokens of the whole optimizer step. So Trainer must count them for every
        # model, shifted as the head shifts them, and must not divide again.
        self.model_accepts_loss_kwargs = True
        self._loss_shifts_labels = True
        self.loss_is_scaled_for_ga = config.loss_normalization == "tokens"
        self.metric_sums = {"train": MetricSums(), "eval": MetricSums()}
        self.run_record: RunRecord | None = None  # set in the main process when training starts
        self.old_policy: OldPolicy | None = None
        if OLD_LOGP in self.target.needs:
            self.old_policy = OldPolicy(config.psft_block_steps, self._score_labels)
        self._head_is_checked = not config.check_head
        self.live_teacher: LiveTeacher | None = None
        self.cache: TeacherCache | None = None
        if isinstance(self.resolved_teacher, LiveModel):
            self.live_teacher = open_live(self.resolved_teacher, self.model, self._tokenizer, config)
        self._teacher_collator: TeacherCollator | None = None  # what `data_collator` was wrapped in
        self._seen_data: list[Any] = []  # data sets whose teacher log-probs are known to be available
        self._prepare_data_and_collator()

    # ---- the loss ----

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """The target's loss: its sum over label tokens, divided by their number in the whole optimizer step."""
        if not self._head_is_checked:
            self._head_is_checked = True
            check_head(model, inputs)
        mode = "train" if self.model.training else "eval"
        target = self.target if mode == "train" else self.target.for_evaluation
        outputs = model(**self._head_inputs(inputs, target), target=target)
        loss = self._normalized_loss(outputs, num_items_in_batch)
        mask = inputs.get("attention_mask")
        tokens_read = inputs["input_ids"].numel() if mask is None else mask.sum()
        self.metric_sums[mode].add(outputs.sums, tokens_read, loss, outputs.aux_loss)
        if return_outputs:
            return loss, self._outputs_with_logits(model, inputs)
        return loss

    def _normalized_loss(self, outputs: Any, num_items_in_batch: Tensor | int | None) -> Tensor:
        """The loss sum divided by the number of tokens, plus the balancing loss of a mixture of experts.

        Args:
            outputs: the head's TargetOutput.
            num_items_in_batch: label tokens of the whole optimizer step, None outside of training.
        """
        per_micro_batch = self.args.loss_normalization == "micro_batch_mean"
        whole_step = not per_micro_batch and num_items_in_batch is not None
        if whole_step:
            count: Any = num_items_in_batch
        elif per_micro_batch and self.target.averages_kept:
            count = outputs.sums[KEPT]
        else:
            count = outputs.sums[TOKENS]
        loss = outputs.loss / torch.as_tensor(count).clamp(min=1)
        if whole_step and self.args.average_tokens_across_devices:
            # The count covers all processes, and the gradients are averaged over them.
            loss = loss * (self.accelerator.num_processes // self.get_tp_size())
        if self.aux_loss_enabled:
            # A mean per micro-batch. Where the loss covers the whole accumulation, so must the sum of these.
            steps = self.current_gradient_accumulation_steps if whole_step else 1
            loss = loss + self.router_aux_loss_coef * outputs.aux_loss / steps
        return loss

    def _head_inputs(self, inputs: Batch, target: Target) -> Batch:
        """The batch with what the head reads beside it: the live teacher, the old policy, the tokenizer's size."""
        extra: Batch = {"use_cache": False, "vocab_size": len(self._tokenizer)}
        if self.aux_loss_enabled:
            extra["output_router_logits"] = True
        if self.live_teacher is not None:
            names = (*MODEL_INPUTS, "labels", LABEL_POSITIONS)
            with precision.student_autocast(self.accelerator):  # a base must not differ by its precision alone
                batch: Batch = {name: inputs.get(name) for name in names}
                extra["teacher"] = self.live_teacher(**batch)
        if self.old_policy is not None and OLD_LOGP in target.needs and OLD_LOGP not in inputs:
            inputs = self.old_policy.with_scores(inputs)  # a batch that was not drawn by get_batch_samples
        return {**inputs, **extra}

    @torch.no_grad()
    def _outputs_with_logits(self, model: nn.Module, inputs: Batch) -> Any:
        """The model's own outputs: `compute_metrics` reads their logits, which the fused head never builds."""
        return model(**{name: inputs[name] for name in MODEL_INPUTS if name in inputs}, use_cache=False)

    def get_batch_samples(self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device) -> Any:
        """The batches of one optimizer step; psft draws and scores a block of steps at a time."""
        if self.old_policy is not None:
            step = self.state.global_step
            epoch_iterator = self.old_policy.batches_of_step(epoch_iterator, num_batches, step)
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _score_labels(self, batch: Batch) -> Tensor:
        return score_labels(self.model_wrapped, self._prepare_inputs(batch))

    # ---- data ----

    def _prepare_data_and_collator(self, *further: Any) -> None:
        """Wrap the current collator, and make the teacher available for the current data sets and `further` ones.

        Scripts may replace `train_dataset` or `data_collator` after construction, for example to relabel the data.
        """
        datasets = [*validate.list_datasets(self.train_dataset, self.eval_dataset), *further]
        if self.data_collator is self._teacher_collator:
            new = [dataset for dataset in datasets if not any(dataset is seen for seen in self._seen_data)]
            if not new:
                return
        else:
            self._wrap_collator()
            new = datasets  # another collator may make other documents of the same data
        self._provide_teacher(new)
        self._seen_data = datasets
        self.data_collator.attach_label_positions = validate.collator_sees_final_labels(
            self.model, self.accelerator, datasets
        )

    def _wrap_collator(self) -> None:
        """Make the collator attach what the target reads; a TeacherCollator of the user's is replaced by this one."""
        self._teacher_collator = TeacherCollator(
            _without_teacher(self.data_collator),
            self.cache,
            missing=self.args.teacher_missing,
            columns=self.columns,
            attach_document="document" in self.target.needs,
            num_embeddings=_embedding_size(self.model),
        )
        self.data_collator = self._teacher_collator

    def _provide_teacher(self, datasets: list[Any]) -> None:
        """Complete the cache with the documents of the data sets, or check that the live teacher knows their tokens."""
        for dataset in datasets:
            self._check_stream_has_teacher(dataset)
        if isinstance(self.resolved_teacher, CachedTeacher):
            trained = self.state.global_step > 0
            documents = self._documents(datasets)
            self.cache = open_cache(
                self.resolved_teacher, documents, self.model, self._tokenizer, self.args, trained=trained
            )
            # The default location of a base follows from its weights, which training changes.
            self.resolved_teacher = replace(self.resolved_teacher, directory=self.cache.path)
            self.data_collator.cache = self.cache
        elif self.live_teacher is not None and not self.live_teacher.is_student:
            self.live_teacher.check_documents(self._documents(datasets))

    def _documents(self, datasets: list[Any]) -> Documents:
        """The documents of the data sets as the collator makes them. Those of a stream are looked up as they come."""
        finite = [self._collator_columns(dataset) for dataset in datasets if isinstance(dataset, Dataset)]
        return documents_read_by(self.data_collator.base_collator, finite)

    def _collator_columns(self, dataset: Dataset) -> Dataset:
        """The data set with the columns that Trainer passes to the collator."""
        if not self.args.remove_unused_columns:
            return dataset
        self._set_signature_columns_if_needed()
        return dataset.select_columns(
            [name for name in dataset.column_names if name in (self._signature_columns or ())]
        )

    def _check_stream_has_teacher(self, dataset: Any) -> None:
        """Raise ValueError for a stream whose documents a model would have to write to a cache beforehand."""
        if not validate.is_stream(dataset) or self._streams_have_teacher:
            return
        assert isinstance(self.resolved_teacher, CachedTeacher)
        raise ValueError(
            f"the data are streamed, so the log-probs of {self.resolved_teacher.source} cannot be written to a cache "
            "before the first step. Set teacher_live=True, or build a cache of the data set on disk with `qsft cache "
            "build` and pass teacher_cache=DIRECTORY."
        )

    def get_eval_dataloader(self, eval_dataset: str | Dataset | None = None) -> DataLoader[Any]:
        """Trainer's dataloader; documents that are new get their teacher log-probs first."""
        self._prepare_for_evaluation(eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader[Any]:
        """Trainer's dataloader; raw data passed to predict() are prepared as evaluate() does it."""
        is_tokenized = "input_ids" in (getattr(test_dataset, "column_names", None) or ())
        if not self._skip_prepare_dataset and not is_tokenized:
            packing = self.args.packing if self.args.eval_packing is None else self.args.eval_packing
            test_dataset = self._prepare_dataset(
                test_dataset, self.processing_class, self.args, packing, self._formatting_func, "test"
            )
        self._prepare_for_evaluation(test_dataset)
        return super().get_test_dataloader(test_dataset)

    def _prepare_for_evaluation(self, dataset: Any) -> None:
        """Reset the sums of evaluation, and make the teacher available for the data set to evaluate or predict."""
        self.metric_sums["eval"].reset()  # predict() adds to them and never logs
        if isinstance(dataset, str):
            validate.check_evaluation_name(dataset, self.eval_dataset)
        named_or_default = dataset is None or isinstance(dataset, str)
        if named_or_default:
            self._prepare_data_and_collator()
        else:
            self._prepare_data_and_collator(dataset)

    def _prepare_dataset(
        self,
        dataset: Any,
        processing_class: Any,
        args: Any,
        packing: bool,
        formatting_func: Any,
        dataset_name: str,
    ) -> Any:
        column_names = getattr(dataset, "column_names", None) or ()
        if packing and "seq_lengths" in column_names:
            return dataset  # packed already: TRL would pack the packed examples again, as single documents
        if not self.columns:
            try:
                return super()._prepare_dataset(dataset, processing_class, args, packing, formatting_func, dataset_name)
            except ArrowNotImplementedError as error:
                raise ValueError(
                    f"the {dataset_name} data set has nothing to pack: all its documents are empty after tokenization. "
                    "Check its columns and formatting_func."
                ) from error
        # TRL truncates, packs and shuffles only the tokens, so the columns are carried along afterwards.
        tokenize_only = _copy_with(args, max_length=None, shuffle_dataset=False)
        tokenized = super()._prepare_dataset(
            dataset, processing_class, tokenize_only, False, formatting_func, dataset_name
        )
        return prepare_with_columns(tokenized, list(self.columns.values()), args, packing)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            super()._set_signature_columns_if_needed()
            columns: Any = self._signature_columns  # which transformers types as None
            self._signature_columns = [*columns, *self.columns.values()]

    def _reject_skip_prepare_without_labels(self, datasets: Any, data_collator: Any) -> None:
        super()._reject_skip_prepare_without_labels(datasets, _without_teacher(data_collator))

    # ---- logs ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's log with the target's metrics."""
        mode, prefix = mode_and_prefix(logs)
        if mode is not None:
            sums = self.metric_sums[mode].take(self._sum_over_processes)
            if mode == "train":
                self._total_train_tokens += int(sums.get(TOKENS_READ, 0)) // self._tp_size
                self._check_finite(sums)
            metrics = compute_metrics(sums)
            if sums or "train_runtime" not in logs:
                metrics["num_tokens"] = self._total_train_tokens
            logs |= {f"{prefix}{name}": value for name, value in metrics.items()}
            if mode == "eval" and prefix != "eval_":
                # One of several evaluation sets: TRL logs its metrics under eval_ whatever the set's name.
                logs |= {f"eval_{name}": metrics[name] for name in TRL_METRICS if name in metrics}
        super().log(logs, start_time)

    def _sum_over_processes(self, total: Tensor) -> Tensor:
        return self.accelerator.reduce(total, reduction="sum")

    def _check_finite(self, sums: dict[str, float]) -> None:
        if self.live_teacher is not None:
            self.live_teacher.raise_if_invalid()
        if self.args.stop_on_nonfinite_loss:
            check_finite(sums, self.state.global_step)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            card = Path(str(self.args.output_dir), "README.md")
            model_card.add_target_section(card, self.target, self._distribution_record())

    # ---- runs and checkpoints ----

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, or continue a complete checkpoint with the same trajectory settings.

        Args:
            resume_from_checkpoint: a checkpoint's directory; True or "last" is the newest complete one of this run.

        Raises:
            ValueError: the checkpoint is incomplete, a setting that determines the trajectory changed, or another
                process trains in the output directory.
        """
        self._prepare_data_and_collator()
        self.metric_sums["train"].reset()  # a run that failed may have left sums behind
        requested = LAST if resume_from_checkpoint is True else resume_from_checkpoint or None
        with ExitStack() as held:
            checkpoint = self._from_main_process(lambda: self._start_run(requested, held))
            if checkpoint is not None:
                self._load_beside_trainer(Path(checkpoint))
            return super().train(checkpoint, trial, ignore_keys_for_eval)

    def _from_main_process(self, decide: Callable[[], str | None]) -> str | None:
        """What `decide` returns in the main process, in every process; a ValueError is raised in every process."""
        answer: list[str | None] = [None, None]  # the result, or the error's message
        if self.is_world_process_zero():
            try:
                answer[0] = decide()
            except ValueError as error:
                answer[1] = str(error)
        if self.args.world_size > 1:
            broadcast_object_list(answer)
        result, message = answer
        if message is not None:
            raise ValueError(message)
        return result

    def _start_run(self, requested: str | None, held: ExitStack) -> str | None:
        """Write run.json; return the checkpoint to continue, checked. Runs in the main process.

        `held` keeps other runs out of the output directory of a run that saves checkpoints.
        """
        output_dir = Path(str(self.args.output_dir))
        if self.args.save_strategy != SaveStrategy.NO:
            held.enter_context(checkpoints.hold_run_directory(output_dir))
        checkpoint = checkpoints.resolve_checkpoint(output_dir, requested)
        distributions = self._distribution_record()
        trajectory = run_record.describe_trajectory(
            self.args,
            self.model,
            self.train_dataset,
            self.get_total_train_batch_size(self.args),
            distributions["target"],
            distributions["teacher"],
        )
        run_id = run_record.new_run_id()
        parent = None
        if checkpoint is not None:
            checkpoints.check_complete(Path(checkpoint), digests=self.args.checkpoint_digests)
            run_id, parent = run_record.continue_run(Path(checkpoint), output_dir, trajectory, self._allowed_changes())
        else:
            existing = checkpoints.describe_existing_run(output_dir, from_script=True)
            if existing is not None:
                logger.warning(existing)
        recorded = run_record.describe_recorded(self.args, self.model)
        self.run_record = RunRecord(run_id, parent, distributions["name"], trajectory, recorded)
        if self.args.should_save:
            self.run_record.save(output_dir)
        return checkpoint

    def _allowed_changes(self) -> set[str]:
        """`resume_allow_changed`, where a reference is recorded as the teacher."""
        names = set(self.args.resume_allow_changed or ())
        return {"teacher" if name == run_record.REFERENCE else name for name in names}

    def _distribution_record(self) -> dict[str, Any]:
        """The target and its teacher, as run.json and the model card record them."""
        return {
            "name": self.target_name,
            "target": self.target.record(),
            "role": self.target.role,
            "teacher": teacher_identity(self.resolved_teacher, self.cache),
        }

    def _load_beside_trainer(self, checkpoint: Path) -> None:
        """Load what a checkpoint holds beside what Trainer loads."""
        self._total_train_tokens = Checkpoint(checkpoint).record.get("num_tokens", 0)
        if self.old_policy is not None:
            self.old_policy.load(checkpoint, self.args.process_index)
        if "learning_rate" in self._allowed_changes():
            self.add_callback(run_record.UseLearningRate(self.args.learning_rate))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a checkpoint that names its run, seal it, and only then delete older ones."""
        output_dir = self._get_output_dir(trial)
        checkpoint = Checkpoint(Path(output_dir, f"checkpoint-{self.state.global_step}"))
        sums = self.metric_sums["train"].read(self._sum_over_processes)
        self._check_finite(sums)
        self._total_train_tokens += int(sums.get(TOKENS_READ, 0)) // self._tp_size
        self.metric_sums["train"].clear_tokens_read()
        run: dict[str, Any] = {"id": "unknown", "trajectory": {}}
        if self.run_record is not None:
            run = self.run_record.to_json()
        with checkpoints.full_disk_explained(checkpoint, run["id"]):
            self._write_checkpoint(checkpoint, run, model, trial)
        if self.args.should_save:
            if self.args.push_to_hub:
                self._push_from_checkpoint(str(checkpoint.path))
            limit = self.args.save_total_limit
            checkpoints.rotate_checkpoints(output_dir, run["id"], limit, self.state.best_model_checkpoint)

    def _write_checkpoint(self, checkpoint: Checkpoint, run: dict[str, Any], model: Any, trial: Any) -> None:
        """Write what Trainer saves and what qsft adds, and seal it."""
        if self.args.should_save:
            checkpoint.begin({**run, **self._distribution_record(), "num_tokens": self._total_train_tokens})
        self.accelerator.wait_for_everyone()  # from here on every process sees that the checkpoint is incomplete
        if self.old_policy is not None:
            self.old_policy.save(checkpoint.path, self.args.process_index)
        # Trainer would delete older checkpoints and upload this one before it is sealed.
        limit = self.args.save_total_limit
        push_to_hub = self.args.push_to_hub
        self.args.save_total_limit = None
        self.args.push_to_hub = False
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
            self.args.push_to_hub = push_to_hub
        self.accelerator.wait_for_everyone()  # every process has written its files
        if self.args.should_save:
            checkpoint.seal(digests=self.args.checkpoint_digests)


def _resolve_target(target: str | Target | None, args: Any) -> tuple[str | None, Target]:
    """The target's registry name (None for the user's own) and the target."""
    if target is None:
        return args.target, make_target(args.target, **as_dict(args.target_kwargs))
    if isinstance(target, str):
        kwargs = as_dict(args.target_kwargs)
        if kwargs and target != args.target:
            raise ValueError(
                f"target={target!r} was passed to the trainer, but target_kwargs={kwargs} of the config belong to its "
                f"target={args.target!r} and would not be used. Set target={target!r} in the config, or pass "
                f"make_target({target!r}, …) to the trainer."
            )
        return target, make_target(target, **kwargs)
    if not isinstance(target, Target):
        raise TypeError(
            f"target must be a name (see `qsft targets`), a Target or a LossTarget, got {type(target).__name__}."
        )
    return None, target


def _without_teacher(collator: Any) -> Any:
    """The collator that a TeacherCollator wraps; any other collator is returned as it is."""
    return collator.base_collator if isinstance(collator, TeacherCollator) else collator


def _embedding_size(model: Any) -> int:
    """The entries of the input embedding, also where ZeRO-3 has partitioned it."""
    weight = model.get_input_embeddings().weight
    shape = getattr(weight, "ds_shape", weight.shape)
    return int(shape[0])


def _copy_with(args: Any, **changes: Any) -> Any:
    """A shallow copy of a config with other values; dataclasses.replace would run __post_init__ again."""
    changed = copy(args)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed
