"""What TRL's SFTTrainer takes, TargetSFTTrainer takes: arguments, data forms, adapters, one short run each."""

import inspect
import os
import signal
from concurrent.futures import Future
from copy import deepcopy
from pathlib import Path

import pytest
import tiny
import torch
from datasets import Dataset, DatasetDict
from peft import (
    AdaLoraConfig,
    IA3Config,
    LoHaConfig,
    LoraConfig,
    OFTConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from transformers import AutoModelForCausalLM, TrainerCallback, TrainingArguments
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from qsft.targets.target import Target
from qsft.targets.trust import Constant
from qsft.train.config import TargetSFTConfig, adopt_config
from qsft.train.trainer import TargetSFTTrainer

PLAIN = {
    "use_cpu": True, "bf16": False, "report_to": [], "max_steps": 2, "logging_steps": 1, "save_strategy": "no",
    "per_device_train_batch_size": 4, "disable_tqdm": True, "gradient_checkpointing": False,
    "dataloader_pin_memory": False,
}  # fmt: skip


@pytest.fixture
def student(tiny_model, tiny_tokenizer, tmp_path):
    """A saved Llama, whose directory brings its tokenizer along."""
    tiny_model(architecture="llama").save_pretrained(tmp_path / "student")
    tiny_tokenizer.save_pretrained(tmp_path / "student")
    return str(tmp_path / "student")


# ---- arguments ----


@pytest.mark.parametrize("kind", [TargetSFTConfig, SFTConfig, TrainingArguments])
def test_every_class_of_arguments(kind, tiny_model, tiny_tokenizer, data, tmp_path, logged):
    args = kind(output_dir=str(tmp_path / "out"), learning_rate=3e-4, **PLAIN)
    made = TargetSFTTrainer(
        tiny_model(), args, train_dataset=data.completion(), processing_class=tiny_tokenizer, teacher=tiny_model(seed=5)
    )
    made.train()
    if kind is not TrainingArguments:
        assert made.args is args  # a project's own config keeps its type and its fields
    assert (made.args.learning_rate, made.args.target, made.args.hub_token) == (3e-4, "target_sft", args.hub_token)
    assert len(logged(made)) == 2


def test_arguments_by_position_as_in_trl(tiny_model, tiny_tokenizer, data, tmp_path):
    names = list(inspect.signature(SFTTrainer.__init__).parameters)
    assert names[1:7] == ["model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class"]
    args = TargetSFTConfig(str(tmp_path / "out"), target="sft", **PLAIN)
    made = TargetSFTTrainer(tiny_model(), args, None, data.completion(), data.completion(6), tiny_tokenizer)
    made.train()
    assert "eval_loss" in made.evaluate()


def test_every_argument_of_trls_trainer(student, data, tiny_tokenizer, config, logged):
    """One that TRL adds fails here until it was tried."""
    seen = []
    on_ctrl_c = signal.getsignal(signal.SIGINT)

    class Watch(TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            seen.append(logs)
            assert signal.getsignal(signal.SIGINT) is on_ctrl_c  # a script's own, also while it trains

    def collate(features, own=DataCollatorForLanguageModeling(tiny_tokenizer.pad_token_id)):
        seen.append(features)
        return own(features)

    given = {
        "model": student,
        "args": config(max_steps=2),
        "data_collator": collate,
        "train_dataset": data.text().rename_column("text", "words"),
        "eval_dataset": data.text(4).rename_column("text", "words"),
        "processing_class": tiny_tokenizer,
        "compute_metrics": lambda prediction: {"best": prediction.predictions.shape[-1]},
        "callbacks": [Watch()],
        "optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.5}),
        "preprocess_logits_for_metrics": lambda logits, labels: logits[..., :7],
        "peft_config": LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"),
        "formatting_func": lambda row: row["words"] + " w1",
    }
    elsewhere = {"self", "compute_loss_func", "optimizers", "quantization_config"}  # an error; below; needs a GPU
    assert given.keys() | elsewhere == set(inspect.signature(SFTTrainer.__init__).parameters)
    made = TargetSFTTrainer(**given)
    made.train()
    assert len(logged(made)) == 2
    assert isinstance(made.optimizer.optimizer, torch.optim.SGD)
    assert isinstance(made.model, PeftModel)
    assert made.evaluate()["eval_best"] == 7
    assert {type(one) for one in seen} == {dict, list}  # logs and features


def test_an_optimizer_of_the_users_own(trainer, data, tiny_model):
    model = tiny_model()
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    made = trainer(data.tokens(), model=model, optimizers=(mine, None), max_steps=1)
    made.train()
    assert made.optimizer.optimizer is mine


def test_no_arguments_but_a_name_of_a_model(student, data, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    made = TargetSFTTrainer(student, train_dataset=data.text(), target=Target(Constant(1.0)))
    assert made.args.output_dir == "student-Target-SFT"


def test_no_arguments_but_a_model_in_memory(student, tiny_model, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    assert adopt_config(None, AutoModelForCausalLM.from_pretrained(student)).output_dir == "student-Target-SFT"
    assert adopt_config(None, tiny_model()).output_dir == "Qwen2ForCausalLM-Target-SFT"


def test_loss_type_dft_names_the_target(config, trainer, data, logged):
    made = trainer(data.completion(), target="dft", loss_type="dft")
    named = trainer(data.completion(), target="dft")
    made.train()
    named.train()
    assert logged(made) == logged(named)
    plain = SFTConfig(named.args.output_dir, loss_type="dft", eos_token="<|eos|>", use_cpu=True, bf16=False)
    adopted = adopt_config(plain, None)
    assert adopted is plain
    assert adopted.target == "dft"
    assert adopted.eos_token == "<|eos|>"
    with pytest.raises(ValueError, match="target='kd' and loss_type='dft' name two losses"):
        config(target="kd", loss_type="dft")


# ---- data ----


TURNS = [{"role": role, "content": "w1 w2"} for role in ("user", "assistant")]
SHARED = [{"from": name, "value": "w1 w2"} for name in ("human", "gpt")]
TOOL = {"type": "function", "function": {"name": "w1", "parameters": {"type": "object", "properties": {}}}}
CALL = {"type": "function", "function": {"name": "w1", "arguments": {"w5": "w6"}}}
CALLED = [TURNS[0], {**TURNS[1], "tool_calls": [CALL]}, {"role": "tool", "name": "w1", "content": "w3"}, TURNS[1]]
OTHER_FORMS = {
    "chat completion": {"prompt": TURNS[:1], "completion": TURNS[1:]},
    "conversations": {"conversations": SHARED},
    "tools": {"messages": TURNS, "tools": "[]"},
    "tool calls": {"messages": CALLED, "tools": [TOOL]},
    "template kwargs": {"messages": TURNS, "chat_template_kwargs": {"enable_thinking": False}},
    "ids alone": {"input_ids": [30, 31, 32, 33]},
    "completion mask": {"input_ids": [30, 31, 32, 33], "completion_mask": [0, 0, 1, 1]},
    "assistant masks": {"input_ids": [30, 31, 32, 33], "assistant_masks": [0, 0, 1, 1]},
}


@pytest.mark.parametrize("form", ["text", "completion", "chat", "tokens", *OTHER_FORMS])
@pytest.mark.parametrize("stream", [False, True], ids=["map", "stream"])
def test_every_form_of_data(trainer, data, logged, form, stream):
    rows = Dataset.from_list([OTHER_FORMS[form]] * 8) if form in OTHER_FORMS else getattr(data, form)(8)
    masked = {"completion_only_loss": True} if form == "completion mask" else {}
    made = trainer(rows.to_iterable_dataset() if stream else rows, max_steps=1, **masked)
    made.train()
    assert logged(made)[0] > 0
    if "mask" in form:
        assert next(iter(made.train_dataset))["labels"] == [-100, -100, 32, 33]


SETTINGS = {
    "text": {
        "dataset_text_field": "words", "eos_token": "w9", "pad_token": "w8", "shuffle_dataset": True, "max_length": 8,
        "truncation_mode": "keep_end", "pad_to_multiple_of": 4, "dataset_num_proc": 1,
    },
    "chat": {
        "chat_template_path": "template.jinja", "assistant_only_loss": True, "packing": True, "max_length": 32,
        "packing_strategy": "bfd_split", "eval_packing": False,
    },
    "completion": {"completion_only_loss": False, "padding_free": True, "max_length": None},
    "tokens": {
        "dataset_kwargs": {"skip_prepare_dataset": True}, "model_init_kwargs": {"dtype": "bfloat16"},
        "trust_remote_code": True, "gradient_checkpointing": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("form", SETTINGS)
def test_every_setting_of_trls_config(config, student, data, tmp_path, logged, tiny_model, monkeypatch, form):
    """With a teacher's cache, whose documents must be those that TRL makes. A setting that TRL adds fails here."""
    monkeypatch.setattr(os, "environ", os.environ)  # map(num_proc=…) leaves a copy, which other libraries do not see
    elsewhere = {"learning_rate", "loss_type", "router_aux_loss_coef"}  # test_same_as_trl.py
    elsewhere |= {"activation_offloading"}  # needs a GPU
    assert elsewhere.union(*SETTINGS.values()) >= set(SFTConfig.__annotations__)
    rows = getattr(data, form)(8)
    settings = dict(SETTINGS[form])
    rows = rows.rename_column("text", "words") if form == "text" else rows
    if form == "chat":
        (tmp_path / "template.jinja").write_text(tiny.CHAT_TEMPLATE)
        settings["chat_template_path"] = str(tmp_path / "template.jinja")
    args = config(target="target_sft", teacher_cache=str(tmp_path / "cache"), teacher_top_k=8, max_steps=1, **settings)
    made = TargetSFTTrainer(
        student, args, train_dataset=rows, eval_dataset=rows, processing_class=tiny.make_tokenizer(),
        teacher=tiny_model(seed=5),
    )  # fmt: skip
    made.train()
    made.evaluate()
    assert logged(made, "fallback_tokens") + logged(made, "eval_fallback_tokens") == [0, 0]
    assert made.model.dtype == (torch.bfloat16 if "model_init_kwargs" in settings else torch.float32)


def test_a_chat_template_that_brings_tokens_along(trainer, data, tmp_path, tiny_model):
    """TRL adds them to tokenizer and model; a teacher without them is an error where a document uses one."""
    other = tiny.make_tokenizer()
    other.add_tokens(["<extra>"])
    other.save_pretrained(tmp_path / "other")
    settings = {"chat_template_path": str(tmp_path / "other"), "max_steps": 1}
    trainer(data.chat(8), processing_class=tiny.make_tokenizer(), **settings).train()
    settings |= {"target": "target_sft", "teacher": tiny_model(seed=5)}
    made = trainer(data.chat(8), processing_class=tiny.make_tokenizer(), **settings)
    made.train()
    assert len(made.processing_class) > tiny.VOCAB_SIZE


def test_a_formatting_function_and_evaluation_by_name(trainer, data):
    held_out = DatasetDict({"a": data.text(6), "b": data.text(8)})
    made = trainer(data.text(), formatting_func=lambda row: row["text"] + " w1", eval_dataset=held_out, max_steps=1)
    made.train()
    assert {"eval_a_loss", "eval_b_gamma"} <= set(made.evaluate())


def test_streaming_data_need_a_live_teacher_or_a_prebuilt_cache(trainer, data, student):
    stream = data.completion().to_iterable_dataset()
    with pytest.raises(ValueError, match=r"the data are streamed.*teacher_live=True.*teacher_cache=DIRECTORY"):
        trainer(stream, target="target_sft", teacher=student)
    with pytest.raises(ValueError, match=r"the data are streamed, so the log-probs of the student.*teacher_live=True"):
        trainer(stream, target="sft_kl")
    with pytest.raises(ValueError, match="the data are streamed"):  # now, not at the first evaluation
        trainer(data.completion(), eval_dataset={"a": stream}, target="target_sft", teacher=student)
    trainer(stream, target="target_sft", teacher=student, teacher_live=True, max_steps=1).train()
    built = trainer(data.completion(), target="target_sft", teacher=student).cache.path
    trainer(stream, target="target_sft", teacher_cache=str(built), max_steps=1).train()


def test_data_passed_to_predict_are_prepared_and_get_their_teacher_log_probs(trainer, data, student):
    made = trainer(data.completion(12), target="target_sft", teacher=student, teacher_top_k=7)
    known = len(made.cache)
    result = made.predict(data.completion(20))
    assert len(made.cache) > known
    assert result.metrics["test_loss"] > 0
    assert made.evaluate(data.completion(20))["eval_loss"] == pytest.approx(result.metrics["test_loss"])


# ---- the teacher ----


def test_a_path_is_a_model_when_it_holds_one_and_a_cache_when_it_holds_one(trainer, data, student):
    made = trainer(data.completion(), target="target_sft", teacher=Path(student))
    assert made.cache.manifest.identity.teacher["name"] == student
    again = trainer(data.completion(), target="target_sft", teacher=made.cache.path)
    assert again.cache.path == made.cache.path
    with pytest.raises(ValueError, match="there is no teacher cache nowhere"):
        trainer(data.completion(), target="target_sft", teacher=Path("nowhere"))


# ---- adapters ----

PROMPTS = {
    "prompt tuning": PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "p-tuning": PromptEncoderConfig(num_virtual_tokens=4, encoder_hidden_size=16, task_type="CAUSAL_LM"),
    "prefix tuning": PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
}


@pytest.mark.parametrize(("kind", "target"), [*((kind, "sft") for kind in PROMPTS), ("prompt tuning", "dft")])
def test_prompt_learning_is_trls(trainer, config, data, tiny_model, tiny_tokenizer, logged, kind, target):
    made = trainer(data.completion(), target=target, peft_config=PROMPTS[kind], learning_rate=1e-2)
    before = [p.detach().clone() for p in made.model.parameters() if p.requires_grad]
    made.train()
    assert not all(p.equal(old) for p, old in zip((p for p in made.model.parameters() if p.requires_grad), before))
    loss_type = {"sft": "nll", "dft": "dft"}[target]
    args = config(target="sft", learning_rate=1e-2)
    args.loss_type = loss_type
    theirs = SFTTrainer(
        tiny_model(), args, train_dataset=data.completion(), processing_class=tiny_tokenizer, peft_config=PROMPTS[kind]
    )
    theirs.train()
    assert logged(made) == pytest.approx(logged(theirs), rel=1e-4)


ON_Q = {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
ADAPTERS = {
    "dora": LoraConfig(r=2, target_modules="all-linear", use_dora=True, task_type="CAUSAL_LM"),
    "trained tokens": LoraConfig(r=2, trainable_token_indices={"embed_tokens": [30, 31]}, **ON_Q),
    "loha": LoHaConfig(r=2, **ON_Q),
    "oft": OFTConfig(oft_block_size=4, **ON_Q),
    "ia3": IA3Config(feedforward_modules=[], **ON_Q),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_other_adapters(trainer, data, tiny_model, logged, kind):
    made = trainer(data.completion(), model=get_peft_model(tiny_model(), deepcopy(ADAPTERS[kind])), max_steps=2)
    made.train()
    assert isinstance(made.model, PeftModel)
    assert len(logged(made)) == 2


def test_a_penalty_on_the_models_own_loss_raises_an_error(trainer, data, tiny_model):
    with pytest.raises(ValueError, match=r"orth_reg_weight=0\.5.*Use LoRA"):
        trainer(data.completion(), model=get_peft_model(tiny_model(), AdaLoraConfig(total_step=10, **ON_Q)))


# ---- logs ----


def test_the_final_log_has_what_was_not_logged_yet_and_the_sums_are_reset(trainer, data):
    made = trainer(data.completion(), max_steps=3, logging_steps=2)
    made.train()
    first, last = (entry for entry in made.state.log_history if "gamma" in entry)
    assert "train_runtime" in last
    assert last["num_tokens"] > first["num_tokens"]
    assert made.metric_sums["train"].total is None
    short = trainer(data.completion(), max_steps=1, logging_steps=50)
    short.train()
    assert short.state.log_history[-1]["nll"] > 0


def test_a_failed_run_leaves_nothing_for_the_next(trainer, data):
    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("out of luck")

    made = trainer(data.tokens(8), max_steps=2, per_device_train_batch_size=8, callbacks=[Fails()])
    with pytest.raises(RuntimeError, match="out of luck"):
        made.train()
    made.remove_callback(Fails)
    made.train()
    seen = sum(map(len, made.train_dataset["input_ids"]))
    assert made.state.log_history[0]["num_tokens"] == seen


def test_a_constant_gamma_of_one_has_quartiles_of_one(trainer, data):
    made = trainer(data.completion(), max_steps=1)
    made.train()
    first = made.state.log_history[0]
    assert [first[f"gamma_q{q}"] for q in (25, 50, 75)] == [1.0] * 3


# ---- the hub ----


def test_an_upload_skips_underscores_and_a_checkpoint_is_uploaded_when_complete(trainer, data, monkeypatch):
    from huggingface_hub import HfApi

    uploads = []

    def upload(self, *args, **kwargs):
        uploads.append(kwargs)
        kwargs["folder_path"] = Path(kwargs["folder_path"])
        uploads[-1]["files"] = sorted(file.name for file in kwargs["folder_path"].iterdir())
        done = Future()
        done.set_result(None)
        return done

    monkeypatch.setattr(HfApi, "upload_folder", upload)
    made = trainer(data.tokens(), max_steps=1, save_strategy="steps", save_steps=1, hub_strategy="checkpoint")
    monkeypatch.setattr(made, "init_hf_repo", lambda token=None: None)
    made.hub_model_id = "someone/something"
    made.push_in_progress = None
    made.args.push_to_hub = True
    made.train()
    made.push_to_hub()
    whole, checkpoint, last = uploads
    for patterns in (whole["ignore_patterns"], last["ignore_patterns"]):
        assert {"_*", "checkpoint-*"} <= set(patterns)  # _eval/ and _curated/ stay here
    assert "complete.json" in checkpoint["files"]


def test_a_model_saved_by_the_trainer_is_plain(trainer, data, tmp_path):
    made = trainer(data.tokens(), max_steps=1)
    made.train()
    made.save_model(str(tmp_path / "saved"))
    ids = torch.tensor([[30, 31, 32]])
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(again(ids).logits, made.model.eval()(ids).logits)
