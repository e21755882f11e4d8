"""Mathematical expressions in answers, parsed and compared by math-verify.

math-verify and sympy are imported inside functions: `qsft.grade` and the pool do not need them, only their processes.
"""

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from qsft.evals.grading.exact_numbers import TINY, same_number

_E_NOTATION = re.compile(r"(?<![\w.])([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)[eE]([+-]?\d+)(?!\w)")


@lru_cache(maxsize=4096)
def parse(text: str) -> list[Any]:
    """What math-verify finds in a text: sympy expressions, and last the text that it read."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig
    from math_verify import parse as parse_answer

    configs = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    return list(parse_answer(text, configs, parsing_timeout=None))


def parse_expressions(answer: str) -> list[Any]:
    """The expressions of an answer; none if one is undefined: 6:00 is parsed as 6/0, and so is every other hour."""
    import sympy

    answer = _E_NOTATION.sub(r"\1 \\times 10^{\2}", answer)  # math-verify does not read 4.5e33 as a number
    expressions = [part for part in parse(r"\boxed{" + answer + "}") if not isinstance(part, str)]
    for expression in expressions:
        if isinstance(expression, sympy.Basic) and expression.has(sympy.zoo, sympy.nan):
            return []
    return expressions


def same_expressions(gold: str, answer: str) -> bool:
    """Whether math-verify takes the answer for the gold answer; tiny numbers, which it rounds to 0, by their value."""
    from math_verify import verify

    gold_expressions = parse_expressions(gold)
    answer_expressions = parse_expressions(answer)
    if not gold_expressions or not answer_expressions:
        return False
    gold_value = real_value(gold_expressions[0])
    answer_value = real_value(answer_expressions[0])
    if gold_value is not None and answer_value is not None and max(abs(gold_value), abs(answer_value)) < TINY:
        return same_number(gold_value, answer_value)
    # verify() is not symmetric: the gold comes first; x > 2 is the interval (2, ∞) on either side.
    return bool(verify(gold_expressions, answer_expressions, timeout_seconds=None, allow_set_relation_comp=True))


def real_values(answer: str) -> Iterator[float]:
    """The values of the expressions of an answer that are real numbers."""
    for expression in parse_expressions(answer):
        value = real_value(expression)
        if value is not None:
            yield value


def real_value(expression: Any) -> float | None:
    """The value of a real number; None for anything else.

    None also for what sympy calls real but cannot evaluate (log_1 5), and beyond the largest float: 10^400 and 10^500
    would be equal.
    """
    try:
        if not isinstance(expression, Fraction) and not (expression.is_number and expression.is_real):
            return None
        value = float(expression)
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def canonical_expression(answer: str) -> str | None:
    """One notation for equal formulas, sets, tuples and matrices; None if the answer is none of them."""
    import sympy

    for expression in parse_expressions(answer):
        if isinstance(expression, sympy.Expr) and expression.free_symbols:
            return str(sympy.expand(expression))
        if isinstance(expression, (sympy.Set, sympy.Tuple, sympy.MatrixBase)):
            return str(expression.evalf(12))
    return None
