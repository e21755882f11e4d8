"""What a grade is, and where a response says its answer: the part that counts, and the boxes in it.

`grade(prediction, gold)` grades one answer; `Judges` of judge.py grades many on several cores.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

Gold = str | int | float | list[str] | tuple[str, ...]
Box = tuple[int, int, str]  # start, end, content

LONGEST_ANSWER = 2000  # characters: a longer "answer" is garbage, and unboxed ones stand at the end
RULES = ("boxed", "paper")  # how a multiple-choice response is read, see choice.py
_THOUGHT = "</think>"
_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|(?<!\\)[{}]")
_BETWEEN_BOXES = re.compile(r"[\s$,;.\\]*(?:and|or|quad|text\{\s*(?:and|or)\s*\})?[\s$,;\\]*", re.IGNORECASE)


@dataclass(frozen=True)
class Grade:
    """What became of one response; true when it is correct.

    answer     the extracted answer in canonical form (None: nothing could be extracted), the unit of majority votes
    timed_out  the grader took too long, so it counts as wrong
    failure    what the grader stumbled over: the answer counts as wrong, and the report says how often
    choices    of a multiple-choice response, the letter that each rule reads: boxed, and the paper's first and last
    """

    correct: bool
    lenient: bool = False
    answer: str | None = None
    timed_out: bool = False
    failure: str | None = None
    choices: dict[str, str | None] | None = None

    def __bool__(self) -> bool:
        return self.correct

    @property
    def ungraded(self) -> bool:
        """Whether the grader gave up, so that it is wrong for want of a verdict."""
        return self.timed_out or self.failure is not None


def grade(prediction: str, gold: Gold, *, options: Mapping[str, str] | None = None, rule: str | None = None) -> Grade:
    """The grade of a response against the gold answer.

    Without options, mathematics: the boxed (else last stated) answer by math-verify; a list of golds is a set.
    With options ({"A": "text", …}), multiple choice: gold is the letter, rule `boxed` (default) or `paper`, whose last
    match counts here; over a data set the better of first and last does.

    >>> bool(grade(r"so \\boxed{0.5}", r"\\frac{1}{2}"))
    True
    """
    from qsft.evals.judge import single_judge

    return single_judge().submit(prediction, gold, options=options, rule=rule).result()


def find_rule(name: str) -> str:
    """The rule of that name; `last-letter` is what version 0.1 called the paper's."""
    name = "paper" if name == "last-letter" else name
    if name not in RULES:
        raise ValueError(f"unknown multiple-choice rule {name!r}; choose one of {', '.join(RULES)}.")
    return name


def after_thinking(response: str) -> str:
    """What follows the thinking; all of a response that has no such block."""
    return response.rpartition(_THOUGHT)[2]


def last_boxed(response: str) -> str | None:
    """What the last box holds, None without one; boxes that only "and", "or" or a comma separates are one answer."""
    found = boxes(response)
    if not found:
        return None
    answers = [found[-1]]
    for box in reversed(found[:-1]):
        if not _BETWEEN_BOXES.fullmatch(response[box[1] : answers[0][0]]):
            break
        answers.insert(0, box)
    return ", ".join(dict.fromkeys(content for _, _, content in answers))


def boxes(text: str) -> list[Box]:
    """The outermost boxes; of nested ones the innermost says the answer, an unclosed one ends with its line."""
    opened = _box_spans(text)
    found: list[Box] = []
    at = 0
    while at < len(opened):
        start, begin, end = opened[at]
        stop = _end_of_line(text, begin) if end is None else end + 1
        inside = at
        while inside + 1 < len(opened) and opened[inside + 1][0] < stop:
            inside += 1
        _, begin, end = opened[inside]
        found.append((start, stop, _unclosed(text[begin:stop]) if end is None else text[begin:end].strip()))
        at = inside + 1
    return found


def _box_spans(text: str) -> list[tuple[int, int, int | None]]:
    """Start of each box, start of its content, end of its content (None: never closed)."""
    spans: list[tuple[int, int, int | None]] = []
    stack: list[int] = []  # which box each open brace belongs to, -1 for none
    for token in _TOKEN.finditer(text):
        if token[0] == "}":
            box = stack.pop() if stack else -1
            if box >= 0:
                spans[box] = (*spans[box][:2], token.start())
        elif token[0] == "{":
            stack.append(-1)
        else:
            stack.append(len(spans))
            spans.append((token.start(), token.end(), None))
    return spans


def _end_of_line(text: str, start: int) -> int:
    newline = text.find("\n", start)
    return len(text) if newline < 0 else newline


def _unclosed(content: str) -> str:
    content = content.rstrip(" .$")
    return content + "}" * max(0, content.count("{") - content.count("}"))
