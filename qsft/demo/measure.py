"""The accuracy of one model on the synthetic task, by qsft's evaluator, and the first errors of its solutions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from qsft.demo.task import EOS, ERRORS, LENGTH, PROMPT_LENGTH, ClockProblem, first_error, given_answer, make_tokenizer
from qsft.evals.evaluate import evaluate
from qsft.evals.grading.grade import Grade
from qsft.evals.protocol import Protocol
from qsft.evals.tasks import Problem, Task
from qsft.inference.sampling import Generation
from qsft.progress import Progress

TASK = "clock"
MAX_NEW_TOKENS = LENGTH - PROMPT_LENGTH + 2  # a little more than a correct solution: anything longer is wrong


@dataclass(frozen=True)
class Measurement:
    """The accuracy of one model on the evaluation problems, in percent.

    Args:
        average: Average@n at temperature 1.
        standard_error: of `average`, over problems.
        errors: share of samples by the kind of their first error.
        scores: one value per problem: the share of its samples that are right.
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
    """Return Average@samples at temperature 1, greedy accuracy, pass@samples and the shares of first errors."""
    task = clock_task(problems, progress)
    tokenizer = make_tokenizer()
    sampling = Protocol(num_samples=samples, temperature=1.0, max_new_tokens=MAX_NEW_TOKENS)
    greedy = Protocol(num_samples=1, temperature=0.0, max_new_tokens=MAX_NEW_TOKENS)
    sampled_run = evaluate(model, task, tokenizer=tokenizer, protocol=sampling, silent=True)
    greedy_run = evaluate(model, task, tokenizer=tokenizer, protocol=greedy, silent=True)
    summary = sampled_run.summary["tasks"][TASK]
    result = sampled_run.results[TASK]
    problem_of_prompt = {" ".join(problem.prompt): problem for problem in problems}
    errors = Counter(
        first_error(problem_of_prompt[generation.problem], response_words(generation))
        for generation in result.generations
    )
    return Measurement(
        average=100 * summary["acc"]["mean"],
        standard_error=100 * summary["acc"]["se"],
        greedy=100 * greedy_run.accuracy(TASK),
        pass_at_n=100 * summary["pass_at"][str(samples)],
        errors={kind: 100 * errors[kind] / len(result.generations) for kind in ERRORS},
        scores=result.scores.mean(axis=1).tolist(),
    )


def clock_task(problems: Sequence[ClockProblem], progress: Progress | None = None) -> Task:
    """Return the problems as a task: prompts as in the documents, graded by the synthetic task's own rule.

    Args:
        progress: is advanced by every graded response.
    """

    def grade(generation: Generation, problem: Problem) -> Grade:
        if progress is not None:
            progress.advance()
        answer = given_answer(response_words(generation))
        return Grade(correct=answer == problem.gold, answer=answer)

    listed = []
    for problem in problems:
        text = " ".join(problem.prompt)
        listed.append(Problem(text, text, problem.answer))
    return Task(TASK, problems=listed, prompt=lambda problem: problem.question, grader=grade)


def response_words(generation: Generation) -> list[str]:
    """Return the words of a response. The sampler's text leaves <eos> out; `finish` says whether it was written."""
    words = generation.text.split()
    if generation.finish == "stop":
        words.append(EOS)
    return words
