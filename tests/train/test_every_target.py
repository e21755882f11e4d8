"""Every target trains; then those that read more than a teacher (iw_sft, psft, cft) or a reference (sft_kl, asft)."""

import pytest
import torch
from peft import LoraConfig

from qsft.losses.head import from_bits, label_logps
from qsft.teacher.sources.transformers_source import weights_digest
from qsft.train.old_policy import OldPolicy

ALL_BUT_SIDE = ["sft", "dft", "beyond_log", "profit", "eaft", "label_smoothing", "gem", "kd", "kd_hybrid", "target_sft"]


@pytest.mark.parametrize("name", ALL_BUT_SIDE)
def test_every_target_trains(trainer, data, tiny_model, logged, name):
    kwargs = {"tau": 1e-4} if name == "profit" else None  # an untrained model finds nothing likely
    made = trainer(data.completion(), target=name, target_kwargs=kwargs, teacher=tiny_model(seed=5), max_steps=2)
    before = made.model.lm_head.weight.detach().clone()
    made.train()
    assert all(torch.isfinite(torch.tensor(logged(made))))
    assert not made.model.lm_head.weight.equal(before)


# ---- base ----


@pytest.mark.parametrize("name", ["sft_kl", "asft"])
@pytest.mark.parametrize("live", [True, False])
def test_base_is_the_student_before_training(trainer, data, logged, name, live):
    made = trainer(data.completion(), target=name, teacher="base", teacher_live=live, teacher_top_k=320, max_steps=3)
    assert (made.cache is None) == live
    made.train()
    first = made.state.log_history[0]
    # At step 0 the student is its base: the residual's cross-entropy is the student's own entropy.
    scale = {"sft_kl": 0.1, "asft": 0.1}[name]
    assert first["residual_loss"] == pytest.approx(scale * first["entropy"], rel=2e-2)
    if live:
        assert not any(p.requires_grad for p in made.live_teacher.model.parameters())


@pytest.mark.parametrize("name", ["sft_kl", "asft", "iw_sft"])
def test_targets_that_anchor_read_the_untrained_student_not_the_teacher(trainer, data, tiny_model, tmp_path, name):
    """As in a recipe, which names a teacher and its cache for the targets that read one."""
    tiny_model(seed=5).save_pretrained(tmp_path / "teacher")
    recipe = {"teacher_model_name_or_path": str(tmp_path / "teacher"), "teacher_cache": str(tmp_path / "cache")}
    taught = trainer(data.completion(), target="kd_hybrid", **recipe)
    anchored = trainer(data.completion(), target=name, **recipe)
    assert taught.cache.path == tmp_path / "cache"
    assert anchored.cache.path != taught.cache.path  # both live side by side
    assert anchored.cache.manifest.identity.teacher["weights"] == weights_digest(anchored.model)
    assert anchored._distribution_record()["role"] == "reference"
    followed = trainer(data.completion(), target=name, reference_model_name_or_path="teacher", **recipe)
    assert followed.cache.path == taught.cache.path
    other = str(tmp_path / "teacher")
    assert trainer(data.completion(), target=name, reference_model_name_or_path=other).cache.path != anchored.cache.path


def test_an_explicit_teacher_is_the_reference_of_a_target_that_anchors(
    trainer, data, tiny_model, tmp_path, monkeypatch
):
    warnings = []
    monkeypatch.setattr("qsft.train.teacher.logger.warning", warnings.append)
    given = trainer(data.completion(), target="sft_kl", teacher=tiny_model(seed=5), teacher_cache=str(tmp_path / "c"))
    assert given.cache.path == tmp_path / "c"
    named = trainer(data.completion(), target="sft_kl", teacher_cache=str(tmp_path / "c"))
    assert named.cache.manifest.identity == given.cache.manifest.identity
    assert [text.split(":")[0] for text in warnings] == ["the target anchors to a reference"] * 2


def test_the_reference_of_an_adapter_is_the_student_with_it_disabled(trainer, data):
    lora = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    made = trainer(data.completion(), target="asft", peft_config=lora, max_steps=1)
    assert made.live_teacher is not None
    assert made.live_teacher.is_student
    made.train()


def test_a_frozen_copy_does_not_move(trainer, data, tiny_model):
    student = tiny_model()
    trainer(data.completion(), model=student).train()  # patches the student's forward once
    made = trainer(data.completion(), model=student, target="sft_kl", teacher="base", teacher_live=True)
    batch = made.data_collator.base_collator(list(made.train_dataset)[:4])
    before = made.live_teacher(batch["input_ids"], batch["labels"], batch["attention_mask"])
    with torch.no_grad():
        for p in made.model.parameters():
            p.add_(0.1)
    after = made.live_teacher(batch["input_ids"], batch["labels"], batch["attention_mask"])
    assert after.logps.equal(before.logps)
    assert made.live_teacher.model(batch["input_ids"]).logits.isfinite().all()
    moved = made.model(batch["input_ids"]).logits
    assert not moved.allclose(made.live_teacher.model(batch["input_ids"]).logits)


def test_evaluation_after_training_keeps_the_base(trainer, data):
    made = trainer(data.completion(12), eval_dataset=data.completion(16), target="sft_kl", teacher="base")
    made.train()
    made.evaluate()
    made.evaluate(data.completion(14))  # known documents: nothing has to be computed
    with pytest.raises(ValueError, match="4 of 20 documents are not in the teacher cache"):
        made.evaluate(data.completion(20))


# ---- iw_sft ----


@pytest.mark.parametrize("settings", [{}, {"packing": True, "max_length": 40}], ids=["padded", "packed"])
def test_iw_sft_starts_as_sft(trainer, data, logged, settings):
    plain = trainer(data.completion(), max_steps=1, **settings)
    weighted = trainer(data.completion(), target="iw_sft", teacher="base", max_steps=1, **settings)
    plain.train()
    weighted.train()
    assert logged(weighted) == pytest.approx(logged(plain), rel=2e-3)  # the reference is stored as fp16


def test_iw_sft_weighs_documents_not_examples(trainer, data, tiny_model, tmp_path):
    """One weight per document: packed or not, with another reference, the loss of the same documents is the same."""
    sums = []
    for settings in ({}, {"packing": True}):
        made = trainer(
            data.completion(12),
            target="iw_sft",
            teacher=tiny_model(seed=5),
            teacher_cache=str(tmp_path / "c"),
            **settings,
        )
        batch = made.data_collator(list(made.train_dataset))
        with torch.no_grad():
            sums.append(float(made.compute_loss(made.model, batch, num_items_in_batch=torch.tensor(1))))
    assert sums[0] == pytest.approx(sums[1], rel=1e-4)


def test_iw_sft_with_a_weight_column(trainer, data):
    rows = data.tokens(4).add_column("w", [0.0, 1.0, 2.0, 3.0])
    losses = []
    for settings in ({}, {"packing": True, "max_length": 64}):
        made = trainer(rows, target="iw_sft", weight_column="w", **settings)
        batch = made.data_collator(list(made.train_dataset))
        with torch.no_grad():
            losses.append(float(made.compute_loss(made.model, batch, num_items_in_batch=torch.tensor(1))))
            logps = label_logps(made.model, **{k: v for k, v in batch.items() if k not in ("weight", "document")})
        expected = -(logps * from_bits(batch["weight"])).sum()
        assert losses[-1] == pytest.approx(float(expected), rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    trainer(rows, target="iw_sft", weight_column="w").train()


# ---- cft ----


def cft_rows(data, n=12):
    rows = data.tokens(n)
    return rows.add_column("critical", [[i % 2 for i in range(len(ids))] for ids in rows["input_ids"]])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"packing": True, "max_length": 40},
        {"packing": True, "packing_strategy": "bfd_split", "max_length": 8},
        {"packing": True, "packing_strategy": "wrapped", "max_length": 16},
        {"max_length": 7},
        {"padding_free": True, "max_length": None},
        {"shuffle_dataset": True},
    ],
    ids=str,
)
def test_cft_trains_critical_tokens_only(trainer, data, settings):
    made = trainer(cft_rows(data), target="cft", **settings)
    batch = made.data_collator(list(made.train_dataset))
    assert batch["critical"].shape == batch["labels"].shape
    only = {**batch, "labels": batch["labels"].masked_fill(batch["critical"] == 0, -100), "label_positions": None}
    del only["critical"]
    count = torch.tensor(1)
    with torch.no_grad():
        loss = float(made.compute_loss(made.model, batch, num_items_in_batch=count))
        logps = label_logps(made.model, **only)
    assert loss == pytest.approx(-float(logps.sum()), rel=1e-5)


def test_cft_survives_a_stream(trainer, data, logged):
    made = trainer(cft_rows(data).to_iterable_dataset(), target="cft", max_steps=2)
    made.train()
    assert 0.0 < logged(made, "gamma")[0] < 1.0


def test_a_mask_that_is_not_aligned_raises_an_error(trainer, data):
    rows = data.tokens(3).add_column("critical", [[1], [0], [1]])
    with pytest.raises(ValueError, match=r"'critical' has 1 values for an example of \d+ tokens"):
        trainer(rows, target="cft")


def test_a_mask_of_fractions_raises_an_error(trainer, data):
    rows = data.tokens(4).map(lambda row: {"critical": [0.5] * len(row["input_ids"])})
    with pytest.raises(ValueError, match="'critical' must mark critical tokens with 1"):
        trainer(rows, target="cft").train()


# ---- psft ----


def test_psft_scores_a_block_once_and_serves_it(trainer, data, logged):
    made = trainer(data.tokens(), target="psft", psft_block_steps=2, max_steps=4, gradient_accumulation_steps=2)
    scored = []
    score = made.old_policy.score
    made.old_policy.score = lambda batch: scored.append(made.state.global_step) or score(batch)
    plain = trainer(data.tokens(), max_steps=4, gradient_accumulation_steps=2)
    made.train()
    plain.train()
    # 24 rows: 3 steps of 2×4 an epoch. The block of step 2 ends with the epoch, the one of step 3 at a multiple of 2.
    assert scored == [0] * 4 + [2] * 2 + [3] * 2
    # At a block's start the ratio is 1: psft has the gradient of sft, and reports −min(r, 1+ε).
    assert logged(made)[0] == pytest.approx(-1.0)
    assert logged(made, "label_loss")[0] == pytest.approx(logged(plain)[0], rel=1e-5)
    assert logged(made, "label_loss")[1] != pytest.approx(logged(plain)[1], rel=1e-4)


def test_psft_evaluates(trainer, data):
    made = trainer(data.tokens(), target="psft", eval_dataset=data.tokens(8))
    plain = trainer(data.tokens(), eval_dataset=data.tokens(8))
    assert made.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-5)


def test_blocks_end_at_multiples_and_with_the_epoch():
    block = OldPolicy(2, lambda batch: torch.zeros(1))
    first = iter([{"n": i} for i in range(6)])
    second = iter([{"n": i} for i in range(10, 15)])

    def served(source, count, step):
        return [batch["n"] for batch in block.batches_of_step(source, count, step)], len(block._scored)

    assert served(first, 1, step=0) == ([0], 1)
    assert served(second, 1, step=1) == ([10], 0)  # another epoch: what was left is dropped, the block is short
    assert served(second, 2, step=2) == ([11, 12], 2)
    assert served(second, 2, step=3) == ([13, 14], 0)
    assert served(second, 2, step=4) == ([], 0)


def test_a_sharded_student_is_not_its_own_live_teacher(trainer, data, monkeypatch):
    monkeypatch.setattr("qsft.train.teacher.is_sharded", lambda args: True)
    lora = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match="must load the student's initial weights again"):
        trainer(data.completion(), target="sft_kl", teacher="base", teacher_live=True, peft_config=lora)
