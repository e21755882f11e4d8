"""Exercises: a row's question, its demonstration, and the gold answer that responses are verified against."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from qsft.curate.registry import DEMONSTRATION, ORIGIN
from qsft.curate.templates import fill_template
from qsft.data.sources import Row
from qsft.fingerprints import digest_json

# A line such as "A. text", "(A) text" or "A) text"; the quantifiers cannot overlap, so the search is linear.
_OPTION_LINE = re.compile(r"^[^\S\n]*\(?([A-J])[.):]\s+(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Exercise:
    """What a row contains. A row format sets all fields but the last three, which `read_exercises` adds.

    Args:
        format: name of the row's format.
        row: the row as it was read.
        question: the text of the question.
        response: the demonstration; None where the row has a question only.
        encode_question: encode_question(question) → the token ids up to the response. The question may be another one
            than the row's.
        demonstration: the columns to write for the row as it is.
        encode_response: encode_response(response) → the columns that replace those of `demonstration` to write another
            response.
        id: the digest of the prompt, numbered where the prompt repeats. A subset of the rows has the same ids.
        prompt: the token ids up to the response.
        gold: the gold answer; None where there is none.
    """

    format: str
    row: Row = field(repr=False)
    question: str
    response: str | None
    encode_question: Callable[[str], Sequence[int]] = field(repr=False)
    demonstration: Row = field(repr=False)
    encode_response: Callable[[str], dict[str, Any]] = field(repr=False)
    id: str = ""
    prompt: tuple[int, ...] = field(default=(), repr=False)
    gold: Any = None

    @property
    def prompt_digest(self) -> str:
        """The id without its number: equal for rows with the same prompt."""
        return self.id.partition("-")[0]

    @property
    def options(self) -> dict[str, str] | None:
        """The options A. B. C. … that the question lists, if the gold answer is one of their letters."""
        found = dict(_OPTION_LINE.findall(self.question))
        return found if len(found) > 1 and str(self.gold) in found else None

    def encode_template(self, template: str) -> tuple[int, ...]:
        """The prompt whose question is a template with {question}, {response} and {gold} filled in."""
        values = {"question": self.question, "response": self.response, "gold": self.gold}
        return tuple(self.encode_question(fill_template(template, values)))

    def with_demonstration(self, **columns: Any) -> "CuratedRow":
        """The row with its own response and further columns."""
        return CuratedRow(self, {**self.demonstration, **columns, ORIGIN: DEMONSTRATION})

    def with_response(self, response: str, origin: str, **columns: Any) -> "CuratedRow":
        """The row with another response, where that comes from, and further columns."""
        return CuratedRow(self, {**self.demonstration, **self.encode_response(response), **columns, ORIGIN: origin})


class CuratedRow(NamedTuple):
    """One row of the result, and its exercise."""

    exercise: Exercise
    row: dict[str, Any]

    @property
    def origin(self) -> str:
        return str(self.row[ORIGIN])


def read_exercises(
    rows: Iterable[Row],
    read_row: Callable[[Row], Exercise | None],
    find_gold: Callable[[Row, str | None], Any],
) -> list[Exercise]:
    """The exercises of the rows that have a question.

    Args:
        read_row: read_row(row) → its exercise, None without a question; see row_formats.py.
        find_gold: find_gold(row, response) → the gold answer; see gold_answers.py.

    Raises:
        ValueError: if no row has a question.
    """
    exercises: list[Exercise] = []
    occurrences: Counter[str] = Counter()
    for row in rows:
        exercise = read_row(row)
        if exercise is None or not exercise.question:
            continue
        prompt = tuple(exercise.encode_question(exercise.question))
        digest = digest_json(prompt)
        occurrences[digest] += 1
        identifier = digest if occurrences[digest] == 1 else f"{digest}-{occurrences[digest]}"
        gold = find_gold(row, exercise.response)
        exercises.append(replace(exercise, id=identifier, prompt=prompt, gold=gold))
    if not exercises:
        raise ValueError("no row of the data set has a question, so there is nothing to curate.")
    return exercises
