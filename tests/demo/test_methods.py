import pytest

from qsft.demo.methods import METHODS, parse_methods


def test_default_methods_have_unique_directories():
    labels = [method.label for method in METHODS]
    assert labels == ["SFT", "DFT", "KD 0.8", "KD 1.0", "KD sharpened", "Beyond log", "Target-SFT"]
    assert [method.label for method in METHODS if method.control] == ["KD sharpened", "Beyond log"]
    assert len({method.slug for method in METHODS}) == len(METHODS)


def test_known_methods_keep_their_names_and_others_are_called_as_written():
    sft, dft, half, fifth = parse_methods(["sft", "dft", "target_sft:eta=0.5", "target_sft:eta=0.2,lr=2e-3"])
    assert (sft.label, dft.label, half.label) == ("SFT", "DFT", "Target-SFT")
    assert (fifth.label, fifth.hyper_parameters, fifth.learning_rate) == (
        "target_sft:eta=0.2,lr=2e-3",
        {"eta": 0.2},
        2e-3,
    )


def test_text_values_stay_text():
    (method,) = parse_methods(["target_sft:tail=ghost"])
    assert method.hyper_parameters == {"tail": "ghost"}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("targt", "did you mean|Did you mean"),
        ("target_sft:etta=1", "hyper-parameter 'etta'"),
        ("target_sft:eta", "not key=value"),
    ],
)
def test_an_invalid_method_raises(word, message):
    with pytest.raises(ValueError, match=message):
        parse_methods([word])


def test_naming_a_method_twice_raises():
    with pytest.raises(ValueError, match="twice"):
        parse_methods(["sft", "sft"])


def test_methods_that_differ_in_their_learning_rate_only_have_directories_of_their_own():
    assert [method.slug for method in parse_methods(["dft", "dft:lr=3e-3", "sft:lr=2e-3"])] == [
        "dft", "dft-lr0.003", "sft-lr0.002",
    ]  # fmt: skip
