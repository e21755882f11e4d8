"""Patterns of public TRL scripts behave with TargetSFTTrainer as with SFTTrainer."""

import inspect
import pickle
from dataclasses import dataclass, field

import pytest
import torch
from datasets import Dataset, DatasetDict
from peft import LoraConfig, get_peft_model
from transformers import DataCollatorForSeq2Seq, TrainerCallback
from trl import SFTConfig, SFTTrainer

from qsft.losses.head import label_logps
from qsft.targets.registry import make_target
from qsft.train.trainer import TargetSFTTrainer


@pytest.fixture
def saved(tiny_model, tiny_tokenizer, tmp_path):
    """Factory: the path of a saved tiny model with its tokenizer."""

    def make(name="student", dtype=torch.float32, **overrides):
        tiny_model(**overrides).to(dtype).save_pretrained(tmp_path / name)
        tiny_tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return make


def lora(**settings):
    return LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **settings)


# ---- the constructor ----


def test_the_signature_is_trls_with_two_keywords():
    ours = inspect.signature(TargetSFTTrainer.__init__).parameters
    theirs = inspect.signature(SFTTrainer.__init__).parameters
    assert list(ours) == [*theirs, "target", "teacher"]
    for name, parameter in theirs.items():
        assert ours[name].kind == parameter.kind
        assert ours[name].default == parameter.default


def test_a_misspelled_argument_is_a_type_error(tiny_model, config, data):
    with pytest.raises(TypeError, match="trian_dataset"):
        TargetSFTTrainer(tiny_model(), config(), trian_dataset=data.text())


@pytest.mark.parametrize("target", ["dft", None])
def test_a_target_is_given_by_name(tiny_model, config, tiny_tokenizer, data, target):
    args = config(target="dft", max_steps=1)
    made = TargetSFTTrainer(
        tiny_model(), args, train_dataset=data.text(), processing_class=tiny_tokenizer, target=target
    )
    assert made.target_name == "dft"
    made.train()


def test_a_target_of_another_type_is_a_type_error(tiny_model, config, data):
    with pytest.raises(TypeError, match=r"must be a name .* a Target or a LossTarget, got float"):
        TargetSFTTrainer(tiny_model(), config(), train_dataset=data.text(), target=0.5)


@pytest.mark.parametrize("target", [None, ["sft"], make_target("sft")], ids=["None", "list", "Target"])
def test_the_target_of_the_config_is_a_name(config, target):
    with pytest.raises(
        TypeError, match=r"target of the config must be a name .* Pass a Target or a LossTarget to the trainer"
    ):
        config(target=target)


@pytest.mark.parametrize("teacher", [3, ["model"]])
def test_a_teacher_of_another_type_is_a_type_error(tiny_model, config, data, teacher):
    with pytest.raises(TypeError, match=r"teacher must be a TeacherCache, .* got (int|list)"):
        TargetSFTTrainer(tiny_model(), config(), train_dataset=data.text(), teacher=teacher)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "dtf"}, "Did you mean 'dft'"),
        ({"target": "dft", "target_kwargs": {"etta": 1}}, "no hyper-parameter 'etta'"),
        ({"target": "target_sft", "target_kwargs": {"eta": 7}}, "out of range"),
    ],
)
def test_a_wrong_target_fails_when_the_config_is_made(config, settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings)


def test_target_kwargs_of_another_type_are_a_type_error(config):
    with pytest.raises(TypeError, match=r"target_kwargs must be a dict such as .* got int"):
        config(target_kwargs=3)


# ---- the config ----


@dataclass
class ProjectConfig(SFTConfig):
    """A project's own config, as open-r1 has one."""

    hub_model_revision: str = field(default="main")


def test_a_projects_config_keeps_its_type_and_fields(tiny_model, tiny_tokenizer, data, tmp_path):
    read = []

    class Reader(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            read.append(args.hub_model_revision)

    args = ProjectConfig(
        str(tmp_path / "run"),
        hub_model_revision="v1",
        use_cpu=True,
        bf16=False,
        max_steps=1,
        report_to=[],
        max_length=64,
    )
    made = TargetSFTTrainer(
        tiny_model(),
        args,
        train_dataset=data.text(),
        processing_class=tiny_tokenizer,
        callbacks=[Reader()],
        teacher=tiny_model(seed=5),
    )
    assert made.args is args
    assert args.target == "target_sft"
    made.train()
    assert read == ["v1"]
    assert type(pickle.loads(pickle.dumps(made.args))) is ProjectConfig  # training_args.bin


# ---- batches and collators ----


@pytest.mark.parametrize("packing", [False, True])
def test_every_entry_of_a_batch_is_a_tensor(trainer, data, tiny_model, tmp_path, packing):
    made = trainer(
        data.completion(),
        target="target_sft",
        teacher=tiny_model(seed=5),
        teacher_cache=str(tmp_path / "c"),
        packing=packing,
        max_length=32,
    )
    batch = next(iter(made.get_train_dataloader()))
    plain = made.data_collator.base_collator(
        list(made.train_dataset)[:4]
    )  # TRL's packed batches hold integers themselves
    moved = {name: value.to("cpu") for name, value in batch.items() if name not in plain or not packing}
    assert moved["label_positions"].dtype == torch.int64


def test_a_setting_of_the_collator_reaches_the_collator(trainer, data):
    made = trainer(data.completion())
    made.data_collator.pad_to_multiple_of = 32
    assert next(iter(made.get_train_dataloader()))["input_ids"].shape[1] % 32 == 0


def test_a_custom_collator_gets_the_columns_that_trainer_gives(config, tiny_model, tiny_tokenizer, data, tmp_path):
    """DataCollatorForSeq2Seq cannot pad the text that the data set still has beside the tokens."""
    made = TargetSFTTrainer(
        tiny_model(),
        config(target="target_sft", teacher_cache=str(tmp_path / "c"), teacher_top_k=8),
        train_dataset=data.text(),
        data_collator=DataCollatorForSeq2Seq(tiny_tokenizer),
        processing_class=tiny_tokenizer,
        teacher=tiny_model(seed=5),
    )
    made.train()


def relabel_last_token_only(dataset):
    def relabel(example):
        ids = example["input_ids"]
        return {"labels": [-100] * (len(ids) - 1) + ids[-1:]}

    return dataset.map(relabel)


@pytest.mark.parametrize("target", ["sft", "target_sft"])
def test_data_that_are_relabeled_after_construction_are_followed(
    trainer, config, tiny_model, tiny_tokenizer, data, logged, tmp_path, target
):
    """As Unsloth's train_on_responses_only does: new labels and a new collator on the finished trainer."""
    settings = {"target": target, "teacher_top_k": 8}
    if target == "target_sft":
        settings |= {"teacher": tiny_model(seed=5), "teacher_cache": str(tmp_path / "c")}
    made = trainer(data.text(), **settings)
    made.train_dataset = relabel_last_token_only(made.train_dataset)
    made.data_collator = DataCollatorForSeq2Seq(tiny_tokenizer)
    made.train()
    if target == "sft":
        plain = SFTTrainer(tiny_model(), config(), train_dataset=data.text(), processing_class=tiny_tokenizer)
        plain.train_dataset = relabel_last_token_only(plain.train_dataset)
        plain.data_collator = DataCollatorForSeq2Seq(tiny_tokenizer)
        plain.train()
        assert logged(made) == pytest.approx(logged(plain), abs=1e-5)
    else:
        assert logged(made, "fallback_tokens") == [0] * 4  # every document has its teacher


# ---- subclasses ----


def test_a_compute_loss_that_replaces_ours_is_warned_of(config, tiny_model, tiny_tokenizer, data, caplog):
    class Replaces(TargetSFTTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(input_ids=inputs["input_ids"], labels=inputs["labels"]).loss

    class Extends(TargetSFTTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def build(kind):
        caplog.clear()
        kind(tiny_model(), config(), train_dataset=data.text(), processing_class=tiny_tokenizer)
        return caplog.text

    assert "Replaces.compute_loss replaces TargetSFTTrainer.compute_loss" in build(Replaces)
    assert "compute_loss" not in build(Extends)
    assert "compute_loss" not in build(TargetSFTTrainer)


# ---- evaluation ----


def test_the_metrics_of_several_evaluation_sets_have_trls_names(trainer, data, tmp_path):
    made = trainer(
        data.completion(),
        eval_dataset={"a": data.completion(8), "b": data.completion(4)},
        metric_for_best_model="eval_mean_token_accuracy",
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
    )
    made.train()
    assert made.state.best_metric is not None
    logs = {name for entry in made.state.log_history for name in entry}
    assert {"eval_a_mean_token_accuracy", "eval_b_mean_token_accuracy", "eval_mean_token_accuracy"} <= logs


@pytest.mark.parametrize("packing", [False, True])
def test_predict_takes_prepared_data_as_they_are(trainer, config, tiny_model, tiny_tokenizer, data, packing):
    settings = {"packing": packing, "max_length": 32, "prediction_loss_only": True}
    made = trainer(data.completion(), **settings)
    plain = SFTTrainer(
        tiny_model(), config(**settings), train_dataset=data.completion(), processing_class=tiny_tokenizer
    )
    ours = made.predict(made.train_dataset).metrics["test_loss"]
    assert ours == pytest.approx(plain.predict(plain.train_dataset).metrics["test_loss"], abs=1e-5)
    assert ours == pytest.approx(made.evaluate(made.train_dataset)["eval_loss"], abs=1e-5)


def test_a_stream_to_evaluate_with_a_model_as_the_teacher_needs_a_live_one(trainer, data, saved):
    made = trainer(data.completion(), target="target_sft", teacher=saved("teacher", seed=5), teacher_top_k=8)
    stream = data.completion(4).to_iterable_dataset()
    with pytest.raises(ValueError, match=r"the data are streamed.*teacher_live=True"):
        made.evaluate(stream)
    live = trainer(data.completion(), target="target_sft", teacher=saved("teacher", seed=5), teacher_live=True)
    assert live.evaluate(stream)["eval_loss"] > 0


# ---- what "base" is ----


@pytest.mark.parametrize("initialization", ["pissa", "pissa_niter_4", "olora"])
@pytest.mark.parametrize("how", ["module", "name"])
def test_the_base_of_an_adapter_that_took_weight_out_of_it_is_the_original(
    trainer, saved, tiny_model, data, initialization, how
):
    student = saved() if how == "name" else tiny_model()
    made = trainer(
        data.completion(),
        model=student,
        target="sft_kl",
        teacher="base",
        teacher_live=True,
        peft_config=lora(init_lora_weights=initialization),
    )
    batch = made.data_collator(list(made.train_dataset)[:4])
    names = ("input_ids", "attention_mask", "labels")
    inputs = {name: batch[name] for name in names}
    base = made.live_teacher(**inputs).label_logp
    original = label_logps(tiny_model(), **inputs)[:, 1:].flatten()[batch["label_positions"]]
    torch.testing.assert_close(base, original, atol=1e-5, rtol=1e-5)


def test_an_adapter_that_took_weight_out_of_the_base_before_is_rejected_by_name(trainer, tiny_model, data):
    student = get_peft_model(tiny_model(), lora(init_lora_weights="pissa"))
    with pytest.raises(ValueError, match=r"init_lora_weights='pissa'.*changes the base's weights"):
        trainer(data.completion(), model=student, target="sft_kl", teacher="base")


def test_a_live_base_loaded_by_name_has_the_students_dtype(config, saved, data):
    name = saved(dtype=torch.bfloat16)
    args = config(target="sft_kl", teacher_live=True)
    made = TargetSFTTrainer(name, args, train_dataset=data.completion(), teacher="base")
    assert made.model.dtype == torch.float32  # TRL's default
    assert made.live_teacher.model.dtype == torch.float32


@pytest.mark.parametrize("order", [("teacher", "base"), ("base", "teacher")])
def test_a_model_as_teacher_and_as_base_have_caches_side_by_side(config, saved, data, order):
    """The student is loaded in float32, a teacher in its own dtype: two identities under one name."""
    name = saved(dtype=torch.bfloat16)
    paths = {}
    for role in order:
        args = config(target="kd_hybrid", teacher_top_k=8, max_steps=1)
        teacher = name if role == "teacher" else "base"
        made = TargetSFTTrainer(name, args, train_dataset=data.completion(), teacher=teacher)
        made.train()
        paths[role] = made.cache.path
    assert paths["teacher"] != paths["base"]


REMOTE_CODE = """
from transformers import Qwen2Config, Qwen2ForCausalLM

class RemoteConfig(Qwen2Config):
    model_type = "remote_qwen2"

class RemoteForCausalLM(Qwen2ForCausalLM):
    config_class = RemoteConfig
"""


@pytest.fixture
def remote(tiny_model, tiny_tokenizer, tmp_path):
    """A model whose repository brings its own code."""
    import json

    folder = tmp_path / "remote"
    tiny_model().save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    (folder / "modeling_remote.py").write_text(REMOTE_CODE)
    written = json.loads((folder / "config.json").read_text())
    written |= {
        "model_type": "remote_qwen2",
        "architectures": ["RemoteForCausalLM"],
        "auto_map": {
            "AutoConfig": "modeling_remote.RemoteConfig",
            "AutoModelForCausalLM": "modeling_remote.RemoteForCausalLM",
        },
    }
    (folder / "config.json").write_text(json.dumps(written))
    return str(folder)


@pytest.mark.parametrize("live", [False, True], ids=["cached", "live"])
def test_trust_in_the_students_code_reaches_its_base(config, remote, data, live, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    args = config(target="sft_kl", teacher_live=live, trust_remote_code=True, max_steps=1, teacher_top_k=8)
    made = TargetSFTTrainer(remote, args, train_dataset=data.completion(), teacher="base")
    made.train()
    assert type(made.model).__name__ == "RemoteForCausalLM"


@pytest.mark.parametrize("live", [False, True], ids=["cached", "live"])
def test_another_teachers_code_needs_trust_of_its_own(trainer, remote, data, live):
    settings = {"target": "kd", "teacher": remote, "teacher_live": live, "max_steps": 1, "teacher_top_k": 8}
    with pytest.raises((ValueError, OSError), match="trust_remote_code"):
        trainer(data.completion(), trust_remote_code=True, **settings)
    trainer(data.completion(), teacher_model_init_kwargs={"trust_remote_code": True}, **settings).train()


# ---- messages ----


WITHOUT_A_LABEL = {
    "none": {"input_ids": [5, 6, 7], "labels": [-100] * 3},
    "the first token's": {"input_ids": [5, 6, 7], "labels": [5, -100, -100]},
    "one token": {"input_ids": [5], "labels": [5]},
    "an end token": {"text": ""},
}


@pytest.mark.parametrize("row", WITHOUT_A_LABEL)
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("target", ["sft", "target_sft"])
def test_data_without_a_label_say_so(trainer, tiny_model, packing, target, row):
    rows = Dataset.from_list([WITHOUT_A_LABEL[row]] * 4)
    settings = {"target": target, "packing": packing, "max_length": 8}
    if target == "target_sft":
        settings["teacher"] = tiny_model(seed=5)
    with pytest.raises(ValueError, match=r"none of the 4 examples of the train data set has a label left"):
        trainer(rows, **settings)


def test_only_empty_documents_under_packing_say_so(trainer):
    rows = Dataset.from_dict({"input_ids": [[], []], "labels": [[], []]})
    with pytest.raises(ValueError, match="empty"):
        trainer(rows, packing=True, max_length=8)


def test_data_without_usable_columns_say_so(trainer):
    with pytest.raises(ValueError, match=r"has the columns question, answer.*messages, or prompt"):
        trainer(Dataset.from_list([{"question": "w1", "answer": "w2"}] * 4))


def test_a_dict_of_splits_to_train_on_is_trls_type_error(trainer, data):
    with pytest.raises(TypeError, match=r"must be a `Dataset` or `IterableDataset`, got `DatasetDict`"):
        trainer(DatasetDict(train=data.completion()))


def test_a_column_that_the_target_reads_is_named_before_any_work(trainer, data):
    with pytest.raises(ValueError, match=r"reads the column 'critical'.*critical_column"):
        trainer(data.completion(), target="cft")


@pytest.mark.parametrize("target", ["sft", "kd"])
def test_ids_outside_the_vocabulary_are_named(trainer, tiny_model, target):
    rows = Dataset.from_list([{"input_ids": [5, 9999, 7], "labels": [5, 9999, 7]}] * 4)
    if target == "kd":
        with pytest.raises(ValueError, match="the token id 9999, but the teacher's vocabulary has 320 entries"):
            trainer(rows, target=target, teacher=tiny_model(seed=5), teacher_live=True)
        return
    with pytest.raises(ValueError, match="input_ids has the id 9999, but the student's embedding has 320 entries"):
        trainer(rows, target=target).train()


def test_trainable_token_indices_on_a_tied_model_get_their_own_message(trainer, tiny_model, data):
    student = tiny_model(tie_word_embeddings=True)
    with pytest.raises(ValueError, match=r"trainable_token_indices.*tied.*Remove trainable_token_indices"):
        trainer(data.completion(), model=student, peft_config=lora(trainable_token_indices=[1, 2]))


# ---- Liger ----


def test_liger_without_the_package_says_what_to_install(trainer, data, monkeypatch):
    monkeypatch.setattr("transformers.integrations.liger.is_liger_kernel_available", lambda: False)
    with pytest.raises(ImportError, match="liger"):
        trainer(data.completion(), use_liger_kernel=True, max_steps=1).train()


def test_ligers_own_loss_is_not_used(trainer, data, logged, monkeypatch):
    """Liger's other kernels apply; its fused cross-entropy, which would replace the head, is turned off."""
    applied = []
    monkeypatch.setattr("transformers.training_args.is_liger_kernel_available", lambda: True, raising=False)
    monkeypatch.setattr(
        "transformers.trainer.apply_liger_kernel", lambda model, settings: applied.append(settings), raising=False
    )
    made = trainer(data.completion(), target="dft", use_liger_kernel=True)
    made.train()
    plain = trainer(data.completion(), target="dft")
    plain.train()
    assert applied == [{"fused_linear_cross_entropy": False}]
    assert logged(made) == logged(plain)


@pytest.mark.slow
def test_ligers_kernels_train_the_same_with_the_targets_head(trainer, data, logged):
    """The real Liger, whose rope kernel runs in Triton's interpreter; those for norms and MLP do not run there."""
    pytest.importorskip("liger_kernel")
    from transformers.models.qwen2 import modeling_qwen2

    torch_rope = modeling_qwen2.apply_rotary_pos_emb
    rope_only = {"rope": True, "rms_norm": False, "swiglu": False}
    settings = {"target": "dft", "max_steps": 1, "per_device_train_batch_size": 2}
    made = trainer(data.tokens(2), use_liger_kernel=True, liger_kernel_config=rope_only, **settings)
    try:
        made.train()  # Trainer replaces the functions of the whole module here
        assert modeling_qwen2.apply_rotary_pos_emb.__module__.startswith("liger_kernel")
    finally:
        modeling_qwen2.apply_rotary_pos_emb = torch_rope
    plain = trainer(data.tokens(2), **settings)
    plain.train()
    assert made.state.log_history[0]["loss"] == pytest.approx(plain.state.log_history[0]["loss"], rel=1e-5)
