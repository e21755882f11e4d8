"""Making targets: names, hyper-parameters, ranges, missing inputs, own parts."""

import dataclasses
import json

import jaxtyping
import pytest
import torch
from cases import make_batch, targets

from qsft import TARGETS, LossTarget, SideInputs, Target, make_target, target_loss
from qsft.targets import table
from qsft.targets.residual import SelfPrior, Tempered
from qsft.targets.trust import Constant, Entropy
from qsft.targets.view import TokenView


@pytest.mark.parametrize(
    ("name", "hparams", "words"),
    [
        ("targt", {}, ["'targt'", "Did you mean 'target_sft'"]),
        ("target_sft", {"etta": 0.5}, ["'etta'", "Did you mean 'eta'", "tail"]),
        ("sft", {"eta": 0.5}, ["'eta'", "none"]),
        ("target_sft", {"eta": 1.5}, ["eta = 1.5", "[0, 1]"]),
        ("target_sft", {"eta": -0.1, "form": "reward"}, ["eta = -0.1", "[0, ∞)"]),
        ("target_sft", {"tail": "gost"}, ["'gost'", "Did you mean 'ghost'"]),
        ("target_sft", {"tail": "ghost", "form": "reward"}, ["p^(1+η)", 'tail="drop"']),
        ("beyond_log", {"alpha": -1.0}, ["alpha = -1.0", "[0, ∞)"]),
        ("profit", {"tau": 2}, ["tau = 2", "[0, 1]"]),
        ("gem", {"beta": 0}, ["beta = 0", "(0, ∞)"]),
        ("gem", {"link": "log"}, ["'log'", "'logsigmoid'"]),
        ("label_smoothing", {"lam": 2}, ["lam = 2", "[0, 1]"]),
        ("kd", {"temperature": 0.5, "tail": "ghost"}, ["temperature", 'tail="drop"']),
        ("kd", {"temperature": 0.0}, ["temperature = 0.0", "(0, ∞)"]),
        ("kd_hybrid", {"c": 1.1}, ["c = 1.1", "[0, 1]"]),
        ("asft", {"lam": 0.0}, ["lam = 0.0", "(0, ∞)"]),
        ("target_sft_constant", {"c": 0.0}, ["c = 0.0", "(0, ∞)"]),
        ("eaft", {"k": 1}, ["k = 1", "[2, ∞)"]),
        ("eaft", {"alpha": -0.5}, ["alpha = -0.5", "[0, ∞)"]),
        ("sft_kl", {"lam": -0.1}, ["lam = -0.1", "[0, ∞)"]),
        ("target_sft_mixture", {"c": 1.5}, ["c = 1.5", "[0, 1]"]),
        ("iw_sft", {"clip": 0.0}, ["clip = 0.0"]),
        ("iw_sft", {"ratio": "men"}, ["Did you mean 'mean'"]),
        ("psft", {"eps": -1.0}, ["eps = -1.0"]),
    ],
)
def test_wrong_names_and_values_say_what_is_allowed(name, hparams, words):
    with pytest.raises(ValueError) as error:
        make_target(name, **hparams)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("name", "hparams", "message"),
    [
        ("target_sft", {"eta": "half"}, r"eta = 'half' is not a number: allowed is \[0, 1\]"),
        ("target_sft", {"eta": None}, "eta = None is not a number"),
        ("target_sft", {"tail": 3}, "tail = 3 is not one of 'drop', 'ghost'"),
        ("kd_hybrid", {"c": True}, "c = True is not a number"),
        ("eaft", {"k": 2.5}, "k = 2.5 is not an integer"),
    ],
)
def test_a_value_of_another_type_is_a_value_error(name, hparams, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the tests' own checks of types come first
    with pytest.raises(ValueError, match=message):
        make_target(name, **hparams)


@pytest.mark.parametrize(
    ("name", "side", "words"),
    [
        ("target_sft", None, ["needs a teacher", "qsft cache build"]),
        ("kd", None, ["needs a teacher"]),
        ("asft", None, ["needs a reference"]),
        ("cft", None, ["'critical'", "qsft curate critical"]),
        ("psft", None, ["'old_logp'", "TargetSFTTrainer"]),
        ("iw_sft", None, ["'ref_logp'", 'teacher="base"']),
        ("iw_sft", SideInputs(ref_logp=torch.zeros(9)), ["'document'"]),
    ],
)
def test_a_missing_input_is_named_with_its_remedy(name, side, words):
    batch = make_batch(dtype=torch.float32)
    with pytest.raises(ValueError) as error:
        target_loss(batch.logits, batch.labels, make_target(name), side=side)
    for word in words:
        assert word in str(error.value)


def test_targets_are_frozen_values_that_print_themselves():
    target = make_target("target_sft", eta=0.5)
    assert repr(target) == (
        "Target(trust=Prob(alpha=1.0), residual=Guided(eta=0.5, tail='drop', form='geometric'), "
        "scale=Constant(value=1.0))"
    )
    assert target == make_target("target_sft")
    assert target != make_target("target_sft", eta=0.2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        target.trust = Constant(0.0)


def test_records_are_json_and_tell_targets_apart():
    records = [json.dumps(target.record(), sort_keys=True) for target in targets()]
    distinct = {repr(target) for target in targets()}
    assert len(set(records)) == len(distinct)


def test_own_trust_and_residual_need_no_registration():
    """A trust is a function of the view; a residual may return a dense tensor or a distribution."""
    batch = make_batch()

    def uniform(view):
        return torch.full_like(view.logits, 1 / view.logits.shape[-1])

    own = Target(trust=lambda view: torch.full_like(view.lse, 0.9), residual=uniform)
    z = batch.logits.clone().requires_grad_()
    mine = torch.autograd.grad(target_loss(z, batch.labels, own), z)[0]
    named = torch.autograd.grad(target_loss(z, batch.labels, make_target("label_smoothing", lam=0.1)), z)[0]
    torch.testing.assert_close(mine, named, rtol=0, atol=1e-12)
    assert own.record()["residual"]["name"].endswith("uniform")


def test_needs_name_the_inputs():
    assert make_target("sft").needs == frozenset()
    assert make_target("target_sft").needs == {"teacher"}
    assert make_target("iw_sft").needs == {"reference", "ref_logp", "document"}
    assert Target(Constant(0.5), SelfPrior()).needs == frozenset()


def test_targets_that_anchor_read_the_reference_and_those_that_distill_the_teacher():
    roles = {name: make_target(name).role for name in TARGETS}
    assert {name for name, role in roles.items() if role == "reference"} == {"sft_kl", "asft", "iw_sft"}
    teacher_rows = {"kd", "kd_hybrid", "target_sft", "target_sft_constant", "target_sft_mixture"}
    assert {name for name, role in roles.items() if role == "teacher"} == teacher_rows
    assert LossTarget(torch.nn.functional.cross_entropy).role is None
    assert "π_ref" in table.formula(make_target("asft"))
    assert "π_ref" in table.formula(make_target("sft_kl"))
    assert "π_T" in table.formula(make_target("kd"))


def test_functions_may_read_a_teacher_and_own_values_are_recorded_in_one_order():
    assert not make_target("dft").may_read_teacher
    assert make_target("asft").may_read_teacher
    assert Target(lambda view: view.lse).may_read_teacher
    assert make_target("beyond_log", tau=0.5).averages_kept
    assert not make_target("profit").averages_kept

    @dataclasses.dataclass(frozen=True)
    class Words:
        words: frozenset = frozenset(f"w{i}" for i in range(50))

        def __call__(self, view):
            return view.lse

    assert Target(Words()).record()["trust"]["words"] == sorted(f"w{i}" for i in range(50))


def test_an_own_loss_is_reported_without_a_graph():
    view = TokenView.of(torch.randn(3, 5), torch.tensor([0, 1, 2]))
    mixture = LossTarget(lambda z, y: torch.nn.functional.cross_entropy(z, y, reduction="none"))(view)
    assert not mixture.value.requires_grad


PUBLISHED_DEFAULTS = {
    "beyond_log": {"alpha": 0.5, "tau": None, "keep": "above"},
    "profit": {"tau": 0.1},
    "eaft": {"k": 20, "alpha": 1.0},
    "iw_sft": {"clip": 16.0, "ratio": "mean"},
    "psft": {"eps": 0.28},
    "label_smoothing": {"lam": 0.1},
    "sft_kl": {"lam": 0.1, "tail": "ghost"},
    "asft": {"lam": 0.1, "tail": "ghost"},
    "gem": {"beta": 0.7, "link": "linear"},
    "kd": {"tail": "drop", "temperature": 1.0},
    "kd_hybrid": {"c": 0.8, "tail": "drop", "temperature": 1.0},
    "target_sft": {"eta": 0.5, "tail": "drop", "form": "geometric"},
    "target_sft_constant": {"c": 1.0, "eta": 0.5, "tail": "drop", "form": "geometric"},
    "target_sft_mixture": {"c": 0.5, "eta": 0.5, "tail": "drop", "form": "geometric"},
}


@pytest.mark.parametrize("name", TARGETS)
def test_hyper_parameters_default_to_those_the_methods_were_published_with(name):
    # A changed default changes every run that names the target alone, and nothing else would notice.
    assert make_target(name) == make_target(name, **PUBLISHED_DEFAULTS.get(name, {}))


def test_a_part_used_on_its_own_has_the_defaults_of_its_target():
    assert make_target("eaft").trust == Entropy()
    assert make_target("gem").residual == Tempered()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target(lambda view: view.label_logp[:, None]), r"the trust returned shape \(3, 1\) for 3 tokens"),
        (Target(lambda view: 0.5), "the trust returned a float for 3 tokens"),
        (Target(Constant(1.0), scale=lambda view: 2.0), "the scale returned a float for 3 tokens"),
        (Target(Constant(0.0), lambda view: torch.ones(5)), r"the residual returned shape \(5,\).*\[N, V\] = \(3, 5\)"),
        (Target(Constant(0.0), lambda view: None), "the residual returned a NoneType"),
        (LossTarget(lambda z, y: None), "the loss function returned a NoneType"),
    ],
    ids=lambda value: None,
)
def test_a_part_that_returns_another_shape_is_named(target, words, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the tests' own checks of types come first
    with pytest.raises(ValueError, match=words):
        target(TokenView.of(torch.randn(3, 5), torch.tensor([0, 1, 2])))


def test_a_part_that_is_not_a_function_is_named(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the tests' own checks of types come first
    with pytest.raises(TypeError, match="trust must be a function of a TokenView, got 'dft'"):
        Target("dft")
    with pytest.raises(TypeError, match=r"scale must be .*, got 2.0"):
        Target(Constant(1.0), scale=2.0)
