"""The synthetic task of the demo: clock arithmetic mod 10 in three steps, with the steps written out.

    <bos> 7 +5 *3 -8 ?   →   first +5 7 = 2 then *3 2 gives 6 finally -8 6 is 8 ans 8 <eos>

There are 300 facts and 270,000 problems. Openers, words for "equals" and answer words are free choices, as in real
demonstrations. Results are not, but writers slip: a slip is one of the nine wrong numbers, and the chain continues
from it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# ---- vocabulary: one word, one token ----

PAD = "<pad>"
BOS = "<bos>"
EOS = "<eos>"
UNKNOWN = "<unk>"
SPECIAL = (PAD, BOS, EOS, UNKNOWN)
QUESTION_MARK = "?"
NUMBERS = tuple("0123456789")
PLUS = "+"
MINUS = "-"
TIMES = "*"
OPERATIONS = tuple(f"{sign}{number}" for sign in (PLUS, MINUS, TIMES) for number in NUMBERS)
OPENERS = (("first", "start", "take"), ("then", "next", "now"), ("finally", "last", "lastly"))  # by step
EVERY_OPENER = tuple(opener for openers in OPENERS for opener in openers)
EQUALS = ("=", "gives", "is", "makes")
ANSWERS = ("ans", "so", "result")
RAMBLINGS = ("well", "hmm", "maybe", "the", "clock", "turns", "round", "again", "and", "but", "who", "knows")
WORDS = (*SPECIAL, QUESTION_MARK, *NUMBERS, *OPERATIONS, *EVERY_OPENER, *EQUALS, *ANSWERS, *RAMBLINGS)
IDS = {word: index for index, word in enumerate(WORDS)}

# Only spaces separate the words of a question, so a conversation is its messages one after the other.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + ' ' + eos_token }}{% endgeneration %}"
    "{% else %}{{ bos_token + ' ' + message['content'] + ' ' }}{% endif %}{% endfor %}"
)

STEPS = 3
MODULUS = 10
STEP_LENGTH = 5  # opener, operation, operand, word for "equals", result
PROMPT_LENGTH = STEPS + 3  # <bos>, the number, the operations, ?
LENGTH = PROMPT_LENGTH + STEP_LENGTH * STEPS + 3  # of a problem with its solution
FACTS_PER_DOCUMENT = 6
PREFERRED_SHARE = 0.75  # how often a writer takes the preferred word without considering the others

# Kinds of steps, which are kinds of errors too, and the two other kinds of errors.
ADDING = "+/−"
MULTIPLYING = "×"
COPYING = "copying"
FORM = "form"
KINDS = (ADDING, MULTIPLYING)
ERRORS = (ADDING, MULTIPLYING, COPYING, FORM)


def encode(words: Iterable[str]) -> list[int]:
    """Return the token ids of words."""
    return [IDS[word] for word in words]


def make_tokenizer() -> "PreTrainedTokenizerFast":
    """Return a word-level tokenizer that splits at spaces and adds no special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel(IDS, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=UNKNOWN
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


# ---- problems and writers ----


def fact(operation: str, operand: int) -> int:
    """Return the result of one operation mod 10.

    >>> fact("*7", 8)
    6
    """
    sign = operation[0]
    number = int(operation[1:])
    if sign == TIMES:
        result = operand * number
    elif sign == PLUS:
        result = operand + number
    else:
        result = operand - number
    return result % MODULUS


@dataclass(frozen=True)
class ClockProblem:
    """A number and the operations to apply to it from left to right."""

    start: int
    operations: tuple[str, ...]

    @classmethod
    def from_document(cls, input_ids: Sequence[int]) -> "ClockProblem":
        """Return the problem that a document begins with."""
        _, start, *operations, _ = (WORDS[token] for token in input_ids[:PROMPT_LENGTH])
        return cls(int(start), tuple(operations))

    @property
    def prompt(self) -> list[str]:
        return [BOS, str(self.start), *self.operations, QUESTION_MARK]

    @property
    def answer(self) -> str:
        value = self.start
        for operation in self.operations:
            value = fact(operation, value)
        return str(value)


@dataclass(frozen=True)
class Writer:
    """An author of solutions: how often a result is a slip, how often to multiply, which words are preferred.

    Args:
        slips: probability that a result is replaced by a wrong one.
        multiplying: probability that an operation of a problem is a multiplication.
        preferred: index of the preferred one among interchangeable words; None: all are equally likely.
        wrong_below: products of operands below this are always one too large (a confidently wrong writer).
    """

    slips: float
    multiplying: float = 1 / 3
    preferred: int | None = None
    wrong_below: int = 0

    def operation(self, random: Random) -> str:
        sign = TIMES if random.random() < self.multiplying else random.choice((PLUS, MINUS))
        return sign + random.choice(NUMBERS)

    def problem(self, random: Random) -> ClockProblem:
        return ClockProblem(random.randrange(MODULUS), tuple(self.operation(random) for _ in range(STEPS)))

    def word(self, words: tuple[str, ...], random: Random) -> str:
        """Return one of several interchangeable words; the preferred one about four times out of five."""
        if self.preferred is not None and random.random() < PREFERRED_SHARE:
            return words[self.preferred % len(words)]
        return random.choice(words)

    def result(self, operation: str, operand: int, random: Random) -> int:
        """Return what this writer takes for the result of an operation."""
        result = fact(operation, operand)
        if operation[0] == TIMES and operand < self.wrong_below:
            result += 1
        # Both are drawn in any case: with other noise the same problems are solved in the same words.
        is_slip = random.random() < self.slips
        off_by = random.randrange(1, MODULUS)
        if is_slip:
            result += off_by
        return result % MODULUS

    def step(self, operation: str, operand: int, random: Random) -> list[str]:
        result = self.result(operation, operand, random)
        return [operation, str(operand), self.word(EQUALS, random), str(result)]

    def solution(self, problem: ClockProblem, random: Random) -> list[str]:
        words: list[str] = []
        value = str(problem.start)
        for openers, operation in zip(OPENERS, problem.operations):
            words.append(self.word(openers, random))
            words += self.step(operation, int(value), random)
            value = words[-1]
        return [*words, self.word(ANSWERS, random), value, EOS]


PRETRAINING = Writer(slips=0.15, multiplying=0.06)  # few products, so that the base lacks some of them
TEACHER = Writer(slips=0.05, preferred=0)
TEACHERS = {
    "right": TEACHER,
    "wrong": replace(TEACHER, wrong_below=MODULUS),
    "half": replace(TEACHER, wrong_below=MODULUS // 2),
}
DEMONSTRATOR = Writer(slips=0.25, preferred=1)

# ---- documents ----


def pretraining_corpus(count: int, seed: int) -> list[list[str]]:
    """Return the base's documents: 40 % bare facts, 55 % solutions (1 in 5 breaks off), 5 % random words."""
    random = Random(f"pretraining {seed}")
    documents = []
    for _ in range(count):
        kind = random.random()
        if kind < 0.40:
            documents.append(_facts(random))
        elif kind < 0.95:
            documents.append(_solution_or_rambling(random))
        else:
            documents.append([BOS, *random.choices(WORDS[len(SPECIAL) :], k=LENGTH - 1)])
    return documents


def _facts(random: Random) -> list[str]:
    document = [BOS]
    for _ in range(FACTS_PER_DOCUMENT):
        operation = PRETRAINING.operation(random)
        document += PRETRAINING.step(operation, random.randrange(MODULUS), random)
    return document


def _solution_or_rambling(random: Random) -> list[str]:
    """Return a problem with its solution; one in five breaks off and continues with meaningless words."""
    problem = PRETRAINING.problem(random)
    document = [*problem.prompt, *PRETRAINING.solution(problem, random)]
    if random.random() < 0.2:
        cut = random.randrange(PROMPT_LENGTH, LENGTH - 2)
        document = [*document[:cut], *random.choices(RAMBLINGS, k=LENGTH - 1 - cut), EOS]
    return document


def chains(writer: Writer, count: int, seed: int, *, without: frozenset[ClockProblem] = frozenset()) -> list[list[str]]:
    """Return `count` problems solved by `writer`, each with its solution in one document, without some problems."""
    random = Random(f"chains {writer.preferred} {seed}")
    documents: list[list[str]] = []
    while len(documents) < count:
        problem = writer.problem(random)
        if problem not in without:
            documents.append([*problem.prompt, *writer.solution(problem, random)])
    return documents


def evaluation_problems(count: int, seed: int) -> list[ClockProblem]:
    """Return distinct random problems for the evaluation; the demonstrations leave them out."""
    random = Random(f"evaluation {seed}")
    writer = Writer(slips=0.0)
    problems: dict[ClockProblem, None] = {}
    while len(problems) < count:
        problems[writer.problem(random)] = None
    return list(problems)


# ---- reading a solution ----


def given_answer(words: list[str]) -> str | None:
    """Return the number after an answer word right before the first <eos>; None for anything else.

    >>> given_answer("first +5 7 = 2 ans 2 <eos>".split())
    '2'
    """
    if EOS not in words:
        return None
    match words[: words.index(EOS)]:
        case [*_, word, number] if word in ANSWERS and number in NUMBERS:
            return number
    return None


def answer(example: Mapping[str, Any]) -> str:
    """Return the true answer of a document's problem; the `gold` of `qsft curate`."""
    return ClockProblem.from_document(example["input_ids"]).answer


def verify(response: str, example: Mapping[str, Any]) -> bool:
    """Return whether a response that ended by itself gives the true answer; the `verifier` of `qsft curate`."""
    return given_answer([*response.split(), EOS]) == answer(example)


def first_error(problem: ClockProblem, words: list[str]) -> str | None:
    """Return the kind of the first wrong word, or None for a correct solution.

    A wrong result is `+/−` or `×` by its operation; a wrong operation, operand or final answer is `copying`; anything
    that is not a chain of steps is `form`. A result is judged by the operand it was computed from.
    """
    value = str(problem.start)
    for index, operation in enumerate(problem.operations):
        step = words[STEP_LENGTH * index : STEP_LENGTH * (index + 1)]
        error = _error_in_step(step, operation, value)
        if error is not None:
            return error
        value = step[-1]
    match words[STEP_LENGTH * STEPS : STEP_LENGTH * STEPS + 3]:
        case [answer_word, number, end] if answer_word in ANSWERS and number in NUMBERS and end == EOS:
            return None if number == value else COPYING
    return FORM


def _error_in_step(step: list[str], operation: str, value: str) -> str | None:
    if len(step) < STEP_LENGTH:
        return FORM
    opener, written_operation, operand, equals, result = step
    if opener not in EVERY_OPENER:
        return FORM
    if (written_operation, operand) != (operation, value):
        return COPYING
    if equals not in EQUALS or result not in NUMBERS:
        return FORM
    if int(result) != fact(operation, int(value)):
        return MULTIPLYING if operation[0] == TIMES else ADDING
    return None
