"""The paper's table of methods as code: one short function per named target.

The function's name is the target's name and its arguments are the hyper-parameters with their published defaults.
Command line, validation, the README's table and the tests follow from the registry.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qsft.targets.residual import Guided, Reference, SelfPrior, Teacher, Tempered, UniformPrior
from qsft.targets.scale import ClippedRatio, DocumentRatio, LogSigmoidMass, ProbPlusConstant
from qsft.targets.target import Target
from qsft.targets.trust import (
    Constant,
    Critical,
    Entropy,
    Gated,
    Prob,
    Ratio,
    SignedTrust,
    Threshold,
)
from qsft.targets.value import ClippedObjective, KLToResidual, PowerLoss
from qsft.validation import check_range, did_you_mean


@dataclass(frozen=True)
class NamedTarget:
    """An entry of the registry.

    Args:
        name: what `make_target` and the command line call it.
        build: makes the target from its hyper-parameters.
        title: the method's name in print.
        summary: one sentence that says what it does.
        loss: the published loss of a token, as a formula.
        reference: the publication.
    """

    name: str
    build: Callable[..., Target]
    title: str
    summary: str
    loss: str
    reference: str

    def __call__(self, **hparams: Any) -> Target:
        return self.build(**hparams)

    @property
    def hyper_parameters(self) -> dict[str, Any]:
        """The hyper-parameters with their defaults."""
        return {name: parameter.default for name, parameter in inspect.signature(self.build).parameters.items()}


TARGETS: dict[str, NamedTarget] = {}
DEFAULT_TARGET = "target_sft"  # of TargetSFTConfig and recipes


def register(
    title: str, summary: str, *, loss: str, reference: str
) -> Callable[[Callable[..., Target]], Callable[..., Target]]:
    """Add a function that builds a target to the registry, under the function's name."""

    def add(build: Callable[..., Target]) -> Callable[..., Target]:
        TARGETS[build.__name__] = NamedTarget(build.__name__, build, title, summary, loss, reference)
        return build

    return add


def make_target(name: str, /, **hparams: Any) -> Target:
    """Build the named target with the given hyper-parameters.

    Raises:
        ValueError: the name, a hyper-parameter or its value is not valid.

    >>> make_target("target_sft", eta=0.2).residual
    Guided(eta=0.2, tail='drop', form='geometric')
    """
    if name not in TARGETS:
        raise ValueError(f"there is no target {name!r}.{did_you_mean(name, TARGETS)} Known: {', '.join(TARGETS)}.")
    known = TARGETS[name].hyper_parameters
    for key in hparams:
        if key not in known:
            takes = ", ".join(known) or "none"
            raise ValueError(
                f"target {name!r} has no hyper-parameter {key!r}.{did_you_mean(key, known)} It takes: {takes}."
            )
    return TARGETS[name](**hparams)


@register("SFT", "Fits the observed token.", loss="−log p_y", reference="cross-entropy")
def sft() -> Target:
    return Target(Constant(1.0))


@register(
    "DFT (the paper's SFT (p))",
    "Weights each label by its probability under the model, so unlikely labels have little effect.",
    loss="−sg[p_y]·log p_y",
    reference="Dynamic Fine-Tuning, Wu et al. 2025",
)
def dft() -> Target:
    return Target(Prob(1.0), SelfPrior())


@register(
    "Beyond log-likelihood",
    "Interpolates between SFT (α → 0) and DFT (α = 1). With τ, trains only on labels above or below that probability.",
    loss="(1 − p_y^α)/α",
    reference="Li et al. 2025",
)
def beyond_log(alpha: float = 0.5, tau: float | None = None, keep: str = "above") -> Target:
    trust = Prob(alpha)
    if tau is None:
        return Target(trust, SelfPrior(), value=PowerLoss(alpha))
    gate = Threshold(tau, keep)
    return Target(Gated(gate, trust), SelfPrior(), value=PowerLoss(alpha, gate))


@register(
    "ProFiT",
    "Trains only on labels with a probability above τ.",
    loss="−1[p_y > τ]·log p_y",
    reference="ProFiT, 2026",
)
def profit(tau: float = 0.1) -> Target:
    return Target(Threshold(tau, strict=True), SelfPrior())


@register(
    "EAFT",
    "Trains most where the model is uncertain, as measured by the entropy H of its top k tokens.",
    loss="−(H/ln k)^α·log p_y",
    reference="Entropy-Adaptive Fine-Tuning, 2026",
)
def eaft(k: int = 20, alpha: float = 1.0) -> Target:
    return Target(Entropy(k, alpha), SelfPrior())


@register(
    "iw-SFT",
    "Weights each document by its importance ratio π_θ/π_ref per token, or of the whole sequence (ratio='raw').",
    loss="−min((π_θ/π_ref)^(1/tokens), clip)·log p_y",
    reference="Qin and Springenberg 2025",
)
def iw_sft(clip: float = 16.0, ratio: str = "mean") -> Target:
    return Target(Constant(1.0), scale=DocumentRatio(clip, ratio))


@register(
    "CFT",
    "Trains only on counterfactually critical tokens.",
    loss="−c_t·log p_y",
    reference="Critical Token Fine-Tuning, 2025",
)
def cft() -> Target:
    return Target(Critical(), SelfPrior())


@register(
    "PSFT",
    "Uses PPO's clipped ratio with advantage 1. The old policy is refreshed every few steps.",
    loss="−min(r, clip(r, 1−ε, 1+ε)), r = p_y/π_old",
    reference="Proximal SFT, 2025",
)
def psft(eps: float = 0.28) -> Target:
    ratio = ClippedRatio(eps)
    return Target(Constant(1.0), scale=ratio, value=ClippedObjective(ratio))


@register(
    "Label smoothing",
    "Distributes λ of the mass uniformly over the vocabulary, without padding entries.",
    loss="−(1−λ)·log p_y − λ/V·Σ_v log p_v",
    reference="Szegedy et al. 2016",
)
def label_smoothing(lam: float = 0.1) -> Target:
    check_range("lam", lam, 0.0, 1.0)
    return Target(Constant(1.0 - lam), UniformPrior())


@register(
    "SFT + KL",
    "Adds a penalty to SFT for moving away from the reference model.",
    loss="−log p_y + λ·KL(π_ref‖p)",
    reference="forward KL to a reference",
)
def sft_kl(lam: float = 0.1, tail: str = "ghost") -> Target:
    check_range("lam", lam, 0.0)
    return Target(Constant(1.0 / (1.0 + lam)), Reference(tail), Constant(1.0 + lam), KLToResidual())


@register(
    "ASFT",
    "Adds a penalty to DFT for moving away from the base model.",
    loss="−sg[p_y]·log p_y + λ·KL(π_base‖p)",
    reference="Anchored SFT, 2025",
)
def asft(lam: float = 0.1, tail: str = "ghost") -> Target:
    return Target(Ratio(lam), Reference(tail), ProbPlusConstant(lam), KLToResidual())


@register(
    "GEM",
    "Keeps the model's entropy high. β = 1 or λ = 0 is SFT. Entries of the target and the loss may be negative.",
    loss="CE(δ, p) − λ·CE(q, p), q = softmax(z/β)",
    reference="Li et al. 2025, GEM",
)
def gem(beta: float = 0.7, link: str = "linear", lam: float = 1.0) -> Target:
    residual = Tempered(beta, link, lam)
    return Target(SignedTrust(), residual, scale=Constant(1.0) if link == "linear" else LogSigmoidMass(residual))


@register(
    "Distillation", "Matches the teacher and ignores the label.", loss="KL(π_T‖p)", reference="Hinton et al. 2015"
)
def kd(tail: str = "drop", temperature: float = 1.0) -> Target:
    return Target(Constant(0.0), Teacher(tail, temperature), value=KLToResidual())


@register(
    "Distillation with labels (the paper's Distill)",
    "Matches the teacher with weight c and the label with weight 1−c.",
    loss="−(1−c)·log p_y + c·KL(π_T‖p)",
    reference="Hinton et al. 2015",
)
def kd_hybrid(c: float = 0.8, tail: str = "drop", temperature: float = 1.0) -> Target:
    check_range("c", c, 0.0, 1.0)
    return Target(Constant(1.0 - c), Teacher(tail, temperature), value=KLToResidual())


@register(
    "Target-SFT",
    "Trusts each label as much as the model does, and gives the rest to the student guided by the teacher.",
    loss="−p_y·log p_y − (1−p_y)·Σ_a π̃_a·log p_a",
    reference="Target-SFT, 2026",
)
def target_sft(eta: float = 0.5, tail: str = "drop", form: str = "geometric") -> Target:
    return Target(Prob(1.0), Guided(eta, tail, form))


@register(
    "Target-SFT, constant branch",
    "Replaces the residual's weight 1−p_y in Target-SFT by a constant c. Tends to DFT as c → 0.",
    loss="−p_y·log p_y − c·Σ_a π̃_a·log p_a",
    reference="Target-SFT, 2026",
)
def target_sft_constant(c: float = 1.0, eta: float = 0.5, tail: str = "drop", form: str = "geometric") -> Target:
    # The paper's text ("replacing the weight 1−γ by a constant") allows this reading and that of target_sft_mixture.
    check_range("c", c, 0.0, open_low=True)
    return Target(Ratio(c), Guided(eta, tail, form), ProbPlusConstant(c))


@register(
    "Target-SFT, constant mixture",
    "Gives the residual the weight c and the label 1−c, another reading of the ablation. Tends to SFT as c → 0.",
    loss="−(1−c)·log p_y − c·Σ_a π̃_a·log p_a",
    reference="Target-SFT, 2026",
)
def target_sft_mixture(c: float = 0.5, eta: float = 0.5, tail: str = "drop", form: str = "geometric") -> Target:
    check_range("c", c, 0.0, 1.0)
    return Target(Constant(1.0 - c), Guided(eta, tail, form))
