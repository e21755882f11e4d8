"""One process of a launch: trains every case in one process group and writes what it logged.

accelerate launch --config_file … worker.py WORLD RUN CASES

WORLD holds models, tokenizer, rows and cache; RUN is this launch's own directory; CASES is a JSON list of cases.
"""

import gc
import json
import os
import signal
import sys
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, set_seed
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback, training_args

from qsft.losses import head
from qsft.processes import exit_process, process_group
from qsft.train.config import TargetSFTConfig
from qsft.train.open_teacher import open_live
from qsft.train.teacher import LiveModel, TeacherModel, frozen_copy
from qsft.train.trainer import TargetSFTTrainer

WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
RANK = os.environ.get("RANK", "0")
DEEPSPEED = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
FSDP = os.environ.get("ACCELERATE_USE_FSDP") == "true"
MICRO_BATCH = 4  # over all processes
LOGGED = ("loss", "grad_norm", "label_loss", "gamma", "entropy", "mean_token_accuracy", "num_tokens")


def allow_cpu():
    """Let accelerate, transformers and DeepSpeed do on the CPU what they keep for GPUs; nothing that runs is faked."""
    training_args.is_torch_bf16_gpu_available = lambda: True
    if FSDP:  # accelerate would silently train with DDP
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
        PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)
    if DEEPSPEED:  # it would compile shared-memory kernels for two minutes; without them it uses gloo
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class TeacherMass:
    """Stands before the fused head and adds up the teacher's probabilities that reach it."""

    def __init__(self):
        self.mass, self.fused = 0.0, head.fused_target_loss
        head.fused_target_loss = self

    def __call__(self, hidden, weight, labels, target, teacher=None, **rest):
        if teacher is not None:
            self.mass += teacher.logps.double().exp().sum().item()
        return self.fused(hidden, weight, labels, target, teacher, **rest)


def settings(case, world, run):
    """The same optimizer steps on the same documents, however many processes share them."""
    teacher = case.get("teacher", "cache")
    cache = {"cache": world / "cache", "built": run / "cache", "live": None}[teacher]
    dispatched = case.get("dispatched", False)
    return TargetSFTConfig(
        output_dir=str(run / case["name"]),
        target=case["target"],
        teacher_cache=cache and str(cache),
        teacher_model_name_or_path=None if teacher == "cache" else str(world / "teacher"),
        teacher_live=teacher == "live",
        teacher_top_k=16,
        per_device_train_batch_size=MICRO_BATCH if dispatched else MICRO_BATCH // WORLD_SIZE,
        accelerator_config={"dispatch_batches": True, "split_batches": True} if dispatched else None,
        gradient_accumulation_steps=2,
        max_steps=case.get("steps", 3),
        learning_rate=case.get("learning_rate", 1e-3),
        # Adam divides by the gradient's size: where that is rounding only, it would magnify it.
        adam_epsilon=case.get("adam_epsilon", 1e-5),
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="steps" if case.get("save") else "no",
        save_steps=2,
        bf16=case.get("bf16", False),
        use_cpu=not (DEEPSPEED or FSDP),
        ddp_backend="gloo" if WORLD_SIZE > 1 else None,
        optim="adamw_torch",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        model_init_kwargs={"dtype": case.get("dtype", "float32")},
    )


def train(case, world, run, seen):
    """Train one case, from the checkpoint it names if any; what was logged, and what really ran."""
    args = settings(case, world, run)
    set_seed(args.seed)  # of LoRA's first weights
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    rows = Dataset.from_json(str(world / "rows.jsonl"))
    trainer = TargetSFTTrainer(
        str(world / case["model"]),
        args,
        train_dataset=rows.to_iterable_dataset() if case.get("streamed") else rows,
        processing_class=PreTrainedTokenizerFast.from_pretrained(world),
        peft_config=lora if case.get("lora") else None,
    )
    seen.mass = 0.0
    updates = WeightUpdates(world / case["model"])
    if "learning_rate" in case:
        trainer.add_callback(updates)
    if case.get("dies") == RANK:
        die_after_writing(trainer)
    checkpoint = case.get("resumes") and str(run / case["resumes"] / "checkpoint-2")
    trainer.train(resume_from_checkpoint=case.get("checkpoint") or checkpoint)
    if case.get("save"):
        trainer.save_model()
    if "learning_rate" in case and RANK == "0":
        Path(args.output_dir).mkdir(exist_ok=True)
        save_file(updates.weights, Path(args.output_dir, "weights.safetensors"))
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    logged = {name: [entry[name] for entry in steps] for name in LOGGED}
    return {**logged, "teacher_mass": seen.mass, **updates.measured, **what_ran(trainer)}


class WeightUpdates(TrainerCallback):
    """Reads the weights that the optimizer updates after each step; counts those that the first step left unchanged."""

    def __init__(self, start):
        self.start = load_file(start / "model.safetensors")
        self.weights = {}
        self.measured = {}

    def on_step_end(self, args, state, control, model, **_):
        self.weights = {name: full_weight(parameter) for name, parameter in model.named_parameters()}
        if state.global_step == 1:
            pairs = [(self.weights[name], self.start[name].to(self.weights[name].dtype)) for name in self.start]
            unchanged = sum(int((new == old).sum()) for new, old in pairs)
            self.measured["unchanged_after_one_step"] = unchanged / sum(new.numel() for new, _ in pairs)


def full_weight(parameter):
    """The float32 weight of a parameter that may be sharded by FSDP2 or kept by DeepSpeed beside a bf16 copy."""
    if DEEPSPEED:
        from deepspeed.utils import safe_get_full_fp32_param

        return safe_get_full_fp32_param(parameter).detach().cpu().clone()
    if isinstance(parameter, DTensor):
        return parameter.full_tensor().detach().clone()
    return parameter.detach().clone()


def die_after_writing(trainer):
    """Kill this process inside its second save, when its own files are written and the checkpoint is not whole."""
    save, calls = trainer._save_rng_state, []

    def dies(folder):
        save(folder)
        calls.append(folder)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer._save_rng_state = dies


def what_ran(trainer):
    """How many processes took part, and what the model was wrapped in: both can be wrong in silence."""
    wrapped = trainer.model_wrapped
    return {
        "world_size": torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1,
        "classes": [kind.__name__ for kind in type(wrapped).__mro__],
        "zero_stage": wrapped.zero_optimization_stage() if DEEPSPEED else None,
        "sharded_by_fsdp2": any(isinstance(p, DTensor) for p in wrapped.parameters()),
    }


def refuse_empty_copies(world, run):
    """The errors for teachers in memory that are empty in all but one process, as RAM-efficient loading may leave them.

    Which versions of transformers leave them so varies; here the weights are zeroed by hand.
    """
    sharded = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    args = settings({"name": "empty", "target": "target_sft"}, world, run)
    errors = []
    path = world / "teacher"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(world)
    model = AutoModelForCausalLM.from_pretrained(path)
    if RANK != "0":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    for teacher in (model, frozen_copy(model)):
        try:
            open_live(LiveModel(TeacherModel(teacher, {})), nn.Module(), tokenizer, args)
        except ValueError as error:
            errors.append(str(error))
    os.environ.update(sharded)
    named = open_live(LiveModel(TeacherModel(str(path), {})), nn.Module(), tokenizer, args)
    assert any(parameter.any() for parameter in named.model.parameters())
    for name in sharded:
        del os.environ[name]
    return errors


def main():
    world, run, cases = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    allow_cpu()
    seen = TeacherMass()
    gc.freeze()  # every case collects garbage: not among all that is imported
    with process_group():
        results = {case["name"]: train(case, world, run, seen) for case in cases}
        if WORLD_SIZE > 1 and not (DEEPSPEED or FSDP):
            results["empty_copies"] = refuse_empty_copies(world, run)
    assert not torch.distributed.is_initialized()
    (run / f"rank{RANK}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
    exit_process(0)
