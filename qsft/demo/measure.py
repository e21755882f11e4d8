"""What one model does and knows: accuracy with the product's evaluator, first errors, and its belief in each fact.

In one context, the place before a result, the demonstrators' results have a distribution d (the right one with
1−noise, nine slips with noise/9) and the teacher has T. `fixed_point` says where a target takes the model: SFT to d,
distillation to a mixture of T and d, Target-SFT to T·(1−d)^(−1/η), a product of experts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qsft.demo import world
from qsft.demo.world import ADDING, EQUALS, IDS, MULTIPLYING, NUMBERS, OPERATIONS, STEPS, ClockProblem, encode
from qsft.evals.evaluate import evaluate
from qsft.evals.grading.grade import Grade
from qsft.evals.protocol import Protocol
from qsft.evals.tasks import Problem, Task
from qsft.inference.sampling import Generation
from qsft.losses.evaluation_mode import evaluating
from qsft.progress import Progress
from qsft.targets.fixed_point import fixed_point
from qsft.targets.target import Target

TASK = "clock"
LONGEST = world.LENGTH - world.PROMPT_LENGTH + 2  # a little more than a faultless solution: what is longer is wrong
Knowledge = Mapping[str, float]  # kind of step → share of its facts

# ---- what it does ----


@dataclass(frozen=True)
class Measurement:
    """What one model does on the evaluation problems, in percent.

    errors   share of samples by the kind of their first error
    scores   one value per problem: the share of its samples that are right
    """

    average: float
    standard_error: float
    greedy: float
    pass_at_n: float
    errors: dict[str, float]
    scores: list[float]


def measure(
    model: PreTrainedModel, problems: Sequence[ClockProblem], samples: int, progress: Progress | None = None
) -> Measurement:
    """Average@samples at temperature 1, greedy accuracy, pass@samples and the shares of first errors."""
    task, tokenizer = clock_task(problems, progress), world.make_tokenizer()
    protocols = (Protocol(num_samples=n, temperature=t, max_new_tokens=LONGEST) for n, t in ((samples, 1.0), (1, 0.0)))
    sampled, greedy = (evaluate(model, task, tokenizer=tokenizer, protocol=one, silent=True) for one in protocols)
    numbers, result = sampled.summary["tasks"][TASK], sampled.results[TASK]
    by_prompt = {" ".join(problem.prompt): problem for problem in problems}
    errors = Counter(world.first_error(by_prompt[one.problem], words_of(one)) for one in result.generations)
    return Measurement(
        average=100 * numbers["acc"]["mean"],
        standard_error=100 * numbers["acc"]["se"],
        greedy=100 * greedy.accuracy(TASK),
        pass_at_n=100 * numbers["pass_at"][str(samples)],
        errors={kind: 100 * errors[kind] / len(result.generations) for kind in world.ERRORS},
        scores=result.scores.mean(axis=1).tolist(),
    )


def clock_task(problems: Sequence[ClockProblem], progress: Progress | None = None) -> Task:
    """The evaluation problems as a task: asked as they stand in the documents, graded by the world's own rule."""

    def grade(generation: Generation, asked: Problem) -> Grade:
        if progress is not None:
            progress.advance()
        answer = world.given_answer(words_of(generation))
        return Grade(correct=answer == asked.gold, answer=answer)

    texts = [" ".join(problem.prompt) for problem in problems]
    asked = [Problem(text, text, problem.answer) for text, problem in zip(texts, problems)]
    return Task(TASK, problems=asked, prompt=lambda one: one.question, grader=grade)


def words_of(generation: Generation) -> list[str]:
    """The words of a response; the sampler's text leaves <eos> out and says in `finish` whether it was there."""
    return [*generation.text.split(), *([world.EOS] if generation.finish == "stop" else [])]


# ---- what it knows ----


@dataclass(frozen=True)
class Contexts:
    """The places before the results of faultless chains: where they are, what comes, which steps are products."""

    input_ids: Tensor
    places: tuple[Tensor, Tensor]  # rows and columns of input_ids
    right: Tensor
    multiplying: Tensor

    @classmethod
    def of(cls, problems: Sequence[ClockProblem], steps: int = STEPS) -> "Contexts":
        """The first steps of the problems, solved without a slip in the demonstrators' words."""
        writer = replace(world.DEMONSTRATOR, slips=0.0)
        documents = [[*p.prompt, *writer.solution(p, Random(i))[: 5 * steps]] for i, p in enumerate(problems)]
        ids = torch.tensor([encode(words) for words in documents])
        rows, columns = torch.isin(ids, torch.tensor(encode(EQUALS))).nonzero(as_tuple=True)
        products = torch.isin(ids[rows, columns - 2], torch.tensor([IDS[f"*{number}"] for number in NUMBERS]))
        return cls(ids, (rows, columns), ids[rows, columns + 1] - IDS["0"], products)

    @torch.no_grad()
    def numbers(self, model: PreTrainedModel) -> Tensor:
        """The model's distribution over the ten numbers in every context, [N, 10]."""
        with evaluating(model):
            logits: Tensor = model(self.input_ids).logits[self.places]
        return logits[:, encode(NUMBERS)].softmax(dim=-1)

    def right_by_kind(self, distributions: Tensor) -> dict[str, float]:
        """The mean probability of the right result, for each kind of step that occurs."""
        return self._by_kind(distributions.gather(-1, self.right[:, None])[:, 0])

    def known_by_kind(self, distributions: Tensor) -> dict[str, float]:
        return self._by_kind(distributions.argmax(dim=-1) == self.right)

    def predicted(self, target: Target, noise: float, teacher: Tensor) -> dict[str, float] | None:
        """Where the target takes the right result; None where there is no closed form (the p-loss: a vertex)."""
        labels = torch.full_like(teacher, noise / (len(NUMBERS) - 1))
        labels.scatter_(-1, self.right[:, None], 1.0 - noise)
        points = [fixed_point(target, d, t) for d, t in zip(labels.double(), teacher.double())]
        return None if points[0] is None else self.right_by_kind(torch.stack([p for p in points if p is not None]))

    def _by_kind(self, values: Tensor) -> dict[str, float]:
        masks = {ADDING: ~self.multiplying, MULTIPLYING: self.multiplying}
        return {kind: float(values[mask].double().mean()) for kind, mask in masks.items() if mask.any()}


def every_fact() -> Contexts:
    """One context for each of the 300 facts: the first step of a problem."""
    asked = [(operation, operand) for operation in OPERATIONS for operand in range(len(NUMBERS))]
    rest = Random("every fact")
    problems = [ClockProblem(operand, (first, *rest.choices(OPERATIONS, k=STEPS - 1))) for first, operand in asked]
    return Contexts.of(problems, steps=1)


def knowledge(model: PreTrainedModel) -> Knowledge:
    """The shares of the 200 sums and differences and of the 100 products that the model gets right, if it must say."""
    facts = every_fact()
    return facts.known_by_kind(facts.numbers(model))
