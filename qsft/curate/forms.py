"""The forms a data set may have: how a response is taken out of a row, and how another one is put in.

What comes out has the form of what went in, so it trains as that would have.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from qsft.data.prompts import document, encode, find_preset, response_ids
from qsft.targets.view import IGNORED

Row = Mapping[str, Any]
Turns = Sequence[Mapping[str, str]]
Pair = tuple[str, str | None]  # question, response (None: the row has a problem only)

QUESTIONS = ("question", "problem", "instruction")
RESPONSES = ("response", "solution", "completion", "output")


class Form(ABC):
    """How rows of one kind are read and written; `name` is what a manifest calls it."""

    name: str

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    @abstractmethod
    def read(self, row: Row) -> Pair | None:
        """Question and response; None for a row that holds no demonstration."""

    @abstractmethod
    def prompt(self, row: Row, question: str) -> list[int]:
        """The token ids up to the response, with `question` in the place of the row's own."""

    @abstractmethod
    def rewrite(self, row: Row, response: str) -> dict[str, Any]:
        """The row with another response."""

    def keep(self, row: Row) -> dict[str, Any]:
        """The row with its own response."""
        return dict(row)


class Pairs(Form):
    """Question and response as text (the paper's data sets, or two text columns), asked by a named prompt."""

    name = "pairs"

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, pair: Callable[[Row], Pair | None], ask: str = "question"
    ) -> None:
        super().__init__(tokenizer)
        self.pair, self.preset = pair, find_preset(ask)

    def read(self, row: Row) -> Pair | None:
        return self.pair(row)

    def prompt(self, row: Row, question: str) -> list[int]:
        return encode(self.tokenizer, self.preset.prompt(question))

    def rewrite(self, row: Row, response: str) -> dict[str, Any]:
        """A row of two columns, which `load_training_data` reads with any tokenizer and prompt."""
        return {**self.keep(row), "response": response}

    def keep(self, row: Row) -> dict[str, Any]:
        question, response = self.read(row) or (None, None)
        return {"question": question, "response": response}


class Messages(Form):
    """TRL's `messages`: the response is the last assistant turn, the question the last user turn before it."""

    name = "messages"

    def read(self, row: Row) -> Pair | None:
        turns, response = _split(row["messages"])
        return (_question(turns), response) if turns else None

    def prompt(self, row: Row, question: str) -> list[int]:
        return encode(self.tokenizer, _asked(_split(row["messages"])[0], question))

    def rewrite(self, row: Row, response: str) -> dict[str, Any]:
        return {**row, "messages": [*_split(row["messages"])[0], {"role": "assistant", "content": response}]}


class PromptCompletion(Form):
    """TRL's `prompt` and `completion`: text, or turns. Without a completion it is a problem only."""

    name = "prompt-completion"

    def read(self, row: Row) -> Pair | None:
        prompt, completion = row["prompt"], row.get("completion")
        if isinstance(prompt, str):
            return prompt, completion
        return _question(prompt), completion[-1]["content"] if completion else None

    def prompt(self, row: Row, question: str) -> list[int]:
        if isinstance(row["prompt"], str):
            return list(self.tokenizer(question)["input_ids"])  # as TRL reads it
        return encode(self.tokenizer, _asked(row["prompt"], question))

    def rewrite(self, row: Row, response: str) -> dict[str, Any]:
        """The row with another completion; text keeps the white space that divides it from the prompt."""
        if not isinstance(row["prompt"], str):
            return {**row, "completion": [{"role": "assistant", "content": response}]}
        before = row.get("completion") or " "
        gap = before[: len(before) - len(before.lstrip())]
        divided = response[:1].isspace() or row["prompt"][-1:].isspace()
        return {**row, "completion": response if divided else gap + response}


class Tokens(Form):
    """input_ids and labels: the prompt is what stands before the first label; the response ends with the eos token."""

    name = "tokens"

    def read(self, row: Row) -> Pair | None:
        """Prompt and response as text; the prompt keeps its special tokens, so that it can be read back."""
        prompt, response = self._split(row)
        text = self.tokenizer.decode(response, skip_special_tokens=True)
        return (str(self.tokenizer.decode(prompt)), str(text)) if response else None

    def prompt(self, row: Row, question: str) -> list[int]:
        own = self._split(row)[0]
        return own if question == self.tokenizer.decode(own) else _ids(self.tokenizer, question)

    def rewrite(self, row: Row, response: str) -> dict[str, Any]:
        return document(self._split(row)[0], response_ids(self.tokenizer, response))

    def keep(self, row: Row) -> dict[str, Any]:
        """input_ids and labels alone, as of a rewritten row: other columns may be aligned with other tokens."""
        return {name: row[name] for name in ("input_ids", "labels")}

    def _split(self, row: Row) -> tuple[list[int], list[int]]:
        ids, labels = list(row["input_ids"]), row["labels"]
        start = next((at for at, label in enumerate(labels) if label != IGNORED), len(ids))
        return ids[:start], ids[start:]


FORMS: dict[type[Form], set[str]] = {
    Tokens: {"input_ids", "labels"},
    Messages: {"messages"},
    PromptCompletion: {"prompt"},
}


def find_form(
    columns: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, question: str | None, response: str | None, ask: str
) -> Form:
    """The form of a data set with these columns; `question` and `response` name two text columns explicitly."""
    if question is None and response is None:
        for form, needed in FORMS.items():
            if needed <= set(columns):
                return form(tokenizer)
    question = question or next((name for name in QUESTIONS if name in columns), None)
    response = response or next((name for name in RESPONSES if name in columns), None)
    absent = [name for name in (question, response) if name is not None and name not in columns]
    if question is None or absent:
        problem = f"there is no {absent[0]!r}" if absent else "none of them is a question"
        raise ValueError(
            f"the data set's columns are {', '.join(columns)}: {problem}. Give messages, prompt and completion, "
            "input_ids and labels, or name two text columns with --question_column and --response_column."
        )
    return Pairs(tokenizer, lambda row: (row[question], row[response] if response else None), ask)


def _split(turns: Turns) -> tuple[list[dict[str, str]], str | None]:
    """The turns up to the response, and the response if the last turn is the assistant's."""
    copied = [dict(turn) for turn in turns]
    if copied and copied[-1]["role"] == "assistant":
        return copied[:-1], copied[-1]["content"]
    return copied, None


def _question(turns: Turns) -> str:
    return next((turn["content"] for turn in reversed(turns) if turn["role"] == "user"), turns[-1]["content"])


def _asked(turns: Turns, question: str) -> list[dict[str, str]]:
    """The turns with `question` as the last user turn."""
    asked = [dict(turn) for turn in turns]
    last = max((at for at, turn in enumerate(asked) if turn["role"] == "user"), default=len(asked) - 1)
    asked[last]["content"] = question
    return asked


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
