"""Which option does a response choose? The rules for multiple choice, by name.

`boxed` may abstain, and an abstention counts as wrong; `last-letter` never does, as in the paper's evaluation.
"""

import re
from collections.abc import Callable, Mapping
from difflib import SequenceMatcher

from qsft.evals.grade import Grade

Options = Mapping[str, str]

_BOX = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
# "The answer is B", "**Answer:** (B)", "the choice is \textbf{B}". The letter is upper-case and no part of a sentence:
# not the article of "Answer: A clot", the pronoun of "My answer: I would", the beginning of "B-cell" or "B12".
_SAID = (
    r"(?i:answer|option|choice)[\s*]*(?:(?i:is)\b|:)[\s*:($\\{{]*(?:(?i:option|choice)[\s*(]+)?"
    r"(?:(?:text(?:bf)?|math(?:bf|rm))[\s*({{]+)?([{letters}])(?![a-zA-Z0-9]|['’-]\w)"
    r"(?!(?<=[AI])\s+(?!(?:and|as|because|but|due|for|given|is|since|which|with)\b)[a-z])"
)
_LONE = r"^[\s*($\[]*([{letters}])[\s*)$\].:]*$"


def by_box(response: str, options: Options) -> str | None:
    """The chosen letter: boxed, else "the answer is X", else alone on a line, else an option's text; or None."""
    letters = "".join(options)
    for boxed in reversed(_BOX.findall(response)):
        if chosen := _letter_of(boxed, options):
            return chosen
    for pattern in (_SAID, _LONE):
        if said := re.findall(pattern.format(letters=letters), response, re.MULTILINE):
            return str(said[-1])
    lines = [line for line in response.splitlines() if line.strip()]
    return _option_named(lines[-1], options) if lines else None


def by_last_letter(response: str, options: Options) -> str:
    """The last option letter that stands alone anywhere; without one, the option most like the response's end."""
    alone = re.findall(rf"(?<![a-zA-Z])([{''.join(options)}])(?![a-zA-Z])", response)
    if alone:
        return str(alone[-1])
    end = response[-500:].casefold()
    return max(options, key=lambda letter: SequenceMatcher(None, options[letter].casefold(), end).ratio())


RULES: dict[str, Callable[[str, Options], str | None]] = {"boxed": by_box, "last-letter": by_last_letter}


def grade_choice(prediction: str, gold: str, options: Options, rule: str = "boxed") -> Grade:
    """The grade of a multiple-choice response under a named rule; gold is the right letter."""
    chosen = RULES[rule](prediction, options)
    correct = chosen == gold.strip().upper()
    return Grade(correct=correct, lenient=correct, answer=chosen)


def _letter_of(boxed: str, options: Options) -> str | None:
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*|[{}$*]", "", boxed).strip()
    lead = re.match(rf"\(?([{''.join(options)}])\)?(?:[.:)\s]|$)", text)
    return lead.group(1) if lead else _option_named(text, options)


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
