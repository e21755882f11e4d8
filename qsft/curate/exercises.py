"""From rows to exercises: what is asked, the demonstration, the gold answer a response is verified against.

What is written has the form of what was read, so it trains as that would have.
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
    """One row, opened; its form knows all but the last three, which `read_exercises` adds.

    response  None where the row has a problem only
    ask       the token ids up to the response, with another question in the place of the row's own
    own       the row as it is written
    put       the columns of `own` that hold another response
    id        its prompt's digest, numbered where it repeats, so that subsets keep their samples
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
        try:
            return bool(verdict.result())
        except Exception as error:
            raise ValueError(
                f"the verifier raised {type(error).__name__}: {error} on the response {text[:200]!r} to "
                f"{self.question[:200]!r} (gold {self.gold!r}). Fix it and rerun the command, which continues."
            ) from error


class Kept(NamedTuple):
    """One row of the result and the exercise it is of."""

    exercise: Exercise
    row: dict[str, Any]

    @property
    def origin(self) -> str:
        return str(self.row["curated"])


Form = Callable[[Row], Exercise | None]  # opens the rows of one kind; None: there is nothing to ask


def read_exercises(rows: Iterable[Row], form: Form, gold: Callable[[Row, str | None], Any]) -> list[Exercise]:
    """The exercises of the rows that hold one; `gold` finds a row's gold answer, or None, given its response too."""
    exercises: list[Exercise] = []
    seen: Counter[str] = Counter()
    for row in rows:
        opened = form(row)
        if opened is None or not opened.question:
            continue
        prompt = tuple(opened.ask(opened.question))
        digest = digest_json(prompt)
        seen[digest] += 1
        name = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        exercises.append(replace(opened, id=name, prompt=prompt, gold=gold(row, opened.response)))
    if not exercises:
        raise ValueError("no row of the data set holds a problem, so there is nothing to curate.")
    return exercises


# ---- forms ----


def pairs(
    tokenizer: Tokenizer, pair: Callable[[Row], tuple[str, str | None] | None], prompt: str, row: Row
) -> Exercise | None:
    """(question, response) as text, asked by a named prompt; written as two columns, which any tokenizer can read."""
    if (found := pair(row)) is None:
        return None
    preset, own = find_preset(prompt), dict(zip(("question", "response"), found, strict=True))
    ask = lambda question: encode(tokenizer, preset.prompt(question))  # noqa: E731
    return Exercise("pairs", row, *found, ask, own, lambda text: {"response": text})


def messages(tokenizer: Tokenizer, row: Row) -> Exercise | None:
    """TRL's `messages`: the response is the last assistant turn, the question the last user turn before it."""
    turns, response = row["messages"], None
    if turns and turns[-1]["role"] == "assistant":
        turns, response = turns[:-1], turns[-1]["content"]
    if not turns:
        return None
    question, ask = _last_question(tokenizer, turns)
    return Exercise("messages", row, question, response, ask, row, lambda text: {"messages": [*turns, _answer(text)]})


def prompt_completion(tokenizer: Tokenizer, row: Row) -> Exercise:
    """TRL's `prompt` and `completion`: text, or turns. Without a completion it is a problem only."""
    name, prompt, completion = "prompt-completion", row["prompt"], row.get("completion")
    if not isinstance(prompt, str):
        question, ask = _last_question(tokenizer, prompt)
        response = completion[-1]["content"] if completion else None
        return Exercise(name, row, question, response, ask, row, lambda text: {"completion": [_answer(text)]})

    def put(text: str) -> dict[str, Any]:
        """Another completion, which keeps the white space that divides it from the prompt."""
        before = completion or " "
        gap = before[: len(before) - len(before.lstrip())]
        divided = text[:1].isspace() or prompt[-1:].isspace()
        return {"completion": text if divided else gap + text}

    return Exercise(name, row, prompt, completion, lambda text: tokenizer(text)["input_ids"], row, put)  # as TRL reads


def tokens(tokenizer: Tokenizer, row: Row) -> Exercise | None:
    """input_ids and labels: the prompt is what stands before the first label; the response ends with the eos token.

    As text the prompt keeps its special tokens, to be read back. Other columns, perhaps aligned with it, are dropped.
    """
    own = {name: list(row[name]) for name in ("input_ids", "labels")}
    start = next((at for at, label in enumerate(own["labels"]) if label != IGNORED), None)
    if start is None:
        return None
    prompt, response = own["input_ids"][:start], own["input_ids"][start:]
    asked, answered = str(tokenizer.decode(prompt)), str(tokenizer.decode(response, skip_special_tokens=True))

    def ask(question: str) -> list[int]:
        return prompt if question == asked else tokenizer(question, add_special_tokens=False)["input_ids"]

    put = lambda text: document(prompt, response_ids(tokenizer, text))  # noqa: E731
    return Exercise("tokens", row, asked, answered, ask, own, put)


# What opens a row, and the columns that tell the form.
FORMS: dict[Callable[[Tokenizer, Row], Exercise | None], set[str]] = {
    tokens: {"input_ids", "labels"},
    messages: {"messages"},
    prompt_completion: {"prompt"},
}


def find_form(
    columns: Sequence[str], tokenizer: Tokenizer, *, question: str | None, response: str | None, prompt: str
) -> Form:
    """The form of a data set with these columns; `question` and `response` name two text columns explicitly."""
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


def find_gold(columns: Sequence[str], wanted: str | None) -> Callable[[Row, str | None], Any]:
    """What finds a row's gold answer: `boxed`, module:function(row), a column (a.b: a struct's field), None: usual."""
    if wanted == BOXED:
        return lambda row, response: extract(response) if response and "\\boxed" in response else None
    if wanted is not None and ":" in wanted:
        function = load_function("--gold", wanted)
        return lambda row, response: function(dict(row))
    column = next((name for name in ([wanted] if wanted else GOLDS) if name in columns), None)
    if column is None:
        missing = f"no column {wanted!r}" if wanted else f"none of {', '.join(GOLDS)}"
        raise ValueError(
            f"there is no gold answer to verify responses against: {missing} among the columns {', '.join(columns)}. "
            "Give --gold COLUMN, --gold boxed (the demonstration's last box), or a --verifier that needs none."
        )

    def find(row: Row, response: str | None) -> Any:
        value = field_of(row, column)
        return None if isinstance(value, str) and not value.strip() else value

    return find


def load_function(option: str, name: str) -> Callable[..., Any]:
    """Return the function that `module:function` names; the current directory is searched too."""
    return import_function(name, option)
