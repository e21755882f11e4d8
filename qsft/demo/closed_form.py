"""Theory beside measurement: how likely the right result of a step should become, and how likely it is.

In one context the demonstrators' results have a distribution d (the right one with 1−noise, nine slips with noise/9)
and the teacher has T. `fixed_point` says where a target takes the model: SFT to d, distillation to a mixture of T and
d, Target-SFT to T·(1−d)^(−1/η), a product of experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qsft.demo.reading import ADDING, MULTIPLYING
from qsft.demo.vocabulary import EQUALS, NUMBERS, TIMES, encode
from qsft.demo.world import DEMONSTRATOR, Problem
from qsft.targets.fixed_point import fixed_point
from qsft.targets.target import Target

KINDS = (ADDING, MULTIPLYING)


@dataclass(frozen=True)
class Contexts:
    """Places before a result in faultless chains: where they are, what comes, of which kind the step is."""

    input_ids: Tensor
    rows: list[int]
    columns: list[int]
    right: Tensor
    kinds: list[str]

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> "Contexts":
        """All steps of the problems, solved without a slip in the demonstrators' words."""
        writer = replace(DEMONSTRATOR, slips=0.0)
        documents = [[*p.prompt, *writer.solution(p, Random(i))] for i, p in enumerate(problems)]
        places = [(i, at) for i, words in enumerate(documents) for at, word in enumerate(words) if word in EQUALS]
        return cls(
            input_ids=torch.tensor([encode(words) for words in documents]),
            rows=[i for i, _ in places],
            columns=[at for _, at in places],
            right=torch.tensor([int(documents[i][at + 1]) for i, at in places]),
            kinds=[MULTIPLYING if documents[i][at - 2][0] == TIMES else ADDING for i, at in places],
        )

    @torch.no_grad()
    def numbers(self, model: PreTrainedModel) -> Tensor:
        """The model's distribution over the ten numbers in every context, [N, 10]."""
        logits: Tensor = model.eval()(self.input_ids).logits[self.rows, self.columns]
        return logits[:, encode(list(NUMBERS))].softmax(dim=-1)

    def right_by_kind(self, distributions: Tensor) -> dict[str, float]:
        """The mean probability of the right result, for each kind of step that occurs."""
        p = distributions.gather(-1, self.right[:, None])[:, 0].double()
        masks = {kind: torch.tensor([kind == one for one in self.kinds]) for kind in KINDS}
        return {kind: float(p[mask].mean()) for kind, mask in masks.items() if mask.any()}

    def predicted(self, target: Target, noise: float, teacher: Tensor) -> dict[str, float] | None:
        """Where the target takes the right result; None where there is no closed form (the p-loss: a vertex)."""
        labels = torch.full_like(teacher, noise / (len(NUMBERS) - 1))
        labels.scatter_(-1, self.right[:, None], 1.0 - noise)
        points = [fixed_point(target, d, t) for d, t in zip(labels.double(), teacher.double())]
        return None if points[0] is None else self.right_by_kind(torch.stack([p for p in points if p is not None]))


Comparison = Mapping[str, Mapping[str, float] | None]  # "closed form" and "measured" → kind of step → p(right)
