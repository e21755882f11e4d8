"""Complete runs: accumulation, packing, cached against live, evaluation, what is logged, what is saved."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback

from qsft import Target
from qsft.targets.dist import Sparse
from qsft.targets.trust import Constant
from qsft.teacher.capture.capture import build_cache
from qsft.teacher.documents import Documents


@pytest.fixture
def teacher(tiny_model):
    return tiny_model(seed=5)


@pytest.fixture
def taught(trainer, teacher, tmp_path):
    """Factory of a trainer for `target` with a cached teacher."""

    def make(data, **overrides):
        settings = {
            "target": "target_sft",
            "teacher": teacher,
            "teacher_cache": str(tmp_path / "cache"),
            "teacher_top_k": 16,
        }
        return trainer(data, **{**settings, **overrides})

    return make


@pytest.fixture(scope="module")
def plain_losses():
    """Filled by the first test that needs them."""
    return []


def weights(trainer):
    return [p.detach().clone() for p in trainer.model.parameters()]


@pytest.mark.parametrize("settings", [{}, {"packing": True, "max_length": 40}], ids=["padded", "packed"])
def test_cached_and_live_teachers_give_the_same_losses(taught, data, logged, settings):
    cached = taught(data.completion(), **settings)
    live = taught(data.completion(), teacher_cache=None, **settings)
    assert cached.cache is not None
    assert live.cache is None
    assert live.live_teacher is not None
    cached.train()
    live.train()
    assert logged(cached) == pytest.approx(logged(live), rel=1e-3)
    assert logged(cached, "support_mass") == pytest.approx(logged(live, "support_mass"), rel=1e-2)


def test_packed_and_unpacked_documents_have_the_same_losses(taught, data):
    def document_losses(made):
        features = list(made.train_dataset)
        batch = made.data_collator(features)
        documents = Documents(made.train_dataset)
        made.data_collator.attach_document = True
        index = made.data_collator(features)["document"]
        found = {}
        for number in range(int(index.max()) + 1):
            labels = batch["labels"].masked_fill(index != number, -100)
            if bool((labels != -100).any()):
                key = tuple(batch["input_ids"][index == number].tolist())
                with torch.no_grad():
                    found[key] = float(
                        made.compute_loss(made.model, {**batch, "labels": labels, "label_positions": None})
                    )
        assert len(found) == len(documents)
        return found

    plain = document_losses(taught(data.completion(16), max_length=64))
    packed = document_losses(taught(data.completion(16), max_length=64, packing=True))
    assert plain.keys() == packed.keys()
    assert all(packed[key] == pytest.approx(plain[key], rel=1e-4) for key in plain)


@pytest.mark.parametrize("target", ["sft", "target_sft"])
def test_accumulation_one_by_eight_is_eight_by_one(taught, data, logged, target):
    together = taught(data.completion(), target=target, per_device_train_batch_size=8)
    apart = taught(data.completion(), target=target, per_device_train_batch_size=1, gradient_accumulation_steps=8)
    together.train()
    apart.train()
    assert logged(apart) == pytest.approx(logged(together), rel=1e-5)
    assert logged(apart, "gamma") == pytest.approx(logged(together, "gamma"), rel=1e-3)
    for a, b in zip(weights(apart), weights(together)):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=0)


def test_a_short_last_step_is_divided_by_its_own_tokens(trainer, data, logged):
    rows = data.tokens(10)  # 4 + 4 + 2 rows: the last step has a half-filled micro-batch
    settings = {"max_steps": -1, "num_train_epochs": 1, "learning_rate": 0.0}
    whole = trainer(rows, per_device_train_batch_size=4, **settings)
    halves = trainer(rows, per_device_train_batch_size=2, gradient_accumulation_steps=2, **settings)
    whole.train()
    halves.train()
    assert len(logged(whole)) == 3
    assert logged(halves) == pytest.approx(logged(whole), rel=1e-5)


def test_micro_batch_mean_is_the_mean_of_means(trainer, data, logged):
    rows = data.tokens(8)
    settings = {
        "max_steps": 1,
        "learning_rate": 0.0,
        "gradient_accumulation_steps": 8,
        "per_device_train_batch_size": 1,
    }
    mean = trainer(rows, loss_normalization="micro_batch_mean", **settings)
    tokens = trainer(rows, **settings)
    mean.train()
    tokens.train()
    single = []
    with torch.no_grad():
        for row in mean.train_dataset:
            single.append(float(mean.compute_loss(mean.model, mean.data_collator([row]))))
    assert logged(mean)[0] == pytest.approx(sum(single) / 8, rel=1e-5)
    assert logged(mean)[0] != pytest.approx(logged(tokens)[0], rel=1e-4)


def test_micro_batch_mean_of_a_thresholded_loss_is_over_kept_tokens(trainer, data):
    """Beyond-log's own code divides by the tokens above its threshold; the default divides by all label tokens."""
    rows = data.tokens(4)
    hparams = {"alpha": 0.0, "tau": 0.003}
    made = trainer(rows, target="beyond_log", target_kwargs=hparams, loss_normalization="micro_batch_mean")
    batch = made.data_collator(list(made.train_dataset))
    with torch.no_grad():
        loss = made.compute_loss(made.model, dict(batch))
        out = made.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    labels = batch["labels"][:, 1:]
    keep = labels != -100
    logp = out.logits[:, :-1].log_softmax(-1)[keep].gather(-1, labels[keep][:, None])[:, 0]
    kept = logp.exp() >= 0.003
    assert 0 < kept.sum() < len(kept)
    assert float(loss) == pytest.approx(float(-logp[kept].mean()), rel=1e-5)


def test_a_micro_batch_without_labels_trains_nothing(trainer, data):
    made = trainer(data.tokens())
    batch = made.data_collator([{"input_ids": [40, 41, 42], "labels": [40, -100, -100]}])
    loss = made.compute_loss(made.model, batch, num_items_in_batch=torch.tensor(7))
    loss.backward()
    assert float(loss) == 0.0
    assert all(p.grad is None or not p.grad.any() for p in made.model.parameters())


def test_what_is_logged(taught, data):
    made = taught(data.completion(), eval_dataset=data.completion(8), eval_strategy="steps", eval_steps=2)
    made.train()
    train = next(entry for entry in made.state.log_history if "loss" in entry)
    evaluation = next(entry for entry in made.state.log_history if "eval_loss" in entry)
    names = {
        "label_loss", "residual_loss", "nll", "gamma", "gamma_q25", "gamma_q50", "gamma_q75", "rescue", "filter",
        "agree", "student_only", "support_mass", "teacher_tail", "label_in_topk", "teacher_disagrees",
        "fallback_tokens", "entropy", "mean_token_accuracy", "num_tokens",
    }  # fmt: skip
    assert names <= set(train)
    assert {f"eval_{name}" for name in names} <= set(evaluation)
    assert train["loss"] == pytest.approx(train["label_loss"] + train["residual_loss"], rel=1e-5)
    assert train["rescue"] + train["filter"] + train["agree"] + train["student_only"] == pytest.approx(1.0)
    assert 0.0 <= train["gamma_q25"] <= train["gamma_q50"] <= train["gamma_q75"] <= 1.0
    assert train["fallback_tokens"] == 0


def test_one_reduction_per_log(taught, data):
    made = taught(data.completion(), logging_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    calls = []
    reduce = made.accelerator.reduce
    made.accelerator.reduce = lambda *args, **kwargs: calls.append(1) or reduce(*args, **kwargs)
    made.train()
    assert len(calls) == 2


def test_several_evaluation_sets_keep_their_names(trainer, data):
    made = trainer(data.completion(), eval_dataset={"a": data.completion(6), "b": data.completion(9)})
    metrics = made.evaluate()
    assert {"eval_a_loss", "eval_b_loss", "eval_a_gamma", "eval_b_entropy"} <= set(metrics)
    assert made.evaluate("b")["eval_loss"] == metrics["eval_b_loss"]


def test_an_unknown_name_of_an_evaluation_set_raises_an_error(trainer, data):
    several = trainer(data.completion(), eval_dataset={"first": data.completion(6), "second": data.completion(9)})
    with pytest.raises(ValueError, match=r"no evaluation data set 'secnd'.* Did you mean 'second'.* first, second"):
        several.evaluate("secnd")
    single = trainer(data.completion(), eval_dataset=data.completion(6))
    with pytest.raises(ValueError, match=r"no evaluation data set 'first': .*without a name"):
        single.evaluate("first")


def test_data_passed_to_evaluate_get_their_teacher_log_probs(taught, data):
    made = taught(data.completion(12))
    held_out = data.completion(24)
    assert len(made.cache) == 12
    metrics = made.evaluate(held_out)
    assert metrics["eval_fallback_tokens"] == 0
    assert len(made.cache) == 24


def test_the_cache_covers_train_and_evaluation(taught, data):
    made = taught(data.completion(12), eval_dataset={"a": data.completion(14), "b": data.completion(16)})
    assert len(made.cache) == 16


def test_streaming_data_are_looked_up_as_they_come(taught, data, logged):
    known = taught(data.completion(12))
    made = taught(data.completion(12).to_iterable_dataset(), teacher=str(known.cache.path), teacher_cache=None)
    made.train()
    assert logged(made, "fallback_tokens") == [0] * 4
    stranger = taught(data.completion(16).to_iterable_dataset(), teacher=str(known.cache.path), teacher_cache=None)
    with pytest.raises(ValueError, match="does not have a document of this batch"):
        stranger.train()


def test_preflight_names_what_is_missing(taught, data, logged):
    known = taught(data.completion(12))
    only = {"teacher": known.cache, "teacher_cache": None}
    with pytest.raises(
        ValueError, match=r"4 of 16 documents are not in the teacher cache.*max_length.*qsft cache build"
    ):
        taught(data.completion(16), **only)
    lenient = taught(
        data.completion(16), teacher_missing="student", max_steps=1, per_device_train_batch_size=16, **only
    )
    lenient.train()
    assert logged(lenient, "fallback_tokens")[0] > 0


def test_dataloader_workers(taught, data, logged):
    plain, workers = taught(data.completion()), taught(data.completion(), dataloader_num_workers=1)
    plain.train()
    workers.train()
    assert logged(workers) == logged(plain)


def test_a_model_id_is_built_into_a_cache(trainer, data, teacher, tiny_tokenizer, tmp_path):
    teacher.save_pretrained(tmp_path / "teacher")
    tiny_tokenizer.save_pretrained(tmp_path / "teacher")
    name = str(tmp_path / "teacher")
    made = trainer(data.completion(), target="target_sft", teacher_model_name_or_path=name, teacher_top_k=8)
    assert made.cache.path.parent == Path(os.environ["QSFT_CACHE"], "teachers")
    assert made.cache.k == 8
    # Another output_dir or target captures nothing again; another k is another folder.
    again = trainer(data.completion(), target="kd", teacher=name, teacher_top_k=8, output_dir=str(tmp_path / "other"))
    assert again.cache.path == made.cache.path
    assert trainer(data.completion(), target="kd", teacher=name).cache.k == 64
    # A cache describes itself: k need not be repeated, but what is repeated must agree.
    named = {"target": "kd", "teacher": name, "teacher_cache": str(made.cache.path)}
    assert trainer(data.completion(), **named).cache.k == 8
    for other in ({"teacher_top_k": 4}, {"teacher_cache_encoding": "compact"}, {"teacher_top_k": 4, "teacher": None}):
        with pytest.raises(ValueError, match="was made with other settings"):
            trainer(data.completion(), **{**named, **other})
    live = trainer(data.completion(), target="target_sft", teacher=name, teacher_live=True)
    assert live.live_teacher is not None
    assert live.cache is None


def test_a_student_with_another_tokenizer_raises_an_error(taught, data, tiny_tokenizer, tmp_path, tiny_model):
    made = taught(data.completion())
    other = type(tiny_tokenizer).from_pretrained(_renamed(tiny_tokenizer, tmp_path / "other"))
    from qsft.train.trainer import TargetSFTTrainer

    with pytest.raises(ValueError, match="id 300"):
        TargetSFTTrainer(
            tiny_model(), made.args, teacher=made.cache, train_dataset=data.completion(), processing_class=other
        )


def _renamed(tokenizer, path):
    tokenizer.save_pretrained(path)
    file = path / "tokenizer.json"
    word = tokenizer.convert_ids_to_tokens(300)
    file.write_text(file.read_text().replace(f'"{word}": 300', '"other": 300'))
    return path


def test_the_saved_model_loads_with_plain_transformers_and_both_generate(taught, data):
    made = taught(data.completion())
    made.train()
    assert made.model.generate(torch.tensor([[30, 31]]), max_new_tokens=3, do_sample=False).shape[1] >= 3
    made.save_model()
    again = AutoModelForCausalLM.from_pretrained(made.args.output_dir)
    for mine, other in zip(made.model.parameters(), again.parameters(), strict=True):
        assert mine.equal(other)
    out = again.generate(torch.tensor([[30, 31]]), max_new_tokens=3, do_sample=False)
    assert out.shape[1] >= 3


def test_callbacks_and_compute_metrics(trainer, data):
    seen = []

    class Watch(TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            seen.append(logs)

    def accuracy(prediction):
        labels = prediction.label_ids[:, 1:]
        right = prediction.predictions[:, :-1].argmax(-1) == labels
        return {"accuracy": right[labels != -100].mean()}

    made = trainer(data.completion(), eval_dataset=data.completion(6), compute_metrics=accuracy, callbacks=[Watch()])
    made.train()
    metrics = made.evaluate()
    assert metrics["eval_accuracy"] == pytest.approx(metrics["eval_mean_token_accuracy"])
    assert any("gamma" in logs for logs in seen)


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_checkpointing": True},
        {"bf16": True},
        {"neftune_noise_alpha": 5.0},
        {"torch_empty_cache_steps": 1},
        {"include_num_input_tokens_seen": "all"},
        {"remove_unused_columns": False},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_works_with(taught, data, logged, plain_losses, settings):
    made = taught(data.tokens(), max_steps=3, **settings)
    made.train()
    if not plain_losses:
        plain = taught(data.tokens(), max_steps=3)
        plain.train()
        plain_losses += logged(plain)
    assert logged(made) == pytest.approx(plain_losses, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile(taught, data, logged, backend):
    compiling = {"torch_compile": True, "torch_compile_backend": backend}
    taught(data.tokens(), target="sft", max_steps=1, **compiling).train()  # its graph must not serve the next
    plain = taught(data.tokens())
    compiled = taught(data.tokens(), **compiling)
    plain.train()
    compiled.train()
    assert logged(compiled) == pytest.approx(logged(plain), rel=1e-4)


def test_a_tied_head(taught, data, tiny_model, logged):
    made = taught(data.tokens(), model=tiny_model(tie_word_embeddings=True), max_steps=12)
    made.train()
    assert logged(made)[-1] < logged(made)[0]


def test_the_command_line_takes_every_field(tmp_path):
    from trl import TrlParser

    from qsft.train.config import TargetSFTConfig

    argv = [
        "--output_dir",
        str(tmp_path),
        "--target",
        "kd_hybrid",
        "--target_kwargs",
        '{"c": 0.5}',
        "--use_cpu",
        "true",
    ]
    (args,) = TrlParser(TargetSFTConfig).parse_args_and_config([*argv, "--bf16", "false", "--teacher_live", "true"])
    assert args.target_kwargs == {"c": 0.5}
    assert args.teacher_live is True


def test_build_cache_and_the_trainer_agree_on_documents(taught, data, teacher, tiny_tokenizer, tmp_path):
    made = taught(data.completion(10), packing=True, max_length=32)
    built = build_cache(
        Documents(made.train_dataset), teacher, tmp_path / "other", tokenizer=tiny_tokenizer, top_k=16, progress=False
    )
    assert len(built) == len(made.cache)


@pytest.mark.parametrize("target", ["sft", "psft"])
def test_bf16_computes_in_bfloat16(trainer, data, target):
    """Also after psft has scored its old policy: scoring must not put a second head outside autocast."""
    made = trainer(data.tokens(), target=target, bf16=True, max_steps=3)
    seen = set()
    layer = made.model.model.layers[0].mlp.down_proj
    layer.register_forward_hook(lambda module, inputs, output: seen.add((module.training, output.dtype)))
    made.train()
    assert {dtype for training, dtype in seen if training} == {torch.bfloat16}


@dataclass(frozen=True)
class Prior:
    """A user's residual: a distribution of its own, held as a tensor, and a function."""

    logits: torch.Tensor
    temper: Any = abs
    power: Any = None

    def __call__(self, view):
        return self.logits.softmax(-1).expand_as(view.logits)


def test_a_target_that_holds_tensors_is_saved_and_recognized(trainer, data, tmp_path):
    size = 320

    def run(logits, **settings):
        target = Target(Constant(0.9), Prior(logits, power=np.float32(0.5)))
        return trainer(data.tokens(), target_object=target, save_strategy="steps", save_steps=2, **settings)

    run(torch.zeros(size)).train()
    checkpoint = str(tmp_path / "run" / "checkpoint-2")
    run(torch.zeros(size)).train(resume_from_checkpoint=checkpoint)
    with pytest.raises(ValueError, match="a different target"):
        run(torch.ones(size)).train(resume_from_checkpoint=checkpoint)


def test_a_teacher_reaches_a_target_made_of_plain_functions(trainer, data, teacher):
    target = Target(lambda view: view.label_logp.exp(), lambda view: Sparse(view.teacher.ids, view.teacher.logps.exp()))
    made = trainer(data.tokens(), target_object=target, teacher=teacher, teacher_live=True, teacher_top_k=8)
    made.train()
    assert made.state.log_history[0]["support_mass"] > 0


def test_a_teacher_that_nobody_reads_is_named(trainer, data, teacher, caplog):
    from transformers.utils import logging

    logging.enable_propagation()
    trainer(data.tokens(), target="dft", teacher=teacher)
    logging.disable_propagation()
    assert "does not read a teacher: the given one is not used" in caplog.text
