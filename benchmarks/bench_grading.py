"""Grading: answers per second of one process against math-verify alone, on a small mix written for it.

The mix is what benchmarks ask for, mostly integers and fractions, then surds, sets, intervals, matrices and words; of
each problem eight samples, about half of them right and several alike, as models answer. math-verify parses each gold
once. A pass before the first measured one warms up; caches are cleared before every pass.
"""

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from benchmarks.measure import print_table, write_json

# gold answer, then the samples' answers
MIX = (
    ("42", ("42", "42", "41", "42", "24", "42.0", "43", "42")),
    ("7", ("7", "7", "7", "5", r"x = 7", "7", "8", "7")),
    ("1024", ("1024", "1,024", "2^{10}", "512", "1024", "2048", "1000", "1024")),
    ("-3", ("-3", "3", "-3", "-3", "0", "-3", "3", "-3")),
    ("18", ("18", "18", r"18\text{ cm}", "36", "18", "9", "18", "18.0")),
    ("113", ("113", "115", "113", "97", "113", "113", "31", "131")),
    (r"\frac{1}{2}", ("0.5", r"\frac{1}{2}", r"\frac12", "1/2", r"\frac{1}{3}", "2", r"\dfrac{1}{2}", r"50\%")),
    (r"\frac{7}{15}", (r"\frac{7}{15}", r"\frac{14}{30}", r"\frac{8}{15}", "7/15", r"\frac{7}{16}", "0.47", "7", "15")),
    (r"-\frac{5}{4}", (r"-\frac{5}{4}", "-1.25", r"\frac{5}{4}", r"-\frac54", "-1.5", "1.25", "-5/4", r"-\frac{5}{4}")),
    ("4.5e33", (r"4.5 \times 10^{33}", "4.5e33", r"4.5 \times 10^{32}", "4.6e33", "4.5", "0", "1e33", "4.5e33")),
    ("2.88e-19", (r"2.88 \times 10^{-19}", "2.88e-19", "2.9e-19", "2.88e-18", "-2.88e-19", "0", "3e-19", "2.88e-19")),
    (r"\sqrt{2}", (r"\sqrt{2}", "√2", r"\frac{2}{\sqrt2}", "1.414214", r"\sqrt{3}", "2", r"\sqrt{2}", r"2\sqrt{2}")),
    (r"3\sqrt{5}", (r"3\sqrt{5}", r"\sqrt{45}", r"5\sqrt{3}", r"3\sqrt{5}", r"\sqrt{54}", "6.7", r"3\sqrt{5}", "15")),
    (r"2\pi", (r"2\pi", "6.283185", r"\pi", r"4\pi", r"2\pi", "2π", r"\frac{\pi}{2}", "6.28")),
    ("x^2+2x+1", ("x^2+2x+1", "(x+1)^2", "x^2+1", "(x+1)(x+1)", "x^2+2x", "2x+1", "x^2+2x+1", "(x-1)^2")),
    ("1,2", ("1,2", "2,1", r"\{1, 2\}", "1", "1 and 2", "1,2,3", "2", r"x=1\text{ or }x=2")),
    (r"(2,\infty)", (r"(2,\infty)", "x > 2", r"[2,\infty)", r"x \ge 2", "2", r"(-\infty,2)", r"(2,\infty)", "x>2")),
    ("(3,-1)", ("(3,-1)", "(3, -1)", "(-1,3)", "(3,1)", "(3,-1)", "3,-1", "(1,3)", "(3,-1)")),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
     (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", "10", "-2", "0",
      r"\begin{pmatrix}1&2\\3&5\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}", r"\text{singular}")),
    (r"\text{Evelyn}", ("Evelyn", r"\text{Evelyn}", "Carla", "Briana", "Evelyn", r"\text{Carla}", "Evelyn", "Debra")),
)  # fmt: skip
RESPONSE = (
    "We set up the equation, simplify $a^2 + b^2 = {i}$ and check the cases. " * 20
    + r"So the answer is $\boxed{{{answer}}}$."
)


def pairs() -> list[tuple[str, str]]:
    """Response and gold of every sample."""
    found = []
    for i, (gold, answers) in enumerate(MIX):
        found += [(RESPONSE.format(i=i, answer=answer), gold) for answer in answers]
    return found


def with_math_verify() -> list[bool]:
    from math_verify import parse, verify

    @lru_cache
    def parsed(gold: str) -> list[Any]:
        return list(parse(f"${gold}$", parsing_timeout=None))

    return [
        bool(verify(parsed(gold), parse(text, parsing_timeout=None), timeout_seconds=None)) for text, gold in pairs()
    ]


def with_qsft() -> list[bool]:
    """As `Judges` does it with one process, without the pipe: equal pairs of gold and boxed answer once."""
    from qsft.evals.grading.boxes import last_boxed
    from qsft.evals.grading.expressions import parse
    from qsft.evals.grading.math_answers import same_answer
    from qsft.evals.grading.notation import plain_text
    from qsft.evals.grading.worker import grade_in_time

    for cached in (same_answer, plain_text, parse):
        cached.cache_clear()
    grades: dict[tuple[str, str], bool] = {}
    found = []
    for text, gold in pairs():
        answer = last_boxed(text) or ""
        if (gold, answer) not in grades:
            grades[gold, answer] = grade_in_time({"answer": answer, "gold": gold}, 5.0)["correct"]
        found.append(grades[gold, answer])
    return found


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The median CPU time of a call."""
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output_file", default="benchmarks/results/grading.json")
    args = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # math-verify warns about every answer that it cannot parse
    expected = len(pairs())
    rows = {}
    for name, call in (("math-verify alone", with_math_verify), ("qsft", with_qsft)):
        rows[name] = {"answers per CPU second": expected / seconds(call, args.repeats), "right": sum(call())}
    print_table(f"{expected} answers to {len(MIX)} problems, one process", rows)
    write_json(args.output_file, {"answers": expected, "rates": rows})


if __name__ == "__main__":
    main()
