"""The places before a result: what a model holds for right there, and where theory says that training takes it.

In one context the demonstrators' results have a distribution d (the right one with 1−noise, nine slips with noise/9)
and the teacher has T. `fixed_point` says where a target takes the model: SFT to d, distillation to a mixture of T and
d, Target-SFT to T·(1−d)^(−1/η), a product of experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qsft.demo.world import DEMONSTRATOR, EQUALS, KINDS, NUMBERS, OPERATIONS, STEPS, ClockProblem, encode, kind_of
from qsft.losses.self_check import evaluating
from qsft.targets.fixed_point import fixed_point
from qsft.targets.target import Target

Knowledge = Mapping[str, float]  # kind of step → share of its facts


@dataclass(frozen=True)
class Contexts:
    """Places before a result in faultless chains: where they are, what comes, of which kind the step is."""

    input_ids: Tensor
    rows: list[int]
    columns: list[int]
    right: Tensor
    kinds: list[str]

    @classmethod
    def of(cls, problems: Sequence[ClockProblem], steps: int = STEPS) -> "Contexts":
        """The first steps of the problems, solved without a slip in the demonstrators' words."""
        writer = replace(DEMONSTRATOR, slips=0.0)
        documents = [[*p.prompt, *writer.solution(p, Random(i))[: 5 * steps]] for i, p in enumerate(problems)]
        places = [(i, at) for i, words in enumerate(documents) for at, word in enumerate(words) if word in EQUALS]
        return cls(
            input_ids=torch.tensor([encode(words) for words in documents]),
            rows=[i for i, _ in places],
            columns=[at for _, at in places],
            right=torch.tensor([int(documents[i][at + 1]) for i, at in places]),
            kinds=[kind_of(documents[i][at - 2]) for i, at in places],
        )

    @torch.no_grad()
    def numbers(self, model: PreTrainedModel) -> Tensor:
        """The model's distribution over the ten numbers in every context, [N, 10]."""
        with evaluating(model):
            logits: Tensor = model(self.input_ids).logits[self.rows, self.columns]
        return logits[:, encode(list(NUMBERS))].softmax(dim=-1)

    def right_by_kind(self, distributions: Tensor) -> dict[str, float]:
        """The mean probability of the right result, for each kind of step that occurs."""
        return self._by_kind(distributions.gather(-1, self.right[:, None])[:, 0])

    def known_by_kind(self, distributions: Tensor) -> dict[str, float]:
        """The share of contexts whose likeliest result is the right one."""
        return self._by_kind(distributions.argmax(dim=-1) == self.right)

    def predicted(self, target: Target, noise: float, teacher: Tensor) -> dict[str, float] | None:
        """Where the target takes the right result; None where there is no closed form (the p-loss: a vertex)."""
        labels = torch.full_like(teacher, noise / (len(NUMBERS) - 1))
        labels.scatter_(-1, self.right[:, None], 1.0 - noise)
        points = [fixed_point(target, d, t) for d, t in zip(labels.double(), teacher.double())]
        return None if points[0] is None else self.right_by_kind(torch.stack([p for p in points if p is not None]))

    def _by_kind(self, values: Tensor) -> dict[str, float]:
        masks = {kind: torch.tensor([kind == one for one in self.kinds]) for kind in KINDS}
        return {kind: float(values.double()[mask].mean()) for kind, mask in masks.items() if mask.any()}


@cache
def every_fact() -> Contexts:
    """One context for each of the 300 facts: the first step of a problem."""
    asked = [(operation, operand) for operation in OPERATIONS for operand in range(len(NUMBERS))]
    rest = Random("every fact")
    problems = [ClockProblem(operand, (first, *rest.choices(OPERATIONS, k=STEPS - 1))) for first, operand in asked]
    return Contexts.of(problems, steps=1)


def knowledge(model: PreTrainedModel) -> Knowledge:
    """The shares of the 200 sums and differences and of the 100 products that the model gets right, if it must say."""
    return every_fact().known_by_kind(every_fact().numbers(model))
