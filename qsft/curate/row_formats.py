"""Row formats: how a row of a data set becomes an exercise, and how a row with another response is written.

A curated row is written in the format in which it was read, so it trains as the original would have.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from qsft.curate.exercises import Exercise
from qsft.data.prompts import document, encode, find_preset, response_ids
from qsft.data.sources import PAIRS, Row
from qsft.targets.view import IGNORED

QUESTION_COLUMNS = ("question", "problem", "instruction")
TOKENS = "tokens"  # the format of tokenized rows
RESPONSE_COLUMNS = ("response", "solution", "completion", "output")

RowReader = Callable[[Row], Exercise | None]  # None: the row has no question
Turns = Sequence[Mapping[str, str]]


def find_row_reader(
    columns: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    question_column: str | None,
    response_column: str | None,
    preset: str,
) -> RowReader:
    """The function that reads rows with these columns.

    Args:
        question_column, response_column: two text columns; None is one of TRL's formats, else the usual names.
        preset: name of the prompt preset that renders the question of two text columns.

    Raises:
        ValueError: if there is no column with a question.
    """
    if question_column is None and response_column is None:
        for row_format in ROW_FORMATS:
            if row_format.columns <= set(columns):
                return partial(row_format.read, tokenizer)
    question = question_column or _first_of(QUESTION_COLUMNS, columns)
    response = response_column or _first_of(RESPONSE_COLUMNS, columns)
    missing = [name for name in (question, response) if name is not None and name not in columns]
    if question is None or missing:
        problem = f"there is no {missing[0]!r}" if missing else "none of them is a question"
        raise ValueError(
            f"the data set's columns are {', '.join(columns)}: {problem}. Give messages, prompt and completion, "
            "input_ids and labels, or name two text columns with --question_column and --response_column."
        )

    def read_columns(row: Row) -> tuple[str, str | None]:
        return row[question], row[response] if response is not None else None

    return partial(read_pair, tokenizer, read_columns, preset)


def _first_of(names: Sequence[str], columns: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def read_pair(
    tokenizer: PreTrainedTokenizerBase,
    read_columns: Callable[[Row], tuple[str, str | None] | None],
    preset: str,
    row: Row,
) -> Exercise | None:
    """Question and response as text, rendered by a prompt preset; written as the columns question and response."""
    columns = read_columns(row)
    if columns is None:
        return None
    question, response = columns
    prompt_preset = find_preset(preset)

    def encode_question(text: str) -> list[int]:
        return encode(tokenizer, prompt_preset.prompt(text))

    return Exercise(
        format=PAIRS.name,
        row=row,
        question=question,
        response=response,
        encode_question=encode_question,
        demonstration={"question": question, "response": response},
        encode_response=lambda text: {"response": text},
    )


def read_messages(tokenizer: PreTrainedTokenizerBase, row: Row) -> Exercise | None:
    """TRL's `messages`: the response is the last assistant turn, the question the last user turn before it."""
    turns = row["messages"]
    response = None
    if turns and turns[-1]["role"] == "assistant":
        response = turns[-1]["content"]
        turns = turns[:-1]
    if not turns:
        return None
    position = _question_position(turns)
    return Exercise(
        format="messages",
        row=row,
        question=turns[position]["content"],
        response=response,
        encode_question=partial(_encode_turns, tokenizer, turns, position),
        demonstration=row,
        encode_response=lambda text: {"messages": [*turns, _assistant_turn(text)]},
    )


def read_prompt_completion(tokenizer: PreTrainedTokenizerBase, row: Row) -> Exercise:
    """TRL's `prompt` and `completion`: text, or turns. Without a completion there is no demonstration."""
    if isinstance(row["prompt"], str):
        return _read_text_completion(tokenizer, row)
    turns = row["prompt"]
    position = _question_position(turns)
    completion = row.get("completion")
    return Exercise(
        format="prompt-completion",
        row=row,
        question=turns[position]["content"],
        response=completion[-1]["content"] if completion else None,
        encode_question=partial(_encode_turns, tokenizer, turns, position),
        demonstration=row,
        encode_response=lambda text: {"completion": [_assistant_turn(text)]},
    )


def _read_text_completion(tokenizer: PreTrainedTokenizerBase, row: Row) -> Exercise:
    prompt = row["prompt"]
    completion = row.get("completion")

    def encode_question(text: str) -> list[int]:
        return tokenizer(text)["input_ids"]  # as TRL tokenizes a prompt

    def encode_response(text: str) -> dict[str, Any]:
        """Another completion, which keeps the white space that separates it from the prompt."""
        original = completion or " "
        white_space = original[: len(original) - len(original.lstrip())]
        is_separated = text[:1].isspace() or prompt[-1:].isspace()
        return {"completion": text if is_separated else white_space + text}

    return Exercise(
        format="prompt-completion",
        row=row,
        question=prompt,
        response=completion,
        encode_question=encode_question,
        demonstration=row,
        encode_response=encode_response,
    )


def read_tokens(tokenizer: PreTrainedTokenizerBase, row: Row) -> Exercise | None:
    """input_ids and labels: the prompt is what stands before the first label; the response ends with the eos token.

    The prompt's text keeps its special tokens, so that it can be tokenized again. Other columns may be aligned with
    the tokens and are dropped.
    """
    input_ids = list(row["input_ids"])
    labels = list(row["labels"])
    start = next((position for position, label in enumerate(labels) if label != IGNORED), None)
    if start is None:
        return None
    prompt = input_ids[:start]
    question = str(tokenizer.decode(prompt))

    def encode_question(text: str) -> list[int]:
        return prompt if text == question else tokenizer(text, add_special_tokens=False)["input_ids"]

    def encode_response(text: str) -> dict[str, Any]:
        return document(prompt, response_ids(tokenizer, text))

    return Exercise(
        format=TOKENS,
        row=row,
        question=question,
        response=str(tokenizer.decode(input_ids[start:], skip_special_tokens=True)),
        encode_question=encode_question,
        demonstration={"input_ids": input_ids, "labels": labels},
        encode_response=encode_response,
    )


class RowFormat(NamedTuple):
    """The columns that identify a format, and the function that reads a row of it."""

    columns: set[str]
    read: Callable[[PreTrainedTokenizerBase, Row], Exercise | None]


ROW_FORMATS = (
    RowFormat({"input_ids", "labels"}, read_tokens),
    RowFormat({"messages"}, read_messages),
    RowFormat({"prompt"}, read_prompt_completion),
)


def _question_position(turns: Turns) -> int:
    """The position of the last user turn; without one, of the last turn."""
    positions = [position for position, turn in enumerate(turns) if turn["role"] == "user"]
    return positions[-1] if positions else len(turns) - 1


def _encode_turns(tokenizer: PreTrainedTokenizerBase, turns: Turns, position: int, question: str) -> list[int]:
    """The token ids of a conversation whose turn at `position` is replaced by a question."""
    question_turn = {**turns[position], "content": question}
    return encode(tokenizer, [*turns[:position], question_turn, *turns[position + 1 :]])


def _assistant_turn(response: str) -> dict[str, str]:
    return {"role": "assistant", "content": response}
