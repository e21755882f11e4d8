"""From rows to problems: what is asked, the demonstration, and the gold answer a response is verified against."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from qsft.data.curate.forms import Form, Row

BOXED = "boxed"  # in the place of a column: the gold answer is the last box of the demonstration
GOLDS = ("answer", "gold", "final_answer", "ground_truth", "answer_letter", "answer_idx")
_OPTION = re.compile(r"^\s*\(?([A-J])[.):]\s+(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Problem:
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
        """What problems with the same prompt share."""
        return self.id.partition("-")[0]

    @property
    def options(self) -> dict[str, str] | None:
        """The options A. B. C. … that the question lists, if the gold answer is one of their letters."""
        found = dict(_OPTION.findall(self.question))
        return found if len(found) > 1 and str(self.gold) in found else None

    def asked(self, question: str) -> tuple[int, ...]:
        """The prompt's ids with another question in the place of this one."""
        return tuple(self.form.prompt(self.row, question))

    def rewritten(self, response: str | None) -> dict[str, Any]:
        """The row with another response, or with its own."""
        return self.form.rewrite(self.row, response)


def read_problems(
    rows: Iterable[Row],
    form: Form,
    *,
    gold: str | None = None,
    boxed: Callable[[str], str | None] = lambda text: None,
) -> list[Problem]:
    """The problems of the rows that have one; a row without a gold answer has gold None.

    gold    a column (`a.b`: field b of the struct a), or `boxed`: what `boxed(response)` finds in the demonstration
    """
    problems: list[Problem] = []
    seen: Counter[str] = Counter()
    for row in rows:
        pair = form.read(row)
        if pair is None or not pair[0]:
            continue
        question, response = pair
        prompt = tuple(form.prompt(row, question))
        digest = prompt_digest(prompt)
        seen[digest] += 1
        name = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        problems.append(Problem(name, form, row, question, prompt, response, _gold(row, gold, response, boxed)))
    if not problems:
        raise ValueError("no row of the data set holds a problem, so there is nothing to curate.")
    return problems


def prompt_digest(prompt: Sequence[int]) -> str:
    """64 bits that stand for a prompt."""
    return blake2b(" ".join(map(str, prompt)).encode(), digest_size=8).hexdigest()


def find_gold(columns: Sequence[str], wanted: str | None) -> str:
    """The gold answer's column: the one that is wanted, else the first of the usual names."""
    if wanted == BOXED or wanted in columns:
        return str(wanted)
    found = next((name for name in GOLDS if name in columns), None) if wanted is None else None
    if found is None:
        missing = f"no column {wanted!r}" if wanted else f"none of {', '.join(GOLDS)}"
        raise ValueError(
            f"there is no gold answer to verify responses against: {missing} among the columns "
            f"{', '.join(columns)}. Name it with --gold COLUMN, take the demonstration's last \\boxed{{}} with "
            "--gold boxed, or bring a --verifier that needs none."
        )
    return found


def _gold(row: Row, column: str | None, response: str | None, boxed: Callable[[str], str | None]) -> Any:
    if column is None:
        return None
    if column == BOXED:
        return boxed(response) if response else None
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return None if isinstance(value, str) and not value.strip() else value
