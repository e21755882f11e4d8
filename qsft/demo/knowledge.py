"""What one model knows: its distribution over results in fixed contexts, and where a target takes it.

In one context, the position before a result, the demonstrators' results have a distribution d (the right one with
1−noise, nine slips with noise/9) and the teacher has T. `fixed_point` gives the distribution that a target takes the
model to: SFT to d, distillation to a mixture of T and d, Target-SFT to T·(1−d)^(−1/η), a product of experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qsft.demo.task import (
    ADDING,
    DEMONSTRATOR,
    EQUALS,
    IDS,
    MULTIPLYING,
    NUMBERS,
    OPERATIONS,
    STEP_LENGTH,
    STEPS,
    TIMES,
    ClockProblem,
    encode,
)
from qsft.losses.evaluation_mode import evaluating
from qsft.targets.fixed_point import fixed_point
from qsft.targets.target import Target

Knowledge = Mapping[str, float]  # kind of step → a share or a probability


@dataclass(frozen=True)
class Contexts:
    """N positions before the results of correct solutions.

    Args:
        input_ids: the documents, [documents, time].
        documents: the document of each context, [N].
        positions: the position of the word for "equals" in it, [N].
        right: the right result, a number from 0 to 9, [N].
        multiplying: whether the step is a product, [N].
    """

    input_ids: Tensor
    documents: Tensor
    positions: Tensor
    right: Tensor
    multiplying: Tensor

    @classmethod
    def of_problems(cls, problems: Sequence[ClockProblem], steps: int = STEPS) -> "Contexts":
        """Return the contexts of the first steps of problems, solved without slips in the demonstrators' words."""
        writer = replace(DEMONSTRATOR, slips=0.0)
        texts = []
        for index, problem in enumerate(problems):
            solution = writer.solution(problem, Random(index))
            texts.append([*problem.prompt, *solution[: STEP_LENGTH * steps]])
        input_ids = torch.tensor([encode(words) for words in texts])
        documents, positions = torch.isin(input_ids, torch.tensor(encode(EQUALS))).nonzero(as_tuple=True)
        operations = input_ids[documents, positions - 2]
        products = torch.tensor(encode(f"{TIMES}{number}" for number in NUMBERS))
        return cls(
            input_ids,
            documents,
            positions,
            right=input_ids[documents, positions + 1] - IDS["0"],
            multiplying=torch.isin(operations, products),
        )

    @torch.no_grad()
    def number_probs(self, model: PreTrainedModel) -> Tensor:
        """Return the model's distribution over the ten numbers in every context, [N, 10]."""
        with evaluating(model):
            logits: Tensor = model(self.input_ids).logits[self.documents, self.positions]
        return logits[:, encode(NUMBERS)].softmax(dim=-1)

    def right_by_kind(self, probs: Tensor) -> dict[str, float]:
        """Return the mean probability of the right result, for each kind of step that occurs."""
        return self._mean_by_kind(probs.gather(-1, self.right[:, None])[:, 0])

    def known_by_kind(self, probs: Tensor) -> dict[str, float]:
        """Return how often the likeliest number is the right result, for each kind of step that occurs."""
        return self._mean_by_kind(probs.argmax(dim=-1) == self.right)

    def predict(self, target: Target, noise: float, teacher: Tensor) -> dict[str, float] | None:
        """Return the probability of the right result that the target takes the model to.

        None where there is no closed form (DFT ends at one token).
        """
        labels = torch.full_like(teacher, noise / (len(NUMBERS) - 1))
        labels.scatter_(-1, self.right[:, None], 1.0 - noise)
        points = []
        for label_probs, teacher_probs in zip(labels.double(), teacher.double()):
            point = fixed_point(target, label_probs, teacher_probs)
            if point is None:
                return None
            points.append(point)
        return self.right_by_kind(torch.stack(points))

    def _mean_by_kind(self, values: Tensor) -> dict[str, float]:
        masks = {ADDING: ~self.multiplying, MULTIPLYING: self.multiplying}
        return {kind: float(values[mask].double().mean()) for kind, mask in masks.items() if mask.any()}


def contexts_of_all_facts() -> Contexts:
    """Return one context for each of the 300 facts: the first step of a problem."""
    random = Random("every fact")
    problems = []
    for operation in OPERATIONS:
        for operand in range(len(NUMBERS)):
            others = random.choices(OPERATIONS, k=STEPS - 1)
            problems.append(ClockProblem(operand, (operation, *others)))
    return Contexts.of_problems(problems, steps=1)


def known_facts(model: PreTrainedModel) -> Knowledge:
    """Return the shares of the 200 sums and differences and of the 100 products whose likeliest result is right."""
    contexts = contexts_of_all_facts()
    return contexts.known_by_kind(contexts.number_probs(model))
