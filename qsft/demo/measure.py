"""Measuring one model with the product's evaluator: Average@n, greedy, pass@n, and where solutions first go wrong."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from qsft.demo import world
from qsft.demo.world import ClockProblem
from qsft.evals.evaluate import evaluate
from qsft.evals.grade import Grade
from qsft.evals.protocol import Protocol
from qsft.evals.request import Generation
from qsft.evals.tasks import Problem, Task
from qsft.progress import Progress

TASK = "clock"
LONGEST = world.LENGTH - world.PROMPT_LENGTH + 2  # a little more than a faultless solution: what is longer is wrong
GREEDY = Protocol(n=1, temperature=0.0, max_new_tokens=LONGEST)


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
    sampling = Protocol(n=samples, max_new_tokens=LONGEST)
    sampled = evaluate(model, task, tokenizer=tokenizer, protocol=sampling, silent=True)
    greedy = evaluate(model, task, tokenizer=tokenizer, protocol=GREEDY, silent=True)
    numbers, result = sampled.summary["tasks"][TASK], sampled.results[TASK]
    by_prompt = {_text(problem): problem for problem in problems}
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

    asked = [Problem(_text(problem), _text(problem), problem.answer) for problem in problems]
    return Task(TASK, problems=asked, prompt=lambda one: one.question, grader=grade)


def words_of(generation: Generation) -> list[str]:
    """The words of a response; the sampler's text leaves <eos> out and says in `finish` whether it was there."""
    return [*generation.text.split(), *([world.EOS] if generation.finish == "stop" else [])]


def _text(problem: ClockProblem) -> str:
    return " ".join(problem.prompt)
