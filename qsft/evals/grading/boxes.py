r"""Find what a response puts into \boxed{}; time and memory are linear in the length of the response."""

import re
from typing import NamedTuple

_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*+\{|(?<!\\)[{}]")
# Possessive quantifiers (*+): a separator is matched without backtracking.
_SEPARATOR = re.compile(r"[\s$,;.\\]*+(?:and|or|quad|text\{\s*+(?:and|or)\s*+\})?[\s$,;\\]*+", re.IGNORECASE)


class Box(NamedTuple):
    """One box: where it starts and ends in the text, and its content."""

    start: int
    end: int
    content: str


class _Span(NamedTuple):
    """Start of a box, start of its content, end of its content (None: it is never closed)."""

    start: int
    content_start: int
    content_end: int | None


def after_thinking(response: str) -> str:
    """The response after its last </think>; all of it without one."""
    return response.rpartition("</think>")[2]


def last_boxed(response: str) -> str | None:
    r"""The content of the last box, or None; boxes separated only by "and", "or" or a comma are one answer.

    >>> last_boxed(r"first \boxed{1}, then \boxed{2} and \boxed{3}")
    '2, 3'
    """
    found = boxes(response)
    if not found:
        return None
    first = len(found) - 1
    while first > 0 and _SEPARATOR.fullmatch(response, found[first - 1].end, found[first].start):
        first -= 1
    contents = [box.content for box in found[first:]]
    return ", ".join(dict.fromkeys(contents))


def boxes(text: str) -> list[Box]:
    """The outermost boxes. A nested box gives the content; a box that is never closed ends with its line."""
    spans = _box_spans(text)
    found: list[Box] = []
    index = 0
    while index < len(spans):
        outer = spans[index]
        end = _end_of_line(text, outer.content_start) if outer.content_end is None else outer.content_end + 1
        innermost = index
        while innermost + 1 < len(spans) and spans[innermost + 1].start < end:
            innermost += 1
        found.append(Box(outer.start, end, _content(text, spans[innermost], end)))
        index = innermost + 1
    return found


def _content(text: str, span: _Span, end_of_outer: int) -> str:
    if span.content_end is not None:
        return text[span.content_start : span.content_end].strip()
    content = text[span.content_start : end_of_outer].rstrip(" .$")
    missing = content.count("{") - content.count("}")
    return content + "}" * max(0, missing)


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _box_spans(text: str) -> list[_Span]:
    """All boxes in the order of their starts, nested ones too."""
    spans: list[_Span] = []
    open_braces: list[int | None] = []  # the box that each open brace belongs to
    for token in _TOKEN.finditer(text):
        if token[0] == "}":
            box = open_braces.pop() if open_braces else None
            if box is not None:
                spans[box] = spans[box]._replace(content_end=token.start())
        elif token[0] == "{":
            open_braces.append(None)
        else:
            open_braces.append(len(spans))
            spans.append(_Span(token.start(), token.end(), None))
    return spans
