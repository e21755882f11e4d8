"""A run knows itself: what decides its trajectory is in its directory and in every checkpoint, and compared at resume.

Other names in `resume_with_other` insist. More steps or epochs, logging, saving and another number of processes at the
same global batch are recorded and not compared.
"""

import json
import uuid
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from datasets import Dataset
from huggingface_hub import HfApi
from peft import PeftModel
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers.trainer_utils import TrainOutput, rotate_checkpoints
from transformers.utils import logging
from trl import SFTTrainer

from qsft.files import write_json
from qsft.fingerprints import config_digest, digest_json
from qsft.teacher.documents import Documents
from qsft.train import checkpoints
from qsft.train.checkpoints import LAST, MARKER, RUN, Checkpoint, read_run
from qsft.train.config import TargetSFTConfig
from qsft.train.metrics import SEEN, MetricSums, belongs_to, metrics_of

logger = logging.get_logger(__name__)

# Settings that decide the trajectory, under their own names.
SETTINGS = (
    "seed", "data_seed", "full_determinism", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs",
    "warmup_steps", "warmup_ratio", "optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "max_grad_norm", "max_length", "packing", "packing_strategy", "bf16", "fp16", "neftune_noise_alpha",
    "loss_normalization", "psft_block_steps", "router_aux_loss_coef", "ignore_data_skip", "train_sampling_strategy",
)  # fmt: skip
DISTRIBUTIONS = ("target", "teacher")  # what `resume_with_other_target` stands for; a reference is a teacher here
PRIVATE = ("teacher_cache/*", "earlier/*")  # training text, and checkpoints of earlier runs: never uploaded
NOT_THE_ADAPTER = ("base_model_name_or_path", "revision", "inference_mode", "peft_version", "auto_mapping")
ALLOWED = (
    "max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps", "world_size",
    "save_steps", "logging_steps", "output_dir",
)  # fmt: skip


class RecordingTrainer(SFTTrainer):
    """SFTTrainer that logs the target's metrics, and whose checkpoints are whole or ignored and know their run."""

    args: TargetSFTConfig
    sums: dict[str, MetricSums]  # by mode: "train" and "eval"
    run: dict[str, Any] | None = None  # in the main process, once training has begun

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's log with the metrics that belong to it, reduced over processes once."""
        mode, prefix = belongs_to(logs)
        if mode is not None:
            sums = self.sums[mode].take(self._over_processes)
            if mode == "train":
                self._total_train_tokens += int(sums.get(SEEN, 0)) // self._tp_size
            logs |= {f"{prefix}{name}": value for name, value in metrics_of(sums).items()}
            if sums or "train_runtime" not in logs:
                logs[f"{prefix}num_tokens"] = self._total_train_tokens
        super().log(logs, start_time)

    def _over_processes(self, total: Tensor) -> Tensor:
        return self.accelerator.reduce(total, reduction="sum")

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """The name of the target, and as JSON the two that decide what is fitted: "target" and "teacher"."""

    def trajectory(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be continued, by the names that `resume_with_other` takes."""
        args, model, data = self.args, self.model, self.train_dataset
        base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        adapter = model.active_peft_config.to_dict() if isinstance(model, PeftModel) else {}
        adapter = {name: value for name, value in adapter.items() if name not in NOT_THE_ADAPTER}
        known = isinstance(data, Dataset) and "input_ids" in data.column_names  # neither a stream nor without tokens
        return _as_json(
            {name: value for name, value in self.record().items() if name in DISTRIBUTIONS}
            | {
                "data": Documents(data).digest if known else None,
                "batch": self.get_total_train_batch_size(args),
                "model": {"config": config_digest(base.config), "adapter": digest_json(_as_json(adapter))},
            }
            | {name: getattr(args, name) for name in SETTINGS if hasattr(args, name)}
        )

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, or continue a whole checkpoint (True or "last": the newest of this run) of the same trajectory."""
        asked = LAST if resume_from_checkpoint is True else resume_from_checkpoint or None
        self.sums["train"].reset()  # what a run that failed left behind
        answer: list[str | None] = [None, None]  # the main process's: the checkpoint, or why there is none
        if self.is_world_process_zero():
            try:
                answer[0] = self._start_run(asked)
            except ValueError as error:
                answer[1] = str(error)
        if self.args.world_size > 1:
            broadcast_object_list(answer)
        checkpoint, refusal = answer
        if refusal is not None:
            raise ValueError(refusal)
        if checkpoint:
            self.resume(Path(checkpoint))
        return super().train(checkpoint, *args, **kwargs)

    def save_beside(self, checkpoint: Path) -> None:
        """Write what this process needs to resume, beside what Trainer saves."""

    def resume(self, checkpoint: Path) -> None:
        """Take over what the checkpoint holds beside what Trainer loads."""
        self._total_train_tokens = Checkpoint(checkpoint).record.get("num_tokens", 0)

    def _start_run(self, asked: str | None) -> str | None:
        """The checkpoint to continue, checked; run.json says from now on who trains here."""
        output_dir = Path(str(self.args.output_dir))
        checkpoint = checkpoints.resolve_checkpoint(output_dir, asked)
        now = self.trajectory()
        run: dict[str, Any] = {"id": uuid.uuid4().hex[:12], "parent": None}
        if checkpoint:
            checkpoints.refuse_damaged(Path(checkpoint), self.args.checkpoint_digests)
            then = Checkpoint(Path(checkpoint)).record
            others = refuse_other_trajectory(Path(checkpoint), then.get("trajectory", then), now, self._may_differ())
            run["parent"] = {"run": then.get("run"), "checkpoint": checkpoint, "other": others}
            known, here = read_run(output_dir), Path(checkpoint).parent.resolve() == output_dir.resolve()
            if then.get("run") and here and not others:  # the same run goes on
                run = known if known and known.get("id") == then["run"] else {**run, "id": then["run"]}
        elif told := checkpoints.inhabited(output_dir):
            logger.warning(told)
        allowed = _as_json({name: getattr(self.args, name) for name in ALLOWED})
        self.run = {**run, "name": self.record()["name"], "trajectory": now, "recorded": allowed}
        if self.args.should_save:
            write_json(output_dir / RUN, self.run)
        return checkpoint

    def _may_differ(self) -> set[str]:
        named = {"teacher" if name == "reference" else name for name in self.args.resume_with_other or ()}
        return named | set(DISTRIBUTIONS if self.args.resume_with_other_target else ())

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Trainer's checkpoint between its record and its seal; older ones are rotated away only afterwards."""
        folder = self._get_output_dir(trial)
        checkpoint = Checkpoint(Path(folder, f"checkpoint-{self.state.global_step}"))
        self._total_train_tokens += self.sums["train"].take_seen(self._over_processes) // self._tp_size
        if self.args.should_save:
            known = self.run or {"id": "unknown", "trajectory": {}}
            run = {"num_tokens": self._total_train_tokens, "run": known["id"], "trajectory": known["trajectory"]}
            checkpoint.open(self.record() | run)
        self.accelerator.wait_for_everyone()  # from here on the checkpoint counts as open
        self.save_beside(checkpoint.path)
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()  # every process has written its part
        if self.args.should_save:
            checkpoint.seal(self.args.checkpoint_digests)
            if self.args.push_to_hub:
                self._push_from_checkpoint(str(checkpoint.path))
            rotate_checkpoints(folder, limit, self.state.best_model_checkpoint, use_mtime=True)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if (Path(checkpoint_folder) / MARKER).is_file():  # what is not whole is not pushed: Trainer asks before that
            with keeping_private():
                super()._push_from_checkpoint(checkpoint_folder)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        with keeping_private():
            return super().push_to_hub(*args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and "learning_rate" in self._may_differ():
            use_learning_rate(self.optimizer, self.lr_scheduler, self.args.learning_rate)


@contextmanager
def keeping_private() -> Iterator[None]:
    """Uploads of folders leave PRIVATE out meanwhile; Trainer's own list cannot be changed."""
    api_class: Any = HfApi
    upload = api_class.upload_folder

    def upload_rest(*args: Any, ignore_patterns: list[str] | None = None, **kwargs: Any) -> Any:
        return upload(*args, ignore_patterns=[*(ignore_patterns or ()), *PRIVATE], **kwargs)

    api_class.upload_folder = upload_rest
    try:
        yield
    finally:
        api_class.upload_folder = upload


def refuse_other_trajectory(
    checkpoint: Path, then: dict[str, Any], now: dict[str, Any], may_differ: set[str]
) -> list[str]:
    """The names that differ among what the checkpoint recorded, data that stream aside; all must be in `may_differ`."""
    if unknown := ", ".join(sorted(may_differ - now.keys())):
        raise ValueError(f"resume_with_other names {unknown}, which no run records. Choose from {', '.join(now)}.")
    both = {name: (then[name], now[name]) for name in now if name in then}
    differ = [name for name, (a, b) in both.items() if a != b and not (name == "data" and None in (a, b))]
    refused = [name for name in differ if name not in may_differ]
    if refused:
        told = {name: [json.dumps(value, ensure_ascii=False) for value in both[name]] for name in refused}
        lines = "".join(f"\n{name}:\n  then {old}\n  now  {new}" for name, (old, new) in told.items())
        short = " (or resume_with_other_target=True)" if set(refused) <= set(DISTRIBUTIONS) else ""
        raise ValueError(
            f"{checkpoint} was trained with another {' and '.join(refused)}:{lines}\nResuming would mix both. Use the "
            f"same, start in a new output_dir, or insist with resume_with_other={json.dumps(refused)}{short}."
        )
    return differ


def use_learning_rate(optimizer: Any, scheduler: Any, learning_rate: float) -> None:
    """Go on with another peak: what was loaded holds the checkpoint's own, and would keep it."""
    inner = getattr(scheduler, "scheduler", scheduler)  # accelerate wraps it
    if not isinstance(inner, LambdaLR):
        raise ValueError(
            f"{type(inner).__name__} keeps its learning rate. Start anew with the checkpoint as the model."
        )
    factors = [rule(inner.last_epoch) for rule in inner.lr_lambdas]
    inner.base_lrs = [learning_rate] * len(factors)
    inner._last_lr = [learning_rate * factor for factor in factors]
    for group, rate in zip(optimizer.param_groups, inner._last_lr, strict=True):
        group["initial_lr"], group["lr"] = learning_rate, rate


def _as_json(value: Any) -> Any:
    """As it will be read again: a tuple comes back as a list."""
    return json.loads(json.dumps(value, default=lambda other: sorted(other) if isinstance(other, set) else str(other)))
