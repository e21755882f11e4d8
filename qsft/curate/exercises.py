"""Exercises: a row's question, its demonstration, and the gold answer that responses are verified against.

A row is written in the format in which it was read, so it trains as the original would have.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from qsft.data.prompts import document, encode, find_preset, response_ids
from qsft.data.sources import Row, field_of
from qsft.evals.grading.math_answers import extract
from qsft.fingerprints import digest_json
from qsft.targets.view import IGNORED
from qsft.user_functions import import_function

Ask = Callable[[str], Sequence[int]]
Tokenizer = PreTrainedTokenizerBase

QUESTIONS = ("question", "problem", "instruction")
RESPONSES = ("response", "solution", "completion", "output")
GOLDS = ("answer", "gold", "final_answer", "ground_truth", "answer_letter", "answer_idx")
BOXED = "boxed"  # in the place of a column: the gold answer is the last box of the demonstration
_OPTION = re.compile(r"^\s*\(?([A-J])[.):]\s+(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Exercise:
    """What a row contains. The format sets all fields but the last three, which `read_exercises` adds.

    Attributes:
        form: name of the row's format.
        response: the demonstration; None where the row has a problem only.
        ask: ask(question) → the token ids up to the response, with another question instead of the row's own.
        own: the row as it is written.
        put: put(response) → the columns of `own` that contain another response.
        id: the prompt's digest, numbered where it repeats, so that subsets keep their samples.
        prompt: the token ids up to the response.
    """

    form: str
    row: Row = field(repr=False)
    question: str
    response: str | None
    ask: Ask = field(repr=False)
    own: Row = field(repr=False)
    put: Callable[[str], dict[str, Any]] = field(repr=False)
    id: str = ""
    prompt: tuple[int, ...] = field(default=(), repr=False)
    gold: Any = None

    @property
    def digest(self) -> str:
        return self.id.partition("-")[0]

    @property
    def options(self) -> dict[str, str] | None:
        """The options A. B. C. … that the question lists, if the gold answer is one of their letters."""
        found = dict(_OPTION.findall(self.question))
        return found if len(found) > 1 and str(self.gold) in found else None

    def kept(self, response: str | None, origin: str, **columns: Any) -> "Kept":
        """The row to write: with another response or with its own (None), where that is from, further columns."""
        changed = {} if response is None else self.put(response)
        return Kept(self, {**self.own, **changed, **columns, "curated": origin})

    def decide(self, verdict: "Future[Any]", text: str) -> bool:
        """The verdict on a response; ValueError if the verifier raised."""
        try:
            return bool(verdict.result())
        except Exception as error:
            raise ValueError(
                f"the verifier raised {type(error).__name__}: {error} on the response {text[:200]!r} to "
                f"{self.question[:200]!r} (gold {self.gold!r}). Fix it and rerun the command, which continues."
            ) from error


class Kept(NamedTuple):
    """One row of the result, and its exercise."""

    exercise: Exercise
    row: dict[str, Any]

    @property
    def origin(self) -> str:
        return str(self.row["curated"])


Form = Callable[[Row], Exercise | None]  # reads the rows of one format; None: there is no question
FindGold = Callable[[Row, str | None], Any]  # the gold answer of a row, given its response too; None: there is none


def read_exercises(rows: Iterable[Row], form: Form, gold: FindGold) -> list[Exercise]:
    """The exercises of the rows that have a question."""
    exercises: list[Exercise] = []
    seen: Counter[str] = Counter()
    for row in rows:
        exercise = form(row)
        if exercise is None or not exercise.question:
            continue
        prompt = tuple(exercise.ask(exercise.question))
        digest = digest_json(prompt)
        seen[digest] += 1
        name = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        exercises.append(replace(exercise, id=name, prompt=prompt, gold=gold(row, exercise.response)))
    if not exercises:
        raise ValueError("no row of the data set has a question, so there is nothing to curate.")
    return exercises


# ---- formats ----


def pairs(
    tokenizer: Tokenizer, pair: Callable[[Row], tuple[str, str | None] | None], prompt: str, row: Row
) -> Exercise | None:
    """(question, response) as text, rendered by a named prompt; written as two text columns."""
    found = pair(row)
    if found is None:
        return None
    question, response = found
    preset = find_preset(prompt)
    return Exercise(
        form="pairs",
        row=row,
        question=question,
        response=response,
        ask=lambda other: encode(tokenizer, preset.prompt(other)),
        own={"question": question, "response": response},
        put=lambda text: {"response": text},
    )


def messages(tokenizer: Tokenizer, row: Row) -> Exercise | None:
    """TRL's `messages`: the response is the last assistant turn, the question the last user turn before it."""
    turns = row["messages"]
    response = None
    if turns and turns[-1]["role"] == "assistant":
        response = turns[-1]["content"]
        turns = turns[:-1]
    if not turns:
        return None
    question, ask = _last_question(tokenizer, turns)
    return Exercise("messages", row, question, response, ask, row, lambda text: {"messages": [*turns, _answer(text)]})


def prompt_completion(tokenizer: Tokenizer, row: Row) -> Exercise:
    """TRL's `prompt` and `completion`: text, or turns. Without a completion it is a problem only."""
    name = "prompt-completion"
    prompt = row["prompt"]
    completion = row.get("completion")
    if not isinstance(prompt, str):
        question, ask = _last_question(tokenizer, prompt)
        response = completion[-1]["content"] if completion else None
        return Exercise(name, row, question, response, ask, row, lambda text: {"completion": [_answer(text)]})

    def put(text: str) -> dict[str, Any]:
        """Another completion, which keeps the white space that separates it from the prompt."""
        original = completion or " "
        white_space = original[: len(original) - len(original.lstrip())]
        is_separated = text[:1].isspace() or prompt[-1:].isspace()
        return {"completion": text if is_separated else white_space + text}

    # The prompt is tokenized as TRL tokenizes it.
    return Exercise(name, row, prompt, completion, lambda text: tokenizer(text)["input_ids"], row, put)


def tokens(tokenizer: Tokenizer, row: Row) -> Exercise | None:
    """input_ids and labels: the prompt is what stands before the first label; the response ends with the eos token.

    The prompt's text keeps its special tokens, so that it can be tokenized again. Other columns may be aligned with
    the tokens and are dropped.
    """
    own = {name: list(row[name]) for name in ("input_ids", "labels")}
    start = next((at for at, label in enumerate(own["labels"]) if label != IGNORED), None)
    if start is None:
        return None
    prompt = own["input_ids"][:start]
    own_question = str(tokenizer.decode(prompt))
    own_response = str(tokenizer.decode(own["input_ids"][start:], skip_special_tokens=True))

    def ask(question: str) -> list[int]:
        return prompt if question == own_question else tokenizer(question, add_special_tokens=False)["input_ids"]

    def put(text: str) -> dict[str, Any]:
        return document(prompt, response_ids(tokenizer, text))

    return Exercise("tokens", row, own_question, own_response, ask, own, put)


# The function that reads a format, and the columns that identify it.
FORMS: dict[Callable[[Tokenizer, Row], Exercise | None], set[str]] = {
    tokens: {"input_ids", "labels"},
    messages: {"messages"},
    prompt_completion: {"prompt"},
}


def find_form(
    columns: Sequence[str], tokenizer: Tokenizer, *, question: str | None, response: str | None, prompt: str
) -> Form:
    """The format of a data set with these columns; `question` and `response` name two text columns explicitly."""
    if question is None and response is None:
        for form, needed in FORMS.items():
            if needed <= set(columns):
                return partial(form, tokenizer)
    question = question or next((name for name in QUESTIONS if name in columns), None)
    response = response or next((name for name in RESPONSES if name in columns), None)
    absent = [name for name in (question, response) if name is not None and name not in columns]
    if question is None or absent:
        problem = f"there is no {absent[0]!r}" if absent else "none of them is a question"
        raise ValueError(
            f"the data set's columns are {', '.join(columns)}: {problem}. Give messages, prompt and completion, "
            "input_ids and labels, or name two text columns with --question_column and --response_column."
        )
    return partial(pairs, tokenizer, lambda row: (row[question], row[response] if response else None), prompt)


def _last_question(tokenizer: Tokenizer, turns: Sequence[Mapping[str, str]]) -> tuple[str, Ask]:
    last = max((at for at, turn in enumerate(turns) if turn["role"] == "user"), default=len(turns) - 1)

    def ask(question: str) -> list[int]:
        return encode(tokenizer, [*turns[:last], {**turns[last], "content": question}, *turns[last + 1 :]])

    return turns[last]["content"], ask


def _answer(response: str) -> dict[str, str]:
    return {"role": "assistant", "content": response}


# ---- gold answers ----


def no_gold(row: Row, response: str | None) -> None:
    """For methods that need no gold answer."""


def find_gold(columns: Sequence[str], gold: str | None) -> FindGold:
    """The function that finds a row's gold answer.

    Args:
        gold: boxed, module:function(row), a column (a.b is field b of a struct), or None for the usual columns.
    """
    if gold == BOXED:
        return lambda row, response: extract(response) if response and "\\boxed" in response else None
    if gold is not None and ":" in gold:
        function = import_function(gold, "--gold")
        return lambda row, response: function(dict(row))
    names = [gold] if gold else GOLDS
    column = next((name for name in names if name in columns), None)
    if column is None:
        missing = f"no column {gold!r}" if gold else f"none of {', '.join(GOLDS)}"
        raise ValueError(
            f"there is no gold answer to verify responses against: {missing} among the columns {', '.join(columns)}. "
            "Give --gold COLUMN, --gold boxed (the demonstration's last box), or a --verifier that needs none."
        )

    def find(row: Row, response: str | None) -> Any:
        value = field_of(row, column)
        return None if isinstance(value, str) and not value.strip() else value

    return find
