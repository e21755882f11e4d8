"""Measuring one model with the product's sampler and statistics: Average@n, greedy, pass@n, first errors."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedModel

from qsft.demo.progress import Advance
from qsft.demo.reading import ERRORS, first_error, is_correct
from qsft.demo.vocabulary import EOS, encode, make_tokenizer
from qsft.demo.world import LENGTH, PROMPT_LENGTH, Problem
from qsft.evals.protocol import Sampling
from qsft.evals.request import Generation, Request
from qsft.evals.sample import Sampler
from qsft.evals.stats import Scores, mean_over_problems, pass_at

LONGEST = LENGTH - PROMPT_LENGTH + 2  # a little more than a faultless solution: what is longer is wrong


@dataclass(frozen=True)
class Measurement:
    """What one model does on the evaluation problems, in percent.

    scores   one value per problem: the share of its samples that are right
    errors   share of samples by the kind of their first error
    """

    average: float
    standard_error: float
    greedy: float
    pass_at_n: float
    errors: dict[str, float]
    scores: Scores


def measure(model: PreTrainedModel, problems: Sequence[Problem], samples: int, advance: Advance) -> Measurement:
    """Average@samples at temperature 1, greedy accuracy, pass@samples and the table of first errors."""
    right = np.zeros((len(problems), samples))
    errors: Counter[str | None] = Counter()
    for index, sample, words in _solutions(model, problems, Sampling(n=samples, max_new_tokens=LONGEST)):
        right[index, sample] = is_correct(problems[index], words)
        errors[first_error(problems[index], words)] += 1
        advance(1)
    greedy = Sampling(n=1, temperature=0.0, max_new_tokens=LONGEST)
    best = [is_correct(problems[index], words) for index, _, words in _solutions(model, problems, greedy)]
    estimate = mean_over_problems(right.mean(axis=1))
    solved = [pass_at(int(row.sum()), samples, samples) for row in right]
    return Measurement(
        average=100 * estimate.mean,
        standard_error=100 * estimate.se,
        greedy=100 * float(np.mean(best)),
        pass_at_n=100 * float(np.mean(solved)),
        errors={kind: 100 * errors[kind] / right.size for kind in ERRORS},
        scores=right.mean(axis=1),
    )


def _solutions(
    model: PreTrainedModel, problems: Sequence[Problem], sampling: Sampling
) -> Iterator[tuple[int, int, list[str]]]:
    """(problem, sample, words) of every solution drawn."""
    prompts = [encode(problem.prompt) for problem in problems]
    wanted = [Request(str(i), s, prompt) for i, prompt in enumerate(prompts) for s in range(sampling.n)]
    for generation in Sampler(model, make_tokenizer(), sampling).sample(wanted):
        yield int(generation.document), generation.sample, words_of(generation)


def words_of(generation: Generation) -> list[str]:
    """The words of a response; the sampler's text leaves <eos> out and says in `finish` whether it was there."""
    return [*generation.text.split(), *([EOS] if generation.finish == "stop" else [])]
