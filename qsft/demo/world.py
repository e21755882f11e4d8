"""A small world in which the paper's effect can be seen: clock arithmetic mod 10, three steps, written out.

    <bos> 7 +5 *3 -8 ?   →   first +5 7 = 2 then *3 2 gives 6 finally -8 6 is 8 ans 8 <eos>

300 facts, 270,000 problems. Openers, words for "equals" and answer words are free choices, as in real demonstrations;
results are not, and writers slip: a slip is one of the nine wrong numbers, and the chain goes on from it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# ---- the words: one word, one token ----

PAD, BOS, EOS, UNKNOWN = SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
ASK = "?"
NUMBERS = tuple("0123456789")
PLUS, MINUS, TIMES = SIGNS = ("+", "-", "*")
OPERATIONS = tuple(f"{sign}{number}" for sign in SIGNS for number in NUMBERS)
OPENERS = (("first", "start", "take"), ("then", "next", "now"), ("finally", "last", "lastly"))  # by step
EQUALS = ("=", "gives", "is", "makes")
ANSWERS = ("ans", "so", "result")
RAMBLINGS = ("well", "hmm", "maybe", "the", "clock", "turns", "round", "again", "and", "but", "who", "knows")
WORDS = (*SPECIAL, ASK, *NUMBERS, *OPERATIONS, *sum(OPENERS, ()), *EQUALS, *ANSWERS, *RAMBLINGS)
IDS = {word: index for index, word in enumerate(WORDS)}

# Nothing stands between the words of a question but spaces, so a conversation is its messages one after the other.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + ' ' + eos_token }}{% endgeneration %}"
    "{% else %}{{ bos_token + ' ' + message['content'] + ' ' }}{% endif %}{% endfor %}"
)

STEPS = 3
MODULUS = 10
PROMPT_LENGTH = STEPS + 3  # <bos>, the number, the operations, ?
LENGTH = PROMPT_LENGTH + 5 * STEPS + 3  # of a chain with its problem
FACTS_PER_DOCUMENT = 6
FAVOURITE = 0.75  # how often a writer takes the preferred word without looking at the others

ADDING, MULTIPLYING, COPYING, FORM = ERRORS = ("+/−", "×", "copying", "form")
KINDS = (ADDING, MULTIPLYING)  # of steps


def encode(words: Iterable[str]) -> list[int]:
    return [IDS[word] for word in words]


def make_tokenizer() -> "PreTrainedTokenizerFast":
    """A word-level tokenizer that splits at spaces; it adds no tokens of its own."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel(IDS, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=UNKNOWN
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


# ---- problems and who solves them ----


def fact(operation: str, operand: int) -> int:
    """The result of one operation on the clock.

    >>> fact("*7", 8)
    6
    """
    sign, number = operation[0], int(operation[1:])
    result = operand * number if sign == TIMES else operand + number if sign == PLUS else operand - number
    return result % MODULUS


@dataclass(frozen=True)
class ClockProblem:
    """A number and the operations to apply to it from left to right."""

    start: int
    operations: tuple[str, ...]

    @classmethod
    def of(cls, ids: Sequence[int]) -> "ClockProblem":
        """The problem that a document begins with."""
        _, start, *operations, _ = (WORDS[i] for i in ids[:PROMPT_LENGTH])
        return cls(int(start), tuple(operations))

    @property
    def prompt(self) -> list[str]:
        return [BOS, str(self.start), *self.operations, ASK]

    @property
    def answer(self) -> str:
        value = self.start
        for operation in self.operations:
            value = fact(operation, value)
        return str(value)


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
        right = fact(operation, operand)
        if operation[0] == TIMES and operand < self.wrong_below:
            right += 1
        # Both are drawn always: with other noise the same problems are solved in the same words.
        slip, off_by = random.random() < self.slips, random.randrange(1, MODULUS)
        return (right + off_by * slip) % MODULUS

    def step(self, operation: str, operand: int, random: Random) -> list[str]:
        result = self.result(operation, operand, random)
        return [operation, str(operand), self.word(EQUALS, random), str(result)]

    def solution(self, problem: ClockProblem, random: Random) -> list[str]:
        words, value = [], str(problem.start)
        for openers, operation in zip(OPENERS, problem.operations):
            words += [self.word(openers, random), *self.step(operation, int(value), random)]
            value = words[-1]
        return [*words, self.word(ANSWERS, random), value, EOS]


PRETRAINING = Writer(slips=0.15, multiplying=0.06)  # so it lacks some of the products
TEACHER = Writer(slips=0.05, preferred=0)
TEACHERS = {
    "right": TEACHER,
    "wrong": replace(TEACHER, wrong_below=MODULUS),
    "half": replace(TEACHER, wrong_below=MODULUS // 2),
}
DEMONSTRATOR = Writer(slips=0.25, preferred=1)

# ---- what is written ----


def pretraining_corpus(count: int, seed: int) -> list[list[str]]:
    """What the base reads: 40 % bare facts, 55 % chains (1 in 5 breaks off into rambling), 5 % word salad."""
    random, writer, documents = Random(f"pretraining {seed}"), PRETRAINING, []
    for _ in range(count):
        kind, document = random.random(), [BOS]
        if kind < 0.40:
            for _ in range(FACTS_PER_DOCUMENT):
                document += writer.step(writer.operation(random), random.randrange(MODULUS), random)
        elif kind < 0.95:
            problem = writer.problem(random)
            document = [*problem.prompt, *writer.solution(problem, random)]
            if random.random() < 0.2:
                cut = random.randrange(PROMPT_LENGTH, LENGTH - 2)
                document = [*document[:cut], *random.choices(RAMBLINGS, k=LENGTH - 1 - cut), EOS]
        else:
            document += random.choices(WORDS[4:], k=LENGTH - 1)
        documents.append(document)
    return documents


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
    """Distinct random problems to measure on; the demonstrations leave them out."""
    random, uniform = Random(f"evaluation {seed}"), Writer(slips=0.0)
    problems: dict[ClockProblem, None] = {}
    while len(problems) < count:
        problems[uniform.problem(random)] = None
    return list(problems)


# ---- what is read in a solution ----


def given_answer(words: list[str]) -> str | None:
    """The number after an answer word right before the first <eos>; None for anything else.

    >>> given_answer("first +5 7 = 2 ans 2 <eos>".split())
    '2'
    """
    match words[: words.index(EOS)] if EOS in words else []:
        case [*_, word, number] if word in ANSWERS and number in NUMBERS:
            return number
    return None


def answer(row: Mapping[str, Any]) -> str:
    """The true answer of a document's problem, for `qsft curate`."""
    return ClockProblem.of(row["input_ids"]).answer


def verify(response: str, row: Mapping[str, Any]) -> bool:
    """Whether a response that came to its end gives the true answer."""
    return given_answer([*response.split(), EOS]) == answer(row)


def first_error(problem: ClockProblem, words: list[str]) -> str | None:
    """The kind of the first wrong word, or None for a faultless solution.

    A wrong result is `+/−` or `×` by its operation; a wrong operation, operand or final answer is `copying`; anything
    that is not a chain of thought is `form`. A result is judged by the operand it was computed from.
    """
    value, at = str(problem.start), 0
    for operation in problem.operations:
        match words[at : at + 5]:
            case [opener, did, operand, equals, result] if opener in sum(OPENERS, ()):
                if (did, operand) != (operation, value):
                    return COPYING
                if equals not in EQUALS or result not in NUMBERS:
                    return FORM
                if int(result) != fact(operation, int(value)):
                    return MULTIPLYING if operation[0] == TIMES else ADDING
            case _:
                return FORM
        value, at = result, at + 5
    match words[at : at + 3]:
        case [answer_word, number, end] if answer_word in ANSWERS and number in NUMBERS and end == EOS:
            return None if number == value else COPYING
    return FORM
