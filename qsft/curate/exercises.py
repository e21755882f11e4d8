"""From rows to exercises: what is asked, the demonstration, and the gold answer a response is verified against."""

import importlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from qsft.curate.forms import Form
from qsft.data.sources import Row, field_of
from qsft.evals.answers import extract
from qsft.fingerprints import digest_json

BOXED = "boxed"  # in the place of a column: the gold answer is the last box of the demonstration
GOLDS = ("answer", "gold", "final_answer", "ground_truth", "answer_letter", "answer_idx")
_OPTION = re.compile(r"^\s*\(?([A-J])[.):]\s+(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Exercise:
    """One row, opened. `id`: its prompt's digest, numbered where it repeats, so that subsets keep their samples."""

    id: str
    form: str
    row: Row = field(repr=False)
    question: str
    response: str | None
    ask: Callable[[str], list[int]] = field(repr=False)
    put: Callable[[str | None], dict[str, Any]] = field(repr=False)
    prompt: tuple[int, ...] = field(repr=False)
    gold: Any = None

    @property
    def digest(self) -> str:
        """What exercises with the same prompt share."""
        return self.id.partition("-")[0]

    @property
    def options(self) -> dict[str, str] | None:
        """The options A. B. C. … that the question lists, if the gold answer is one of their letters."""
        found = dict(_OPTION.findall(self.question))
        return found if len(found) > 1 and str(self.gold) in found else None

    def kept(self, response: str | None, origin: str, **columns: Any) -> "Kept":
        """The row to write: with another response or with its own (None), where that is from, further columns."""
        return Kept(self, {**self.put(response), **columns, "curated": origin})

    def decide(self, verdict: "Future[Any] | None", text: str) -> bool:
        """The verdict on a response as true or false, once it is there; no verdict is false."""
        try:
            return verdict is not None and bool(verdict.result())
        except Exception as error:
            raise ValueError(
                f"the verifier raised {type(error).__name__}: {error} on the response {text[:200]!r} to "
                f"{self.question[:200]!r} (gold {self.gold!r}). What was verified before is kept: fix the verifier "
                "and rerun the command."
            ) from error


class Kept(NamedTuple):
    """One row of the result and the exercise it is of."""

    exercise: Exercise
    row: dict[str, Any]

    @property
    def origin(self) -> str:
        """Where its response is from: demonstration, sample, …"""
        return str(self.row["curated"])


def read_exercises(rows: Iterable[Row], form: Form, gold: Callable[[Row, str | None], Any]) -> list[Exercise]:
    """The exercises of the rows that hold one; `gold` finds a row's gold answer, or None, given its response too."""
    exercises: list[Exercise] = []
    seen: Counter[str] = Counter()
    for row in rows:
        opened = form.open(row)
        if opened is None or not opened.question:
            continue
        prompt = tuple(opened.ask(opened.question))
        digest = digest_json(prompt)
        seen[digest] += 1
        name = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        exercises.append(Exercise(name, form.name, row, *opened, prompt, gold(row, opened.response)))
    if not exercises:
        raise ValueError("no row of the data set holds a problem, so there is nothing to curate.")
    return exercises


def find_gold(columns: Sequence[str], wanted: str | None) -> Callable[[Row, str | None], Any]:
    """What finds a row's gold answer: `boxed`, module:function(row), a column (`a.b`: field b of the struct a), or None
    for the first of the usual names."""
    if wanted == BOXED:
        return lambda row, response: extract(response) if response and "\\boxed" in response else None
    if wanted is not None and ":" in wanted:
        function = load_function("--gold", wanted)
        return lambda row, response: function(dict(row))
    column = wanted if wanted in columns else None
    if wanted is None:
        column = next((name for name in GOLDS if name in columns), None)
    if column is None:
        missing = f"no column {wanted!r}" if wanted else f"none of {', '.join(GOLDS)}"
        raise ValueError(
            f"there is no gold answer to verify responses against: {missing} among the columns "
            f"{', '.join(columns)}. Name it with --gold COLUMN, take the demonstration's last \\boxed{{}} with "
            "--gold boxed, or bring a --verifier that needs none."
        )

    def find(row: Row, response: str | None) -> Any:
        value = field_of(row, column)
        return None if isinstance(value, str) and not value.strip() else value

    return find


def load_function(option: str, name: str) -> Callable[..., Any]:
    """The function that `module:function` names; the current directory is searched too."""
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise ValueError(f"{option} {name!r} is not module:function, such as checks:is_right for checks.py here.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{option} {name!r} cannot be loaded: {error}.") from error
    return found  # type: ignore[no-any-return]
