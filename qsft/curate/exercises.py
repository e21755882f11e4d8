"""From rows to exercises: what is asked, the demonstration, and the gold answer a response is verified against."""

import importlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qsft.curate.forms import Form, Row
from qsft.fingerprints import digest_json

BOXED = "boxed"  # in the place of a column: the gold answer is the last box of the demonstration
GOLDS = ("answer", "gold", "final_answer", "ground_truth", "answer_letter", "answer_idx")
_OPTION = re.compile(r"^\s*\(?([A-J])[.):]\s+(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Exercise:
    """One row. `id` is the digest of its prompt, numbered where it repeats, so that subsets keep their samples."""

    id: str
    form: Form = field(repr=False)
    row: Row = field(repr=False)
    question: str
    prompt: tuple[int, ...] = field(repr=False)
    response: str | None
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

    def asked(self, template: str) -> tuple[int, ...]:
        """The prompt's ids with another question in the place of this one: a template with {question}, {gold}, …"""
        return tuple(self.form.prompt(self.row, fill(template, vars(self))))

    def rewritten(self, response: str | None) -> dict[str, Any]:
        """The row with another response, or with its own."""
        return self.form.keep(self.row) if response is None else self.form.rewrite(self.row, response)


def read_exercises(rows: Iterable[Row], form: Form, gold: "Callable[[Row, str | None], Any]") -> list[Exercise]:
    """The exercises of the rows that hold one; `gold` finds a row's gold answer, or None, given its response too."""
    exercises: list[Exercise] = []
    seen: Counter[str] = Counter()
    for row in rows:
        pair = form.read(row)
        if pair is None or not pair[0]:
            continue
        prompt = tuple(form.prompt(row, pair[0]))
        digest = digest_json(prompt)
        seen[digest] += 1
        name = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        exercises.append(Exercise(name, form, row, pair[0], prompt, pair[1], gold(row, pair[1])))
    if not exercises:
        raise ValueError("no row of the data set holds a problem, so there is nothing to curate.")
    return exercises


def find_gold(columns: Sequence[str], wanted: str | None) -> Callable[[Row, str | None], Any]:
    """What finds a row's gold answer: `boxed`, module:function(row), a column (`a.b`: field b of the struct a), or None
    for the first of the usual names."""
    if wanted == BOXED:
        return lambda row, response: _last_box(response or "")
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
    return lambda row, response: _value(row, column.split("."))


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


def fill(template: str, values: Mapping[str, object]) -> str:
    r"""The template with its {places} filled, in one pass; braces of LaTeX are left alone.

    >>> fill(r"{question} \boxed{}", {"question": "{gold}?", "gold": 4})
    '{gold}? \\boxed{}'
    """
    return re.sub(r"\{(\w+)\}", lambda place: str(values.get(place[1], place[0])), template)


def require_places(name: str, template: str, places: Iterable[str]) -> None:
    """Refuse a template that lacks a place."""
    absent = [place for place in places if f"{{{place}}}" not in template]
    if absent:
        raise ValueError(
            f"--{name} {template!r} has no {{{absent[0]}}}, so the model would not be told the {absent[0]}."
        )


def _last_box(response: str) -> str | None:
    from qsft.evals.answers import extract

    return extract(response) if "\\boxed" in response else None


def _value(row: Row, path: Sequence[str]) -> Any:
    value: Any = row
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return None if isinstance(value, str) and not value.strip() else value
