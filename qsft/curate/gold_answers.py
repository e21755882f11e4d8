"""Gold answers: where the answer that responses are verified against stands in a row."""

from collections.abc import Callable, Sequence
from typing import Any

from qsft.data.sources import Row, field_of
from qsft.evals.grading.math_answers import extract
from qsft.user_functions import import_function

GOLD_COLUMNS = ("answer", "gold", "final_answer", "ground_truth", "answer_letter", "answer_idx")
BOXED = "boxed"  # instead of a column: the last box of the demonstration

GoldFinder = Callable[[Row, str | None], Any]  # (row, its response) → the gold answer, or None


def no_gold(row: Row, response: str | None) -> None:
    """For methods that need no gold answer."""


def make_gold_finder(columns: Sequence[str], gold: str | None) -> GoldFinder:
    """The function that finds a row's gold answer.

    Args:
        columns: the columns of the data set.
        gold: boxed, module:function(row), a column (a.b is field b of a struct), or None for the usual columns.

    Raises:
        ValueError: if there is no such column or function.
    """
    if gold == BOXED:
        return _boxed_gold
    if gold is not None and ":" in gold:
        function = import_function(gold, "--gold")
        return lambda row, response: function(dict(row))
    candidates = GOLD_COLUMNS if gold is None else (gold,)
    column = next((name for name in candidates if name in columns), None)
    if column is None:
        missing = f"none of {', '.join(GOLD_COLUMNS)}" if gold is None else f"no column {gold!r}"
        raise ValueError(
            f"there is no gold answer to verify responses against: {missing} among the columns {', '.join(columns)}. "
            "Give --gold COLUMN, --gold boxed (the demonstration's last box), or a --verifier that needs none."
        )

    def column_gold(row: Row, response: str | None) -> Any:
        value = field_of(row, column)
        is_blank = isinstance(value, str) and not value.strip()
        return None if is_blank else value

    return column_gold


def _boxed_gold(row: Row, response: str | None) -> str | None:
    return extract(response) if response and "\\boxed" in response else None
