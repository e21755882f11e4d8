"""HTML pages that work offline: one file with everything in it.

`page` adds title, light and dark colors and keyboard-friendly controls to a body; `figure` is a Plotly figure in it.
Plotly's script is inlined and compressed, so a page is one file of about 2 MB that needs no network. The content
security policy in static/shell.html allows no request, whatever a document shown on the page contains.
"""

import base64
import gzip
import html
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsft.files import write_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Okabe and Ito's colors, which can be distinguished with every common kind of color blindness. On a page each is
# replaced by the style sheet's color of its role, which suits the theme; in a notebook they are used as they are.
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PINK = "#CC79A7"
SKY = "#56B4E9"
YELLOW = "#E69F00"
GRAY = "#5B636D"
PAPER = "#FFFFFF"
COLORS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW)
ROLES = {
    BLUE: "accent",
    ORANGE: "warm",
    GREEN: "good",
    PINK: "pink",
    SKY: "sky",
    YELLOW: "yellow",
    GRAY: "muted",
    PAPER: "card",
}
# Characters without a glyph that Unicode does not count among the format characters: the combining grapheme joiner,
# the Hangul fillers and the blank Braille pattern.
BLANK_CHARACTERS = "\u034f\u115f\u1160\u3164\uffa0\u2800"


def page(
    title: str,
    body: str,
    *,
    lede: str = "",
    data: Mapping[str, Any] | None = None,
    script: str = "",
    style: str = "",
    plotly: bool = False,
) -> str:
    """Return a complete HTML document.

    Args:
        title: text of the title.
        body: HTML; what users wrote must be escaped with `escape`.
        lede: one plain sentence under the title.
        data: what the script reads as `qsft.data`. It is JSON, so text in it stays text.
        script: JavaScript that runs once data and Plotly are loaded.
        style: further CSS.
        plotly: inline Plotly even if the body has no figure.
    """
    blobs = {"plotly": _plotly()} if plotly or 'class="plot"' in body else {}
    if data is not None:
        blobs["data"] = packed(
            show_invisible(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
        )
    roles = json.dumps({",".join(map(str, _red_green_blue(color))): role for color, role in ROLES.items()})
    shell = static("qsft", "shell.js").replace("/* roles */ {}", roles)
    return static("qsft", "shell.html").format(
        title=escape(title),
        lede=f'<p class="lede">{escape(lede)}</p>' if lede else "",
        style=static("qsft", "shell.css") + style,
        body=body,
        data="\n".join(f'<script type="text/plain" id="blob-{name}">{blob}</script>' for name, blob in blobs.items()),
        script=shell.replace("/* the page's own script */", script),
    )


def figure(fig: "Figure", caption: str, *, height: int = 360, table: str = "") -> str:
    """Return a Plotly figure as HTML for `page`.

    Args:
        fig: the figure.
        caption: the text under it, which screen readers read.
        height: in pixels.
        table: HTML of a table with the figure's numbers.
    """
    spec = fig.to_plotly_json()
    spec["layout"].pop("template", None)
    from plotly.utils import PlotlyJSONEncoder

    content = {"data": spec["data"], "layout": spec["layout"]}
    text = json.dumps(content, cls=PlotlyJSONEncoder, ensure_ascii=False, allow_nan=False)
    inert = show_invisible(text).replace("<", "\\u003c")  # nothing in it can end the script element
    numbers = f"<details><summary>The numbers</summary>{table}</details>" if table else ""
    return (
        f'<figure><div class="plot" role="img" aria-label="{escape(caption)}" style="height:{height}px">'
        f'<script type="application/json">{inert}</script></div>'
        f"<figcaption>{escape(caption)}</figcaption>{numbers}</figure>"
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """Return an HTML table. Cells are escaped, numbers aligned right; a narrow screen scrolls it sideways."""
    numeric = [bool(rows) and _is_number(value) for value in (rows[0] if rows else columns)]
    head = "".join(
        f'<th scope="col"{" class=number" if right else ""}>{escape(column)}</th>'
        for column, right in zip(columns, numeric)
    )
    lines = ["".join(_cell(value, first=i == 0) for i, value in enumerate(row)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption or "table")}">'
        f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def items(sentences: Iterable[str]) -> str:
    """Return an HTML list."""
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def write_page(path: str | Path, text: str) -> Path:
    """Write a page in one step and return its path."""
    path = Path(path)
    write_text(path, text)
    return path


def escape(text: object) -> str:
    """Return text escaped for HTML, inside or outside an attribute; invisible characters are shown."""
    return html.escape(show_invisible(str(text)), quote=True)


def show_invisible(text: str) -> str:
    """Return text with invisible characters written out, as ⟨U+202E⟩.

    These are control and format characters: bidirectional marks and overrides, which would reorder the text around
    them, and zero-width characters, which would make two different texts look the same.

    >>> show_invisible("a\\u202eb")
    'a⟨U+202E⟩b'
    """
    return text.translate(_SHOWN)


class _ShownCharacters(dict[int, str | int]):
    """What `str.translate` writes for a code point: itself, or ⟨U+…⟩ for an invisible one."""

    def __missing__(self, code: int) -> str | int:
        self[code] = f"⟨U+{code:04X}⟩" if _is_invisible(chr(code)) else code
        return self[code]


_SHOWN = _ShownCharacters()


def _is_invisible(character: str) -> bool:
    if character in "\n\t\r":
        return False
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in BLANK_CHARACTERS


def packed(text: str, level: int = 9) -> str:
    """Return text as base64 of gzip, which the page unpacks: nothing in it can end a script or start a tag."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=level, mtime=0)).decode()


def static(package: str, name: str) -> str:
    """Return a style sheet or script that comes with a package."""
    return (files(package) / "static" / name).read_text(encoding="utf-8")


def faint(color: str) -> str:
    """Return a color of COLORS as a transparent one, for bands and areas."""
    red, green, blue = _red_green_blue(color)
    return f"rgba({red}, {green}, {blue}, 0.18)"


def _red_green_blue(color: str) -> bytes:
    """The three numbers of a color such as #0072B2."""
    return bytes.fromhex(color.removeprefix("#"))


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return packed(get_plotlyjs())


def _cell(value: object, first: bool) -> str:
    if _is_number(value):
        return f'<td class="number">{escape(f"{value:,}" if isinstance(value, int) else f"{value:.4g}")}</td>'
    return f'<th scope="row">{escape(value)}</th>' if first else f"<td>{escape(value)}</td>"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
