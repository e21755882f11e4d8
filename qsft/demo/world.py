"""A small world in which the paper's effect can be seen: clock arithmetic mod 10, three steps, written out.

    <bos> 7 +5 *3 -8 ?   →   first +5 7 = 2 then *3 2 gives 6 finally -8 6 is 8 ans 8 <eos>

300 facts, 270,000 problems. Openers, words for "equals" and answer words are free choices, as in real demonstrations;
results are not, and writers slip: a slip is one of the nine wrong numbers, and the chain goes on from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from qsft.demo.vocabulary import ANSWERS, ASK, BOS, EOS, EQUALS, MINUS, NUMBERS, OPENERS, PLUS, RAMBLINGS, TIMES, WORDS

STEPS = 3
MODULUS = 10
PROMPT_LENGTH = STEPS + 3  # <bos>, the number, the operations, ?
LENGTH = PROMPT_LENGTH + 5 * STEPS + 3  # of a chain with its problem
FACTS_PER_DOCUMENT = 6


@dataclass(frozen=True)
class ClockProblem:
    """A number and the operations to apply to it from left to right."""

    start: int
    operations: tuple[str, ...]

    @property
    def prompt(self) -> list[str]:
        return [BOS, str(self.start), *self.operations, ASK]

    @property
    def results(self) -> list[int]:
        results = [self.start]
        for operation in self.operations:
            results.append(fact(operation, results[-1]))
        return results[1:]

    @property
    def answer(self) -> str:
        return str(self.results[-1])


@dataclass(frozen=True)
class Writer:
    """Who writes chains: how often a result is a slip, how often to multiply, which words are preferred.

    preferred    index of the favourite among interchangeable words; None: all alike
    wrong_below  products of operands below this are always one too large: a writer who is sure and wrong
    """

    slips: float
    multiplying: float = 1 / 3
    preferred: int | None = None
    wrong_below: int = 0

    def operation(self, random: Random) -> str:
        """A random operation: multiplication with its own frequency, addition and subtraction alike."""
        sign = TIMES if random.random() < self.multiplying else random.choice((PLUS, MINUS))
        return sign + random.choice(NUMBERS)

    def problem(self, random: Random) -> ClockProblem:
        return ClockProblem(random.randrange(MODULUS), tuple(self.operation(random) for _ in range(STEPS)))

    def word(self, words: tuple[str, ...], random: Random) -> str:
        """One of several interchangeable words; the favourite four times out of five."""
        if self.preferred is not None and random.random() < FAVOURITE:
            return words[self.preferred % len(words)]
        return random.choice(words)

    def result(self, operation: str, operand: int, random: Random) -> int:
        """What this writer takes for the result."""
        right = fact(operation, operand)
        if operation[0] == TIMES and operand < self.wrong_below:
            right += 1
        # Both are drawn always: with other noise the same problems are solved in the same words.
        slip, off_by = random.random() < self.slips, random.randrange(1, MODULUS)
        return (right + off_by * slip) % MODULUS

    def step(self, operation: str, operand: int, random: Random) -> list[str]:
        """One fact in words: operation, operand, equals, result."""
        result = self.result(operation, operand, random)
        return [operation, str(operand), self.word(EQUALS, random), str(result)]

    def solution(self, problem: ClockProblem, random: Random) -> list[str]:
        """The chain of thought, the answer and <eos>."""
        words, value = [], str(problem.start)
        for openers, operation in zip(OPENERS, problem.operations):
            words += [self.word(openers, random), *self.step(operation, int(value), random)]
            value = words[-1]
        return [*words, self.word(ANSWERS, random), value, EOS]


FAVOURITE = 0.75  # how often a writer takes the preferred word without looking at the others

PRETRAINING = Writer(slips=0.15, multiplying=0.06)  # so it lacks some of the products
TEACHER = Writer(slips=0.05, preferred=0)
TEACHERS = {
    "right": TEACHER,
    "wrong": replace(TEACHER, wrong_below=MODULUS),
    "half": replace(TEACHER, wrong_below=MODULUS // 2),
}
DEMONSTRATOR = Writer(slips=0.25, preferred=1)


def fact(operation: str, operand: int) -> int:
    """The result of one operation on the clock.

    >>> fact("*7", 8)
    6
    """
    number = int(operation[1:])
    match operation[0]:
        case "+":
            return (operand + number) % MODULUS
        case "-":
            return (operand - number) % MODULUS
    return operand * number % MODULUS


def pretraining_corpus(count: int, seed: int) -> list[list[str]]:
    """What the base reads: 40 % bare facts, 55 % chains (1 in 5 breaks off into rambling), 5 % word salad."""
    random = Random(f"pretraining {seed}")
    return [_pretraining_document(random) for _ in range(count)]


def _pretraining_document(random: Random) -> list[str]:
    kind = random.random()
    if kind < 0.40:
        facts = [
            PRETRAINING.step(PRETRAINING.operation(random), random.randrange(MODULUS), random)
            for _ in range(FACTS_PER_DOCUMENT)
        ]
        return [BOS, *(word for words in facts for word in words)]
    if kind < 0.95:
        problem = PRETRAINING.problem(random)
        document = [*problem.prompt, *PRETRAINING.solution(problem, random)]
        return _break_off(document, random) if random.random() < 0.2 else document
    return [BOS, *random.choices(WORDS[4:], k=LENGTH - 1)]


def _break_off(document: list[str], random: Random) -> list[str]:
    cut = random.randrange(PROMPT_LENGTH, LENGTH - 2)
    return [*document[:cut], *random.choices(RAMBLINGS, k=LENGTH - 1 - cut), EOS]


def chains(writer: Writer, count: int, seed: int, *, without: frozenset[ClockProblem] = frozenset()) -> list[list[str]]:
    """`count` problems solved by `writer`, problem and solution in one document; none of the problems in `without`."""
    random = Random(f"chains {writer.preferred} {seed}")
    documents: list[list[str]] = []
    while len(documents) < count:
        problem = writer.problem(random)
        if problem not in without:
            documents.append([*problem.prompt, *writer.solution(problem, random)])
    return documents


def evaluation_problems(count: int, seed: int) -> list[ClockProblem]:
    """Distinct random problems to measure on; `chains` leaves them out of the demonstrations."""
    random, uniform = Random(f"evaluation {seed}"), Writer(slips=0.0)
    return list(_distinct(uniform, random, count))


def _distinct(writer: Writer, random: Random, count: int) -> Iterator[ClockProblem]:
    seen: set[ClockProblem] = set()
    while len(seen) < count:
        problem = writer.problem(random)
        if problem not in seen:
            seen.add(problem)
            yield problem
