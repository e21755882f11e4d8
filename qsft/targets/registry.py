"""The paper's table as code: one short function per row.

A row's name is the method, its arguments are the hyper-parameters with their defaults, its docstring is
"Title: in words. (reference)". The CLI, the validation, the README's table and the tests follow from it.
"""

import inspect
from collections.abc import Callable
from typing import Any

from qsft.targets.residual import Guided, LinkMass, Reference, SelfPrior, Teacher, Tempered, UniformPrior
from qsft.targets.target import Target
from qsft.targets.trust import (
    Both,
    ClippedRatio,
    Constant,
    Critical,
    DocumentRatio,
    Entropy,
    Opposed,
    Prob,
    Ratio,
    Shifted,
    Threshold,
)
from qsft.validation import check_range, did_you_mean

Row = Callable[..., Target]
TARGETS: dict[str, Row] = {}


def row(build: Row) -> Row:
    TARGETS[build.__name__] = build
    return build


def make_target(name: str, /, **hparams: Any) -> Target:
    """The named row of the table with the given hyper-parameters.

    >>> make_target("target_sft", eta=0.2).residual
    Guided(eta=0.2, tail='drop', form='geometric')
    """
    if name not in TARGETS:
        raise ValueError(f"there is no target {name!r}.{did_you_mean(name, TARGETS)} Known: {', '.join(TARGETS)}.")
    known = inspect.signature(TARGETS[name]).parameters
    for key in hparams:
        if key not in known:
            takes = ", ".join(known) or "none"
            raise ValueError(
                f"target {name!r} has no hyper-parameter {key!r}.{did_you_mean(key, known)} It takes: {takes}."
            )
    return TARGETS[name](**hparams)


@row
def sft() -> Target:
    """SFT: fit the observed token. (cross-entropy)"""
    return Target(Constant(1.0))


@row
def dft() -> Target:
    """DFT, the p-loss: trust a token as much as the model believes it. (Dynamic Fine-Tuning, Wu et al. 2025)"""
    return Target(Prob(1.0), SelfPrior())


@row
def beyond_log(alpha: float = 0.5, tau: float | None = None, keep: str = "above") -> Target:
    """Beyond log-likelihood: (1−p^α)/α, where α → 0 is SFT and α = 1 is DFT; with τ only tokens above or below it.
    (Li et al. 2025)"""
    trust = Prob(alpha)
    return Target(trust if tau is None else Both(Threshold(tau, keep), trust), SelfPrior())


@row
def profit(tau: float = 0.1) -> Target:
    """ProFiT: train on tokens the model finds more than τ likely. (ProFiT, 2026)"""
    return Target(Threshold(tau, strict=True), SelfPrior())


@row
def eaft(k: int = 20, alpha: float = 1.0) -> Target:
    """EAFT: trust labels where the model is unsure: entropy of its top k. (Entropy-Adaptive Fine-Tuning, 2026)"""
    return Target(Entropy(k, alpha), SelfPrior())


@row
def iw_sft(clip: float = 16.0, ratio: str = "mean") -> Target:
    """iw-SFT: one importance weight π_θ/π_ref per document, length-normalised; ratio="raw" is the whole sequence's, as
    the paper writes it. (Qin and Springenberg 2025)"""
    return Target(Constant(1.0), scale=DocumentRatio(clip, ratio))


@row
def cft() -> Target:
    """CFT: train on counterfactually critical tokens only. (Critical Token Fine-Tuning, 2025)"""
    return Target(Critical(), SelfPrior())


@row
def psft(eps: float = 0.28) -> Target:
    """PSFT: PPO's clipped ratio with advantage 1, against a policy refreshed every few steps. (Proximal SFT, 2025)"""
    return Target(Constant(1.0), scale=ClippedRatio(eps))


@row
def label_smoothing(lam: float = 0.1) -> Target:
    """Label smoothing: λ of the mass spread over the real vocabulary. (Szegedy et al. 2016)"""
    check_range("lam", lam, 0.0, 1.0)
    return Target(Constant(1.0 - lam), UniformPrior())


@row
def sft_kl(lam: float = 0.1, tail: str = "ghost") -> Target:
    """SFT + KL: λ·KL(π_ref‖π_θ) beside the label; its tail is kept, so the reference itself feels no pull. (forward KL
    to a reference)"""
    check_range("lam", lam, 0.0)
    return Target(Constant(1.0 / (1.0 + lam)), Reference(tail), scale=Constant(1.0 + lam))


@row
def asft(lam: float = 0.1, tail: str = "ghost") -> Target:
    """ASFT: the p-loss anchored to the base model by λ·KL, tail kept. (Anchored SFT, 2025)"""
    return Target(Ratio(lam), Reference(tail), scale=Shifted(lam))


@row
def gem(beta: float = 0.7, link: str = "linear") -> Target:
    """GEM: entropy-regularised SFT, gradient softmax(z/β) − δ; β = 1 is SFT. The mixture is signed, the value may be
    negative. (Li et al. 2025, GEM)"""
    residual = Tempered(beta, link)
    return Target(Opposed(), residual, scale=Constant(1.0) if link == "linear" else LinkMass(residual))


@row
def kd(tail: str = "drop", temperature: float = 1.0) -> Target:
    """Distillation: match the teacher, ignore the label. (Hinton et al. 2015)"""
    return Target(Constant(0.0), Teacher(tail, temperature))


@row
def kd_hybrid(c: float = 0.8, tail: str = "drop", temperature: float = 1.0) -> Target:
    """Distillation with labels: c of the mass on the teacher, 1−c on the label. (Hinton et al. 2015)"""
    check_range("c", c, 0.0, 1.0)
    return Target(Constant(1.0 - c), Teacher(tail, temperature))


@row
def target_sft(eta: float = 0.5, tail: str = "drop", form: str = "geometric") -> Target:
    """Target-SFT: trust p_y, and put the rest on the student pulled towards the teacher. (Target-SFT, 2026)"""
    return Target(Prob(1.0), Guided(eta, tail, form))


@row
def target_sft_constant(c: float = 1.0, eta: float = 0.5, tail: str = "drop", form: str = "geometric") -> Target:
    """Target-SFT, constant branch: p_y·CE(δ) + c·CE(π̃), the residual's weight 1−p_y replaced by c and the label's kept;
    tends to the p-loss as c → 0. (Target-SFT, 2026)"""
    check_range("c", c, 0.0, open_low=True)
    return Target(Ratio(c), Guided(eta, tail, form), scale=Shifted(c))


@row
def target_sft_mixture(c: float = 0.5, eta: float = 0.5, tail: str = "drop", form: str = "geometric") -> Target:
    """Target-SFT, constant mixture: (1−c)·CE(δ) + c·CE(π̃), the ablation's other reading; tends to SFT as c → 0, which
    its printed numbers fit better. (Target-SFT, 2026)"""
    check_range("c", c, 0.0, 1.0)
    return Target(Constant(1.0 - c), Guided(eta, tail, form))
