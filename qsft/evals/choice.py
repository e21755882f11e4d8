"""Which option does a response choose? `boxed`, which may abstain (and is then wrong), and the paper's rule.

The paper's evaluation never abstains and keeps two readings, the first and the last match of the step that first finds
any; a data set's score is the larger of their accuracies.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from qsft.evals.grade import Grade, after_thinking, boxes, last_boxed

Options = Mapping[str, str]

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


def grade_choice(prediction: str, gold: str, options: Options, rule: str = "boxed") -> Grade:
    """The grade of a multiple-choice response under a rule, with every rule's reading; gold is a letter."""
    first, last = paper_matches(prediction, options)
    choices = {"boxed": by_box(prediction, options), "first": first, "last": last}
    return read_as(Grade(correct=False, choices=choices), "boxed" if rule == "boxed" else "last", gold)


def read_as(graded: Grade, reading: str, gold: object) -> Grade:
    """The grade by one of its readings: boxed, first or last."""
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
