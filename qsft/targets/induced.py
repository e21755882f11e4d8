"""Any loss has a target: Q = p − ∂L/∂z is the distribution whose cross-entropy has the same gradient."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.targets.dist import Dense
from qsft.targets.target import Mixture, Target
from qsft.targets.view import TokenView

LossFn = Callable[[Float[Tensor, "N V"], Int[Tensor, " N"]], Tensor]


def loss_and_gradient(
    loss_fn: LossFn, logits: Float[Tensor, "N V"], labels: Int[Tensor, " N"]
) -> tuple[Float[Tensor, " N"], Float[Tensor, "N V"]]:
    """The loss of each token and ∂(sum of losses)/∂z."""
    with torch.enable_grad():
        z = logits.detach().requires_grad_()
        loss = loss_fn(z, labels)
        if loss.shape != labels.shape:
            raise ValueError(
                f"the loss function returned shape {tuple(loss.shape)} for {labels.shape[0]} tokens; return one value "
                "per token, shape [N], without averaging: the trainer divides once."
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
    """A user's own loss as a target: it runs on the fused head, by autograd inside each chunk. γ is reported as Q_y."""

    trust: Any = field(default=None, init=False, repr=False)  # a loss has no parts
    residual: Any = field(default=None, init=False, repr=False)
    scale: Any = field(default=None, init=False, repr=False)
    loss_fn: LossFn

    def __call__(self, view: TokenView) -> Mixture:
        loss, grad = loss_and_gradient(self.loss_fn, view.logits, view.labels)
        q = (view.logits - view.lse[:, None]).exp().sub_(grad)
        one = torch.ones_like(view.lse)
        return Mixture([(one, Dense(q))], q.gather(-1, view.labels[:, None])[:, 0], one, value=loss)

    def record(self) -> dict[str, Any]:
        return {"loss": getattr(self.loss_fn, "__qualname__", repr(self.loss_fn))}
