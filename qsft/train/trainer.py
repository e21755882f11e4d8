"""TargetSFTTrainer: TRL's SFTTrainer whose loss is a target. It overrides compute_loss and little else.

batch ─ TeacherCollator ─> model(**batch, target=target): backbone, then the fused head on label positions
      ─> loss SUM and metric sums ─> divided once, here ─> TRL's loop does the rest
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainingArguments
from trl import SFTTrainer

from qsft.losses.head import LABEL_COUNT, attach_target_head
from qsft.losses.slots import takes_kernels
from qsft.losses.sums import SUM_NAMES
from qsft.targets.registry import make_target
from qsft.targets.target import Target
from qsft.train import card, safeguards, side_inputs
from qsft.train.collator import TaughtTrainer
from qsft.train.config import TargetSFTConfig, as_dict
from qsft.train.head_check import check_head
from qsft.train.metrics import MetricSums
from qsft.train.teacher import RunTeacher, Teacher

Batch = dict[str, Any]
TOKENS, KEPT = SUM_NAMES.index("tokens"), SUM_NAMES.index("kept")
OLD_POLICY = "old_policy_{}.safetensors"  # psft's, of each process
MODEL_INPUTS = ("input_ids", "attention_mask", "position_ids")


class TargetSFTTrainer(TaughtTrainer):
    """SFTTrainer that fits the distribution `target` instead of the one-hot label.

    target    a Target or LossTarget; by default the one that `args.target` and `args.target_kwargs` name
    teacher   a TeacherCache, a cache's directory, a model id, a model, or "base" (the student before training);
              by default what `args` names: for rows that anchor the reference, for the others the teacher

    Everything else is SFTTrainer's. Data preparation, collation, evaluation, saving and logging stay TRL's.
    """

    loss_is_scaled_for_ga: Any

    _tag_names = [*SFTTrainer._tag_names, "qsft"]  # noqa: RUF012
    _name = "Target-SFT"
    _paper = card.PAPER

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        args: TrainingArguments | None = None,
        *positional: Any,
        target: Target | None = None,
        teacher: Teacher = None,
        **kwargs: Any,
    ) -> None:
        args = TargetSFTConfig.own(args, model)
        kwargs |= zip(list(inspect.signature(SFTTrainer.__init__).parameters)[3:], positional)  # as SFTTrainer's are
        safeguards.refuse_other_losses(args, kwargs.get("compute_loss_func"))
        safeguards.refuse_vision(kwargs.get("train_dataset"))
        takes_kernels(args.head_kernel, args.device.type)  # refused now, not at the first step
        self.target_name = args.target if target is None else None
        self.target = target or make_target(args.target, **as_dict(args.target_kwargs))
        self.side_columns = side_inputs.side_columns(self.target, args)
        adapters = kwargs.get("peft_config") is not None or isinstance(model, PeftModel)
        self.teacher = RunTeacher.of(teacher, self.target, args, model, adapters)
        datasets = safeguards.all_of(kwargs.get("train_dataset"), kwargs.get("eval_dataset"))
        safeguards.refuse_streaming(datasets, self.teacher)
        super().__init__(model, args, **kwargs)
        safeguards.refuse_adapter(self.model, self.target, self.teacher, self.is_fsdp_enabled)
        safeguards.refuse_parallelism(self.accelerator.parallelism_config, args)
        attach_target_head(self.model, args.head_kernel)
        safeguards.keep_float_outputs(self.accelerator)
        # The loss below is divided by the label tokens of the whole optimiser step, so they must be counted for every
        # model, shifted as the head shifts them, and nothing is left for Trainer to divide by.
        self.model_accepts_loss_kwargs = self._loss_shifts_labels = True
        self.loss_is_scaled_for_ga = args.loss_normalization == "tokens"
        self.sums = {"train": MetricSums(), "eval": MetricSums()}
        self.block = side_inputs.Block(args.psft_block_steps, self.score) if "old_logp" in self.target.needs else None
        self.head_checked = not args.check_head
        self.open_teacher()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """The target's loss: its sum over label tokens divided by their number in the whole optimiser step."""
        if not self.head_checked:
            self.head_checked = True
            check_head(model, inputs)
        mode = "train" if self.model.training else "eval"
        outputs = model(**self.head_inputs(inputs), target=self.target)
        mask: Tensor | None = inputs.get("attention_mask")
        seen = inputs["input_ids"].numel() if mask is None else mask.sum()
        self.sums[mode].add(outputs.sums, seen, outputs.aux_loss)
        per_micro_batch = self.args.loss_normalization == "micro_batch_mean"
        counted = KEPT if per_micro_batch and self.target.averages_kept else TOKENS
        whole_step = not per_micro_batch and num_items_in_batch is not None
        count: Any = num_items_in_batch if whole_step else outputs.sums[counted]
        loss = outputs.loss / torch.as_tensor(count).clamp(min=1)
        if whole_step and self.args.average_tokens_across_devices:
            # The count covers all processes, and the gradients are averaged over them.
            loss = loss * (self.accelerator.num_processes // self.get_tp_size())
        if self.aux_loss_enabled:
            # A mean per micro-batch. Where the loss covers the whole accumulation, so must the sum of these.
            steps = self.current_gradient_accumulation_steps if whole_step else 1
            loss = loss + self.router_aux_loss_coef * outputs.aux_loss / steps
        return (loss, self.plain_outputs(model, inputs)) if return_outputs else loss

    def head_inputs(self, inputs: Batch) -> Batch:
        """The batch with what the head reads beside it: the live teacher, the old policy, the real vocabulary."""
        extra: Batch = {"use_cache": False, "vocab_size": len(self._tokenizer)}
        if self.aux_loss_enabled:
            extra["output_router_logits"] = True
        if self.live is not None:
            with self.accelerator.autocast():  # as the student runs: a base must not differ by its precision alone
                read: Batch = {name: inputs.get(name) for name in (*MODEL_INPUTS, "labels", LABEL_COUNT)}
                extra["teacher"] = self.live(**read)
        if self.block is not None and "old_logp" not in inputs:  # evaluation: the policy is its own old policy
            inputs = self.block.scored(inputs)
        return {**inputs, **extra}

    @torch.no_grad()
    def plain_outputs(self, model: nn.Module, inputs: Batch) -> Any:
        """The model's own outputs, with logits: `compute_metrics` reads them, the head never builds them."""
        return model(**{name: inputs[name] for name in MODEL_INPUTS if name in inputs}, use_cache=False)

    def get_batch_samples(self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device) -> Any:
        """The batches of one optimiser step; psft draws and scores a whole block of steps at a time."""
        if self.block is not None:
            epoch_iterator = self.block.serve(epoch_iterator, num_batches, self.state.global_step)
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def score(self, batch: Batch) -> Tensor:
        return side_inputs.score(self.model_wrapped, self._prepare_inputs(batch))

    def record(self) -> dict[str, Any]:
        identity = None if self.teacher is None else self.teacher.identity(self.cache)
        return {"name": self.target_name, "target": self.target.record(), "role": self.target.role, "teacher": identity}

    def save_beside(self, checkpoint: Path) -> None:
        if self.block is not None:
            self.block.save(checkpoint / OLD_POLICY.format(self.args.process_index))

    def resume(self, checkpoint: Path) -> None:
        super().resume(checkpoint)
        if self.block is not None:
            self.block.load(checkpoint / OLD_POLICY.format(self.args.process_index))

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            card.add_section(Path(str(self.args.output_dir), "README.md"), self.target, self.record())
