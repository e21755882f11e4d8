"""A one-hot teacher equal to the labels makes `kd` equal `sft`, however TRL arranges the data: no shift survives."""

import pytest
import torch

from qsft.targets.registry import make_target

ARRANGEMENTS = {
    "padding": ("completion", {}),
    "padding, whole text": ("text", {}),
    "padding to a multiple": ("completion", {"pad_to_multiple_of": 8}),
    "padding-free": ("completion", {"padding_free": True, "max_length": None}),
    "padding-free to a multiple": ("text", {"padding_free": True, "max_length": None, "pad_to_multiple_of": 16}),
    "bfd": ("completion", {"packing": True, "max_length": 40}),
    "bfd that truncates": ("text", {"packing": True, "max_length": 8}),
    "bfd_split": ("text", {"packing": True, "packing_strategy": "bfd_split", "max_length": 8}),
    "wrapped": ("completion", {"packing": True, "packing_strategy": "wrapped", "max_length": 16}),
    "wrapped, padding-free": (
        "text",
        {"packing": True, "packing_strategy": "wrapped", "max_length": 16, "padding_free": True},
    ),
    "assistant only": ("chat", {"assistant_only_loss": True}),
    "assistant only, packed": ("chat", {"assistant_only_loss": True, "packing": True, "max_length": 40}),
    "conversational": ("chat", {}),
    "pre-tokenized": ("tokens", {}),
    "truncated": ("completion", {"max_length": 9}),
}


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_one_hot_teacher_is_sft(trainer, data, copycat, tmp_path, arrangement):
    form, settings = ARRANGEMENTS[arrangement]
    cached = {"teacher": copycat, "teacher_cache": str(tmp_path / "c"), "teacher_top_k": 4}
    made = trainer(getattr(data, form)(), target="kd", **cached, **settings)
    batch = made.data_collator(list(made.train_dataset))
    losses = []
    for made.target in (make_target("kd"), make_target("sft")):
        made.model.zero_grad()
        loss = made.compute_loss(made.model, dict(batch), num_items_in_batch=torch.tensor(1))
        loss.backward()
        losses.append((loss.item(), [p.grad.clone() for p in made.model.parameters()]))
    (taught, gradients), (plain, expected) = losses
    assert taught == pytest.approx(plain, rel=1e-5)
    for mine, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
    sums = made.metric_sums["train"].take(lambda total: total)
    assert sums["label_in_topk"] == sums["teacher_tokens"] == sums["tokens"] > 0
    assert sums["teacher_disagrees"] == 0
