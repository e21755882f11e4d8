"""A one-hot teacher equal to the labels makes `kd` equal `sft`, however TRL arranges the data: no shift survives."""

import pytest

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
    "pre-tokenised": ("tokens", {}),
    "truncated": ("completion", {"max_length": 9}),
}


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_one_hot_teacher_is_sft(trainer, data, copycat, logged, tmp_path, arrangement):
    form, settings = ARRANGEMENTS[arrangement]
    settings = {"max_steps": 2, **settings}
    rows = getattr(data, form)()
    plain = trainer(rows, target="sft", **settings)
    plain.train()
    taught = trainer(
        rows,
        target="kd",
        teacher=copycat,
        teacher_cache=str(tmp_path / "c"),
        teacher_top_k=4,
        **settings,
    )
    taught.train()
    assert logged(taught) == pytest.approx(logged(plain), rel=1e-5)
    assert logged(taught, "label_in_topk") == [1.0] * 2
    assert logged(taught, "teacher_disagrees") == [0.0] * 2
