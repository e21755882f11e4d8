"""What a grade is, where a response says its answer, and which option it chooses; answers.py compares mathematics.

`grade(prediction, gold)` grades one answer; `Judges` of judge.py grades many on several cores.
An option is read by the rule `boxed`, which may abstain (and is then wrong), or by the paper's, which never does and
keeps two readings, the first and the last match of the step that first finds any.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

Gold = str | int | float | list[str] | tuple[str, ...]
Box = tuple[int, int, str]  # start, end, content
Options = Mapping[str, str]

LONGEST_ANSWER = 2000  # characters: a longer "answer" is garbage, and unboxed ones stand at the end
RULES = ("boxed", "paper")  # how a multiple-choice response is read
_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|(?<!\\)[{}]")
_BETWEEN_BOXES = re.compile(r"[\s$,;.\\]*(?:and|or|quad|text\{\s*(?:and|or)\s*\})?[\s$,;\\]*", re.IGNORECASE)
AMBIGUOUS = ""  # a box that names several options
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|boldsymbol|underline)\s*\{([^{}]*)\}")
_LEAD = r"(?:(?i:the\s+)?(?i:correct\s+|final\s+)?(?i:answer|option|choice)(?:\s+(?i:is))?\s*:?\s*)?"
# "The answer is B", "**Answer:** (B)", "the choice is \textbf{B}". The letter is upper-case and no part of a sentence:
# not the article of "Answer: A clot", the pronoun of "My answer: I would", the beginning of "B-cell" or "B12".
_SAID = (
    r"(?i:answer|option|choice)[\s*]*(?:(?i:is)\b|:)[\s*:($\\{{]*(?:(?i:option|choice)[\s*(]+)?"
    r"(?:(?:text(?:bf)?|math(?:bf|rm))[\s*({{]+)?([{letters}])(?![a-zA-Z0-9]|['’-]\w)"
    r"(?!(?<=[AI])\s+(?!(?:and|as|because|but|due|for|given|is|since|which|with)\b)[a-z])"
)
_LONE = r"^[\s*($\[]*(?:(?i:option|choice)\s+)?([{letters}])[\s*)$\].:]*$"
_FINAL = "## Final Response"


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
    return response.rpartition("</think>")[2]


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
    opened, lines = _box_spans(text), text + "\n"
    found: list[Box] = []
    at = 0
    while at < len(opened):
        start, begin, end = opened[at]
        stop = lines.index("\n", begin) if end is None else end + 1
        inside = at
        while inside + 1 < len(opened) and opened[inside + 1][0] < stop:
            inside += 1
        _, begin, end = opened[inside]
        content = text[begin:end].strip() if end is not None else text[begin:stop].rstrip(" .$")
        if end is None:
            content += "}" * max(0, content.count("{") - content.count("}"))
        found.append((start, stop, content))
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


def grade_choice(prediction: str, gold: str, options: Options, rule: str) -> Grade:
    first, last = paper_matches(prediction, options)
    choices = {"boxed": by_box(prediction, options), "first": first, "last": last}
    return read_as(Grade(correct=False, choices=choices), "boxed" if rule == "boxed" else "last", gold)


def read_as(graded: Grade, reading: str, gold: object) -> Grade:
    chosen = (graded.choices or {}).get(reading)
    correct = chosen == str(gold).strip().upper()
    return replace(graded, correct=correct, lenient=correct, answer=chosen)


def better_reading(grades: Sequence[Grade], golds: Sequence[object]) -> tuple[str, list[Grade]]:
    """The paper's score of a data set: the reading (first or last match) with more right answers, and its grades."""
    read = {name: [read_as(one, name, gold) for one, gold in zip(grades, golds, strict=True)]
            for name in ("first", "last")}  # fmt: skip
    best = max(read, key=lambda name: sum(one.correct for one in read[name]))
    return best, read[best]


def by_box(response: str, options: Options) -> str | None:
    """The chosen letter: boxed, else "the answer is X", else alone on a line, else an option's text; or None."""
    response = after_thinking(response)
    for boxed in [last_boxed(response) or "", *(content for _, _, content in reversed(boxes(response)))]:
        chosen = _letter_of(boxed, options)
        if chosen is not None:
            return chosen or None
    letters = "".join(options)
    for pattern in (_SAID, _LONE):
        if said := re.findall(pattern.format(letters=letters), response, re.MULTILINE):
            return str(said[-1])
    if re.fullmatch(rf"\s*\(?[{letters.lower()}]\)?[.\s]*", response):
        return response.strip(" ().\n").upper()
    lines = [line for line in response.splitlines() if line.strip()]
    return _option_named(lines[-1], options) if lines else None


def paper_matches(response: str, options: Options) -> tuple[str, str]:
    """First and last match of the first step that finds any, as the evaluation that the paper follows decides."""
    text = response.rpartition(_FINAL)[2]
    others = "".join(letter for letter in options if letter != "A")
    letter = rf"(?<!\w)(?:A(?! )|[{others}])(?!\w)" if "A" in options else rf"(?<!\w)[{others}](?!\w)"
    for pattern in (r"(?<=answer is)\s+[A-N]", letter):
        if found := re.findall(pattern, text):
            return found[0].strip(), found[-1].strip()
    lowered = text.casefold()
    named = [words.casefold().strip() for words in options.values()]
    spots = [(lowered.find(words), -len(words), letter, lowered.rfind(words))
             for letter, words in zip(options, named, strict=True) if words and words in lowered]  # fmt: skip
    if spots:
        return min(spots)[2], max(spots, key=lambda spot: (spot[3], -spot[1]))[2]
    alike = {letter: SequenceMatcher(None, words, text).ratio() for letter, words in options.items()}
    closest = max(reversed(list(alike)), key=lambda letter: alike[letter])
    return closest, closest


def _letter_of(boxed: str, options: Options) -> str | None:
    """The option a box names: by its text or letter or both; AMBIGUOUS for several, None for none."""
    text = boxed
    while (unwrapped := _WRAPPER.sub(r"\1", text)) != text:
        text = unwrapped
    text = re.sub(r"\\[()\[\]!,;: ]|[${}*]|~", " ", text).strip(" .")
    exact = [letter for letter, words in options.items() if words.strip(" .").casefold() == text.casefold()]
    if len(exact) == 1:
        return exact[0]
    letters = "".join(options)
    if re.fullmatch(rf"\(?[{letters}]\)?(?:\s*(?:,|;|&|/|and|or)\s*\(?[{letters}]\)?)+", text):
        return AMBIGUOUS
    lone = re.fullmatch(rf"{_LEAD}\(?([{letters}{letters.lower()}])\)?", text)
    lead = lone or re.match(rf"{_LEAD}(?:\(([{letters}])\)|([{letters}])\s*[.:)])\s*", text)
    if lead:
        return next(filter(None, lead.groups())).upper()
    spelled = re.match(rf"{_LEAD}([{letters}])\s+(.+)", text)
    if spelled and _occurs(options[spelled[1]].strip(" ."), spelled[2]):
        return spelled[1]
    return _option_named(text, options)


def _option_named(text: str, options: Options) -> str | None:
    """The one option whose text occurs; of options inside one another ("type 1", "type 10") the longest."""
    found = {letter: words for letter, words in options.items() if words.strip() and _occurs(words.strip(), text)}
    longest = [
        letter
        for letter, words in found.items()
        if not any(words != other and _occurs(words.strip(), other) for other in found.values())
    ]
    return longest[0] if len(longest) == 1 else None


def _occurs(words: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE) is not None
