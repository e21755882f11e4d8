"""One HTML file that works offline: the shell that every page of qsft is poured into.

`page` wraps a body in title, light and dark colours and keyboard-friendly controls; `figure` is a Plotly figure in it.
Plotly's own script is inlined, compressed: a page is one file of about 2 MB that needs no network. No request leaves
it, whatever a document in it says: see the content security policy in static/shell.html.
"""

import base64
import gzip
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsft.files import write_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Okabe and Ito's colours, told apart with every common kind of colour blindness. A page shows each as the style sheet's
# colour of that role, which suits the theme; in a notebook they are what they are.
BLUE, ORANGE, GREEN, PINK, SKY, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
GREY, PAPER = "#5B636D", "#FFFFFF"
COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW)
ROLES = dict(zip((*COLOURS, GREY, PAPER), ("accent", "warm", "good", "pink", "sky", "yellow", "muted", "card")))


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
    """A whole HTML document around `body`, which is HTML (escape what users wrote with `escape`).

    `lede` is one plain sentence under the title. `data` reaches `script` as `qsft.data` (JSON, so text in it stays
    text); `script` runs once data and Plotly are there. Plotly is inlined when the body has a figure, or on request.
    """
    blobs = {"plotly": _plotly()} if plotly or 'class="plot"' in body else {}
    if data is not None:
        blobs["data"] = packed(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    roles = json.dumps({",".join(map(str, bytes.fromhex(colour[1:]))): role for colour, role in ROLES.items()})
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
    """A Plotly figure as HTML for `page`, in its theme; screen readers say the caption, `table` holds its numbers."""
    spec = fig.to_plotly_json()
    spec["layout"].pop("template", None)
    from plotly.utils import PlotlyJSONEncoder

    text = json.dumps({"data": spec["data"], "layout": spec["layout"]}, cls=PlotlyJSONEncoder, allow_nan=False)
    inert = text.replace("<", "\\u003c")  # nothing in it can end the script element
    numbers = f"<details><summary>The numbers</summary>{table}</details>" if table else ""
    return (
        f'<figure><div class="plot" role="img" aria-label="{escape(caption)}" style="height:{height}px">'
        f'<script type="application/json">{inert}</script></div>'
        f"<figcaption>{escape(caption)}</figcaption>{numbers}</figure>"
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """An HTML table; cells are escaped, numbers are aligned right, a narrow screen scrolls it sideways."""
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
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def write_page(path: str | Path, text: str) -> Path:
    """Write a page whole or not at all; where it is."""
    path = Path(path)
    write_text(path, text)
    return path


def escape(text: object) -> str:
    """Text as it may stand in HTML, inside or outside an attribute."""
    return html.escape(str(text), quote=True)


def packed(text: str, level: int = 9) -> str:
    """Text as base64 of gzip, which the shell unpacks: nothing in it can end a script or start a tag."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=level, mtime=0)).decode()


def static(package: str, name: str) -> str:
    """A style sheet or script that comes with `package`."""
    return (files(package) / "static" / name).read_text(encoding="utf-8")


def faint(colour: str) -> str:
    """One of COLOURS, see-through: for bands and areas."""
    red, green, blue = bytes.fromhex(colour[1:])
    return f"rgba({red}, {green}, {blue}, 0.18)"


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
