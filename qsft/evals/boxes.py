"""Where a response says its answer: the part that counts, and the boxes in it, found in one pass over the text."""

import re

_THOUGHT = "</think>"
_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|(?<!\\)[{}]")
_BETWEEN_BOXES = re.compile(r"[\s$,;.\\]*(?:and|or|quad|text\{\s*(?:and|or)\s*\})?[\s$,;\\]*", re.IGNORECASE)

Box = tuple[int, int, str]  # start, end, content


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
