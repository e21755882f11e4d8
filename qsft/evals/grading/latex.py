r"""Remove LaTeX wrappers such as \text{…} from an answer, in linear time."""

import re
from collections.abc import Sequence
from functools import lru_cache

TEXT_WRAPPERS = ("text", "textbf", "textit", "mathrm", "mathbf", "mbox")


def unwrap(text: str, wrappers: Sequence[str] = TEXT_WRAPPERS) -> str:
    r"""The text with \wrapper{content} replaced by its content, inside out; content with other braces stays wrapped.

    >>> unwrap(r"\text{about \textbf{5}} cm")
    'about 5 cm'
    """
    pieces: list[str] = []
    open_groups: list[_Group] = []
    position = 0
    for token in _token_pattern(tuple(wrappers)).finditer(text):
        pieces.append(text[position : token.start()])
        position = token.end()
        pieces.append(token[0])
        if token[0] != "}":
            open_groups.append(_Group(len(pieces) - 1, is_wrapper=token[0] != "{"))
            continue
        if not open_groups:
            continue
        group = open_groups.pop()
        if group.is_wrapper and not group.has_braces:
            pieces[group.piece] = ""
            pieces[-1] = ""
        elif open_groups:
            open_groups[-1].has_braces = True
    pieces.append(text[position:])
    return "".join(pieces)


class _Group:
    """A brace that was opened: the piece of text that opens it, and whether braces remain inside."""

    def __init__(self, piece: int, *, is_wrapper: bool) -> None:
        self.piece = piece
        self.is_wrapper = is_wrapper
        self.has_braces = False


@lru_cache
def _token_pattern(wrappers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\\(?:{'|'.join(wrappers)})\s*+\{{|[{{}}]")
