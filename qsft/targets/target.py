"""Target: a fine-tuning method as a choice of distribution.

    Q = γ·δ_y + (1−γ)·π̃        loss = scale·CE(Q, p)        gradient = scale·(p − Q)

Any loss has a target too: Q = p − ∂L/∂z is the distribution whose cross-entropy has the same gradient.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from hashlib import blake2b
from inspect import isfunction
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.targets.dist import Dense, Dist, OneHot
from qsft.targets.residual import Terms
from qsft.targets.trust import Constant, PerToken
from qsft.targets.view import ROLES, Full, SideInputs, TokenView, TopK

Trust = Callable[[TokenView], Tensor]
Scale = Callable[[TokenView], Tensor]
Residual = Callable[[TokenView], Terms | Dist | Tensor]
Value = Callable[[TokenView, "Mixture"], Tensor]
LossFn = Callable[[Float[Tensor, "N V"], Int[Tensor, " N"]], Tensor]


@dataclass(frozen=True)
class Mixture:
    """Q at N positions: Σ mass·dist, with γ and the scale in front of CE(Q, p).

    Args:
        value: the loss of each token as it is reported, where that is not scale·CE(Q, p).
    """

    terms: Terms
    gamma: PerToken
    scale: PerToken
    value: PerToken | None = None

    def cross_entropy(self, view: TokenView) -> PerToken:
        """CE(Q, p) = Σ mass·CE(dist, p), differentiable in the view's logits."""
        label, residual = self.cross_entropies(view)
        return label + residual

    def cross_entropies(self, view: TokenView) -> tuple[PerToken, PerToken]:
        """CE(Q, p) in two parts: the label's and the residual's."""
        label = torch.zeros_like(view.lse)
        residual = torch.zeros_like(view.lse)
        for mass, dist in self.terms:
            # A part without mass is left out: its cross-entropy may be infinite.
            part = torch.where(mass == 0, 0.0, mass * dist.cross_entropy(view))
            if dist.is_label:
                label = label + part
            else:
                residual = residual + part
        return label, residual

    def support(self) -> Int[Tensor, "N C"] | None:
        """The tokens at which Q is not a multiple of p; None where that is the whole vocabulary."""
        found: list[Tensor] = []
        for _, dist in self.terms:
            tokens = dist.support()
            if tokens is None:
                return None
            found += [ids for ids in tokens if not any(ids is known for known in found)]
        return torch.cat(found, dim=-1)

    def dense(self, p: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Q written out over the vocabulary, for pictures and tests."""
        gradient = self.write_gradient(p, torch.ones_like(self.scale), out=torch.empty_like(p))
        return torch.stack([mass for mass, _ in self.terms]).sum(dim=0)[:, None] * p - gradient

    def student_factor(self, on_support: bool = False) -> PerToken:
        """The factor of p in p − Q, off or on the support of the distributions whose share differs there."""
        total = torch.zeros_like(self.scale)
        for mass, dist in self.terms:
            total += mass * (1.0 - dist.student_share(on_support))
        return total

    def _excluded_tokens(self) -> Int[Tensor, "N K"] | None:
        """The tokens at which p has another factor in p − Q: those that a `Ghost` leaves out."""
        for _, dist in self.terms:
            tokens = dist.support()
            if dist.share_differs_on_support and tokens:
                return tokens[0]
        return None

    def write_gradient(
        self, p: Float[Tensor, "N V"], scale: PerToken, out: Float[Tensor, "N V"]
    ) -> Float[Tensor, "N V"]:
        """scale·(p − Q), in `out`, which may be p itself."""
        excluded = self._excluded_tokens()
        if excluded is None:
            torch.mul(p, (scale * self.student_factor())[:, None], out=out)
        else:
            # Written, not corrected: off the excluded tokens the factor of p may be a million times as large.
            there = p.gather(-1, excluded) * (scale * self.student_factor(on_support=True))[:, None]
            torch.mul(p, (scale * self.student_factor())[:, None], out=out)
            out.scatter_(-1, excluded, there)
        for mass, dist in self.terms:
            dist.subtract_(out, scale * mass)
        return out

    def gradient_at(self, ids: Int[Tensor, "N C"], p: Float[Tensor, "N C"], scale: PerToken) -> Float[Tensor, "N C"]:
        """scale·(p − Q) of the tokens `ids`, to which the student gives `p`."""
        total = torch.zeros_like(p)
        for mass, dist in self.terms:
            total += mass[:, None] * (p - dist.at(ids, p))
        return scale[:, None] * total


@dataclass(frozen=True)
class Target:
    """A fine-tuning method: the trust in the observed token, the distribution of the rest of the mass, and a scale.

    Each part is a callable on a TokenView. See trust.py, residual.py, scale.py and value.py, or write your own.

    Args:
        trust: γ, the mass of the observed token.
        residual: π̃, the distribution of the rest. None if γ = 1.
        scale: the factor in front of CE(Q, p).
        value: the reported loss of each token (value.py). None reports scale·CE(Q, p).

    >>> from qsft.targets.residual import SelfPrior
    >>> Target(trust=lambda view: (0.5 * view.label_logp).exp(), residual=SelfPrior()).needs
    frozenset()
    """

    trust: Trust
    residual: Residual | None = None
    scale: Scale = Constant(1.0)  # noqa: RUF009  (a frozen value)
    value: Value | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("trust", "residual", "scale", "value"):
            part = getattr(self, name)
            if not callable(part) and not (part is None and name in ("residual", "value")):
                raise TypeError(
                    f"{name} must be a function of a TokenView, got {part!r}. See qsft/targets/{name}.py, or pass "
                    "Constant(number) for the same number at every token."
                )

    @torch.no_grad()
    def __call__(self, view: TokenView) -> Mixture:
        """Q for the tokens of `view`; γ, π̃ and scale carry no gradient."""
        gamma = _check_per_token("trust", self.trust(view), view)
        terms: Terms = [(gamma, OneHot(view.labels))]
        if self.residual is not None:
            rest = self.trust.rest(view) if hasattr(self.trust, "rest") else 1.0 - gamma
            terms += [(rest * share, dist) for share, dist in _as_terms(self.residual(view), view)]
        mixture = Mixture(terms, gamma, _check_per_token("scale", self.scale(view), view))
        if self.value is None:
            return mixture
        return replace(mixture, value=self.value(view, mixture))

    @property
    def parts(self) -> tuple[Any, ...]:
        """Trust, residual and scale, which determine the gradient."""
        return self.trust, self.residual, self.scale

    @property
    def needs(self) -> frozenset[str]:
        """The inputs besides logits and labels: a role ("teacher", "reference") and names of side inputs."""
        return frozenset().union(*(getattr(part, "needs", ()) for part in self.parts))

    @property
    def role(self) -> str | None:
        """The role of the second model that the target reads: "teacher", "reference", or None."""
        return next((role for role in ROLES if role in self.needs), None)

    @property
    def may_read_teacher(self) -> bool:
        """Whether a part may read a teacher: it declares this, or it is a plain function, which cannot declare it."""
        return self.role is not None or any(isfunction(part) for part in self.parts)

    @property
    def for_evaluation(self) -> "Target":
        """The target to use in evaluation, where psft has no old policy and reports the negative log-likelihood."""
        return Target(Constant(1.0)) if "old_logp" in self.needs else self

    @property
    def per_document(self) -> bool:
        """Whether a token's scale depends on its whole document. Label log-probs must then be known beforehand."""
        return hasattr(self.scale, "document_weights")

    @property
    def averages_kept(self) -> bool:
        """Whether a mean per micro-batch counts only tokens whose label has weight, as in the method's own code."""
        return bool(getattr(self.trust, "averages_kept", False))

    def prepare(self, side: SideInputs, teacher: TopK | Full | None, label_logp: Callable[[], PerToken]) -> SideInputs:
        """Return the side inputs with the weights per document. `label_logp` is called only when they are needed."""
        if not self.per_document or side.weight is not None:
            return side
        ref = side.ref_logp if side.ref_logp is not None or teacher is None else teacher.label_logp
        return replace(side, weight=self.scale.document_weights(side, ref, label_logp()))  # type: ignore[attr-defined]

    def record(self) -> dict[str, Any]:
        """The target as JSON. A checkpoint stores it, and it is compared on resume."""
        return {"trust": _record(self.trust), "residual": _record(self.residual), "scale": _record(self.scale)}


def check_is_target(target: object) -> None:
    """Raise TypeError for what is not a Target; only trainer and config look names up."""
    if isinstance(target, Target):
        return
    if isinstance(target, str):
        raise TypeError(f"target is the text {target!r}, but a Target is needed. Pass make_target({target!r}).")
    raise TypeError(
        f"target is {_what(target)}, but a Target is needed. Pass make_target(name), Target(trust, …) or "
        "LossTarget(function)."
    )


def _as_terms(residual: Terms | Dist | Tensor, view: TokenView) -> Terms:
    """What a residual returned, as [(share, Dist), …]."""
    if isinstance(residual, Tensor) and residual.shape == view.logits.shape:
        residual = Dense(residual)
    if isinstance(residual, Dist):
        return [(torch.ones_like(view.lse), residual)]
    if not isinstance(residual, list):
        raise ValueError(
            f"the residual returned {_what(residual)}. Return a distribution (qsft/targets/dist.py), a tensor of shape "
            f"[N, V] = {tuple(view.logits.shape)}, or a list of (share, distribution)."
        )
    return residual


def _check_per_token(part: str, value: Any, view: TokenView) -> PerToken:
    """`value`, which a part of a target returned; ValueError unless it is one number per token."""
    if not isinstance(value, Tensor) or value.shape != view.lse.shape:
        raise ValueError(
            f"the {part} returned {_what(value)} for {len(view.lse)} tokens. Return one number per token: a tensor of "
            "shape [N]."
        )
    return value


def _what(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _record(part: Any) -> Any:
    """Anything as JSON: a user's part may hold arrays and functions, and must not prevent a checkpoint."""
    if part is None or isinstance(part, str | int | float | bool):
        return part
    if isinstance(part, Real):  # numpy's numbers
        return float(part)
    if hasattr(part, "__array__"):  # a tensor, or numpy's
        array = torch.as_tensor(part).detach().cpu()
        content = array.flatten().view(torch.uint8).numpy().tobytes()
        return {"shape": list(array.shape), "dtype": str(array.dtype), "digest": blake2b(content).hexdigest()[:32]}
    if isinstance(part, Mapping):
        return {str(key): _record(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [_record(value) for value in part]
    if isinstance(part, set | frozenset):  # in an order that is the same in the next process
        return sorted(map(_record, part), key=repr)
    record = {"name": getattr(part, "__qualname__", None) or type(part).__name__}
    if is_dataclass(part) and not isinstance(part, type):
        record |= {own.name: _record(getattr(part, own.name)) for own in fields(part)}
    return record


def loss_and_gradient(
    loss_fn: LossFn, logits: Float[Tensor, "N V"], labels: Int[Tensor, " N"]
) -> tuple[Float[Tensor, " N"], Float[Tensor, "N V"]]:
    """The loss of each token and ∂(sum of losses)/∂z."""
    with torch.enable_grad():
        z = logits.detach().requires_grad_()
        loss = loss_fn(z, labels)
        if not isinstance(loss, Tensor) or loss.shape != labels.shape:
            raise ValueError(
                f"the loss function returned {_what(loss)} for {labels.shape[0]} tokens; return one value per token, "
                "shape [N], without averaging: the trainer divides once."
            )
        (grad,) = torch.autograd.grad(loss.sum(), z)
    return loss.detach(), grad


def induced_target(loss_fn: LossFn, logits: Float[Tensor, "N V"], labels: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
    """Q = p − ∂L/∂z for any differentiable token-level loss `loss_fn(logits, labels) -> [N]`.

    >>> z = torch.tensor([[0.0, 0.0]])
    >>> induced_target(lambda z, y: torch.nn.functional.cross_entropy(z, y, reduction="none"), z, torch.tensor([1]))
    tensor([[0., 1.]])
    """
    return logits.detach().softmax(dim=-1) - loss_and_gradient(loss_fn, logits, labels)[1]


@dataclass(frozen=True)
class LossTarget(Target):
    """A loss of your own as a target. It runs on the fused head, with autograd inside each chunk. γ is reported as Q_y.

    Args:
        loss_fn: maps (logits [N, V], labels [N]) to one loss per token [N].
    """

    trust: Any = field(default=None, init=False, repr=False)  # a loss has no parts
    residual: Any = field(default=None, init=False, repr=False)
    scale: Any = field(default=None, init=False, repr=False)
    value: Any = field(default=None, init=False, repr=False)
    loss_fn: LossFn

    def __post_init__(self) -> None:
        if not callable(self.loss_fn):
            raise TypeError(f"loss_fn must be a function of logits [N, V] and labels [N], got {self.loss_fn!r}.")

    def __call__(self, view: TokenView) -> Mixture:
        loss, grad = loss_and_gradient(self.loss_fn, view.logits, view.labels)
        q = (view.logits - view.lse[:, None]).exp().sub_(grad)
        one = torch.ones_like(view.lse)
        return Mixture([(one, Dense(q))], q.gather(-1, view.labels[:, None])[:, 0], one, value=loss)

    def record(self) -> dict[str, Any]:
        return {"loss": getattr(self.loss_fn, "__qualname__", repr(self.loss_fn))}
