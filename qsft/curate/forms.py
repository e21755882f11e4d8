"""The forms a data set may have: how a response is taken out of a row, and how another one is put in.

What comes out has the form of what went in, so it trains as that would have.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from qsft.data.prompts import document, encode, find_preset, response_ids
from qsft.data.sources import Row
from qsft.targets.view import IGNORED

Tokenizer = PreTrainedTokenizerBase
Turns = Sequence[Mapping[str, str]]
Pair = tuple[str, str | None]  # question, response (None: the row has a problem only)

QUESTIONS = ("question", "problem", "instruction")
RESPONSES = ("response", "solution", "completion", "output")


class Opened(NamedTuple):
    """A row taken apart.

    ask  the token ids up to the response, with another question in the place of the row's own
    put  the row with another response, or with its own (None)
    """

    question: str
    response: str | None
    ask: Callable[[str], list[int]]
    put: Callable[[str | None], dict[str, Any]]


class Form(NamedTuple):
    """How rows of one kind are opened (None: there is nothing to ask), and what a manifest calls the kind."""

    name: str
    open: Callable[[Row], Opened | None]


def pairs(tokenizer: Tokenizer, pair: Callable[[Row], Pair | None], ask: str = "question") -> Form:
    """Question and response as text (the paper's data sets, or two text columns), asked by a named prompt.

    Written as two columns, which `load_training_data` reads with any tokenizer and prompt.
    """
    preset = find_preset(ask)

    def opened(row: Row) -> Opened | None:
        if (found := pair(row)) is None:
            return None
        question, response = found
        put = lambda text: {"question": question, "response": response if text is None else text}  # noqa: E731
        return Opened(question, response, lambda other: encode(tokenizer, preset.prompt(other)), put)

    return Form("pairs", opened)


def messages(tokenizer: Tokenizer, row: Row) -> Opened | None:
    """TRL's `messages`: the response is the last assistant turn, the question the last user turn before it."""
    turns, response = row["messages"], None
    if turns and turns[-1]["role"] == "assistant":
        turns, response = turns[:-1], turns[-1]["content"]
    if not turns:
        return None
    return Opened(
        _question(turns),
        response,
        lambda other: encode(tokenizer, _asked(turns, other)),
        lambda text: dict(row) if text is None else {**row, "messages": [*turns, _answer(text)]},
    )


def prompt_completion(tokenizer: Tokenizer, row: Row) -> Opened | None:
    """TRL's `prompt` and `completion`: text, or turns. Without a completion it is a problem only."""
    prompt, completion = row["prompt"], row.get("completion")
    if not isinstance(prompt, str):
        return Opened(
            _question(prompt),
            completion[-1]["content"] if completion else None,
            lambda other: encode(tokenizer, _asked(prompt, other)),
            lambda text: dict(row) if text is None else {**row, "completion": [_answer(text)]},
        )

    def put(text: str | None) -> dict[str, Any]:
        """The row with another completion, which keeps the white space that divides it from the prompt."""
        before = completion or " "
        gap = before[: len(before) - len(before.lstrip())]
        divided = text is None or text[:1].isspace() or prompt[-1:].isspace()
        return dict(row) if text is None else {**row, "completion": text if divided else gap + text}

    return Opened(prompt, completion, lambda other: list(tokenizer(other)["input_ids"]), put)  # as TRL reads it


def tokens(tokenizer: Tokenizer, row: Row) -> Opened | None:
    """input_ids and labels: the prompt is what stands before the first label; the response ends with the eos token.

    As text the prompt keeps its special tokens, so that it can be read back. Other columns are dropped: they may be
    aligned with other tokens.
    """
    ids, labels = list(row["input_ids"]), list(row["labels"])
    start = next((at for at, label in enumerate(labels) if label != IGNORED), len(ids))
    prompt, response = ids[:start], ids[start:]
    asked, own = str(tokenizer.decode(prompt)), {"input_ids": ids, "labels": labels}
    return Opened(
        asked,
        str(tokenizer.decode(response, skip_special_tokens=True)),
        lambda other: prompt if other == asked else tokenizer(other, add_special_tokens=False)["input_ids"],
        lambda text: own if text is None else document(prompt, response_ids(tokenizer, text)),
    ) if response else None  # fmt: skip


# By the name in a manifest: what opens a row, and the columns that tell the form.
FORMS: dict[str, tuple[Callable[[Tokenizer, Row], Opened | None], set[str]]] = {
    "tokens": (tokens, {"input_ids", "labels"}),
    "messages": (messages, {"messages"}),
    "prompt-completion": (prompt_completion, {"prompt"}),
}


def find_form(
    columns: Sequence[str], tokenizer: Tokenizer, *, question: str | None, response: str | None, ask: str
) -> Form:
    """The form of a data set with these columns; `question` and `response` name two text columns explicitly."""
    if question is None and response is None:
        for name, (opened, needed) in FORMS.items():
            if needed <= set(columns):
                return Form(name, partial(opened, tokenizer))
    question = question or next((name for name in QUESTIONS if name in columns), None)
    response = response or next((name for name in RESPONSES if name in columns), None)
    absent = [name for name in (question, response) if name is not None and name not in columns]
    if question is None or absent:
        problem = f"there is no {absent[0]!r}" if absent else "none of them is a question"
        raise ValueError(
            f"the data set's columns are {', '.join(columns)}: {problem}. Give messages, prompt and completion, "
            "input_ids and labels, or name two text columns with --question_column and --response_column."
        )
    return pairs(tokenizer, lambda row: (row[question], row[response] if response else None), ask)


def _question(turns: Turns) -> str:
    return turns[_last_user(turns)]["content"]


def _asked(turns: Turns, question: str) -> list[Mapping[str, str]]:
    """The turns with `question` as the last user turn."""
    last = _last_user(turns)
    return [{**turn, "content": question} if at == last else turn for at, turn in enumerate(turns)]


def _last_user(turns: Turns) -> int:
    return max((at for at, turn in enumerate(turns) if turn["role"] == "user"), default=len(turns) - 1)


def _answer(response: str) -> dict[str, str]:
    return {"role": "assistant", "content": response}
