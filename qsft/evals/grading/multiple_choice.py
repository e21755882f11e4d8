"""Read the option that a response chooses, by one of three rules.

boxed: the box, else "the answer is B", else a letter alone on a line, else an option's text. It may find nothing.
li:    the rule of the evaluation that the paper's medical numbers come from. It always finds a letter: the last match
       of the first search that matches anything (see `li_matches`).
m1:    the scorer of m1: like `li`, but over a data set the first or the last match counts, whichever scores higher.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import lru_cache

from qsft.evals.grading.boxes import after_thinking, boxes, last_boxed
from qsft.evals.grading.grade import Grade
from qsft.evals.grading.latex import TEXT_WRAPPERS, unwrap
from qsft.validation import check_choice

Options = Mapping[str, str]  # letter → text

# The readings that each rule scores: `Grade.choices` has the letter by each of them.
RULES: dict[str, tuple[str, ...]] = {"boxed": ("boxed",), "li": ("last",), "m1": ("first", "last")}
READINGS = {
    "boxed": "the box",
    "first": "the first match of the rule of m1, which scores higher here than the last",
    "last": "the last match of the rule of the paper",
}

LONGEST_BOX = 2000  # characters; a longer one is not an option
FINAL_RESPONSE = "## Final Response\n\n"
CJK = "\u4e00-\u9fff"
AMBIGUOUS = ""  # a box that names several options
CHOICE_WRAPPERS = (*TEXT_WRAPPERS, "boldsymbol", "underline")

_LEAD = r"(?:(?i:the\s+)?(?i:correct\s+|final\s+)?(?i:answer|option|choice)(?:\s+(?i:is))?\s*:?\s*)?"
# "The answer is B", "**Answer:** (B)", "the choice is \textbf{B}". The letter is upper-case and not part of a word or a
# sentence: not the article of "Answer: A clot", the pronoun of "My answer: I would", the start of "B-cell" or "B12".
_STATED = (
    r"(?i:answer|option|choice)[\s*]*+(?:(?i:is)\b|:)[\s*:($\\{{]*+(?:(?i:option|choice)[\s*(]++)?"
    r"(?:(?:text(?:bf)?|math(?:bf|rm))[\s*({{]++)?([{letters}])(?![a-zA-Z0-9]|['’-]\w)"
    r"(?!(?<=[AI])\s+(?!(?:and|as|because|but|due|for|given|is|since|which|with)\b)[a-z])"
)
_ALONE = r"[\s*($\[]*+(?:(?i:option|choice)\s++)?([{letters}])[\s*)$\].:]*+"


def check_rule(name: str) -> str:
    """The name of a rule; raises ValueError for an unknown one."""
    check_choice("rule", name, tuple(RULES))
    return name


def grade_choice(prediction: str, gold: str, options: Options, rule: str) -> Grade:
    """The grade of a multiple-choice response; a single response is scored by the last reading of the rule."""
    first, last = li_matches(prediction, options)
    choices = {"boxed": boxed_choice(prediction, options), "first": first, "last": last}
    return score_reading(Grade(correct=False, choices=choices), RULES[rule][-1], gold)


def score_reading(grade: Grade, reading: str, gold: object) -> Grade:
    """The grade when this reading of the response is scored."""
    letter = (grade.choices or {}).get(reading)
    correct = letter == str(gold).strip().upper()
    return replace(grade, correct=correct, lenient=correct, answer=letter)


def score_data_set(grades: Sequence[Grade], golds: Sequence[object], rule: str) -> tuple[str, list[Grade]]:
    """The reading of a rule that scores highest over a data set, and the grades by it; of equal ones the first."""
    by_reading = {
        reading: [score_reading(grade, reading, gold) for grade, gold in zip(grades, golds, strict=True)]
        for reading in RULES[rule]
    }
    best = max(by_reading, key=lambda reading: sum(grade.correct for grade in by_reading[reading]))
    return best, by_reading[best]


# ---- boxed ----


def boxed_choice(response: str, options: Options) -> str | None:
    """The letter that a response chooses by the rule `boxed`, or None."""
    response = after_thinking(response)
    joined = last_boxed(response) or ""
    for content in [joined, *(box.content for box in reversed(boxes(response)))]:
        letter = _choice_in_box(content[:LONGEST_BOX], options)
        if letter is not None:
            return None if letter == AMBIGUOUS else letter
    letters = "".join(options)
    stated = re.findall(_STATED.format(letters=letters), response)
    if stated:
        return str(stated[-1])
    alone = re.compile(_ALONE.format(letters=letters))
    lines = response.split("\n")
    for line in reversed(lines):
        found = alone.fullmatch(line)
        if found:
            return found[1]
    if re.fullmatch(rf"\s*+\(?[{letters.lower()}]\)?[.\s]*+", response):
        return response.strip(" ().\n").upper()
    last_line = next((line for line in reversed(response.splitlines()) if line.strip()), None)
    return None if last_line is None else _option_named(last_line, options)


def _choice_in_box(boxed: str, options: Options) -> str | None:
    """The option that a box names by its text, its letter or both; AMBIGUOUS for several, None for none."""
    text = unwrap(boxed, CHOICE_WRAPPERS)
    text = re.sub(r"\\[()\[\]!,;: ]|[${}*]|~", " ", text).strip(" .")
    exact = [letter for letter, words in options.items() if words.strip(" .").casefold() == text.casefold()]
    if len(exact) == 1:
        return exact[0]
    letters = "".join(options)
    if re.fullmatch(rf"\(?[{letters}]\)?(?:\s*(?:,|;|&|/|and|or)\s*\(?[{letters}]\)?)+", text):
        return AMBIGUOUS
    letter_only = re.fullmatch(rf"{_LEAD}\(?([{letters}{letters.lower()}])\)?", text)
    if letter_only:
        return letter_only[1].upper()
    letter_first = re.match(rf"{_LEAD}(?:\(([{letters}])\)|([{letters}])\s*[.:)])\s*", text)
    if letter_first:
        return (letter_first[1] or letter_first[2]).upper()
    letter_and_text = re.match(rf"{_LEAD}([{letters}])\s+(.+)", text)
    if letter_and_text:
        letter = letter_and_text[1]
        if _occurs(options[letter].strip(" ."), letter_and_text[2]):
            return letter
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
    """Whether words occur in a text as whole words, whatever their case."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE) is not None


# ---- li and m1 ----


def li_matches(response: str, options: Options) -> tuple[str, str]:
    """The first and the last match of the first search that finds anything.

    Step 1 limits the text, and steps 2 to 5 are searches:

    1. Only the text after the last heading "## Final Response" with an empty line counts, if there is one.
    2. "answer is", any white space, a letter A–N, even if no option has it.
    3. An option's letter between characters that are not part of a word; "A" before a space is the article.
       A match includes the characters around the letter, so of "C D" only C is seen.
    4. The text of an option. The last match is the option whose last occurrence is furthest to the right; the first
       match is the option whose *first* occurrence is furthest to the right.
    5. The option most similar to the response.
    """
    text = response.rpartition(FINAL_RESPONSE)[2]
    for pattern in (re.compile(r"answer is\s*+([A-N])"), _letter_pattern(len(options))):
        found = pattern.findall(text)
        if found:
            return found[0], found[-1]
    lowered = text.lower()
    words = {letter: option.lower() for letter, option in options.items()}
    named = [letter for letter in options if words[letter] in lowered]
    if named:
        first = max(named, key=lambda letter: lowered.find(words[letter]))
        last = max(named, key=lambda letter: lowered.rfind(words[letter]))
        return first, last
    closest = _most_similar(words, lowered)
    return closest, closest


@lru_cache
def _letter_pattern(count: int) -> re.Pattern[str]:
    """Step 3 for the first `count` letters."""
    others = "".join(chr(ord("A") + index) for index in range(1, count))
    letter = rf"A(?! )|[{others}]" if others else "A(?! )"
    return re.compile(rf"(?:^|[\W{CJK}])({letter})(?:[\W{CJK}]|$)")


def _most_similar(words: Mapping[str, str], text: str) -> str:
    """The option whose text has the highest difflib ratio to the response; of equal ones the last."""
    matcher = SequenceMatcher(None, "", text)
    best = ""
    best_ratio = -1.0
    for letter, option in words.items():
        matcher.set_seq1(option)
        ratio = matcher.ratio()
        if ratio >= best_ratio:
            best = letter
            best_ratio = ratio
    return best
