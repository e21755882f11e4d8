"""Write what was measured as a JSON file, as Markdown and as a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qsft import page
from qsft.evals.responses_page import ResponsesPart
from qsft.files import write_json, write_text


class Table(NamedTuple):
    """A table of text; the first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class CaptionedFigure(NamedTuple):
    """A Plotly figure and its caption."""

    figure: Any
    caption: str


def write_findings(
    json_file: Path,
    page_file: Path,
    *,
    title: str,
    summary: Mapping[str, Any],
    tables: Sequence[Table],
    notes: Sequence[str],
    figures: Sequence[CaptionedFigure],
    responses: ResponsesPart | None = None,
) -> Path:
    """Write the JSON file, a Markdown file beside it, and the page; return the page's path.

    Args:
        summary: the content of the JSON file.
        responses: the part of the page that shows single responses.
    """
    write_json(json_file, summary)
    write_text(json_file.with_suffix(".md"), to_markdown(tables, notes))
    body = "".join(page.table(table.columns, table.rows, table.title) for table in tables)
    body += paragraphs(notes)
    body += "".join(page.figure(one.figure, one.caption) for one in figures)
    if responses is None:
        return page.write_page(page_file, page.page(title, body))
    text = page.page(title, body + responses.html, data=responses.data, style=responses.style, script=responses.script)
    return page.write_page(page_file, text)


def to_markdown(tables: Sequence[Table], notes: Sequence[str]) -> str:
    lines: list[str] = []
    for table in tables:
        if table.title:
            lines += [table.title, ""]
        lines.append(_markdown_row(table.columns))
        lines.append("|---" + "|---:" * (len(table.columns) - 1) + "|")  # numbers are aligned right
        lines += [_markdown_row(row) for row in table.rows]
        lines.append("")
    lines += [f"- {note}" for note in notes]
    return "\n".join([*lines, ""])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def paragraphs(lines: Sequence[str]) -> str:
    """Notes as HTML."""
    return "".join(f'<p class="note">{page.escape(line)}</p>' for line in lines)


def percent(share: float | None, digits: int = 1) -> str:
    """A share between 0 and 1 as a percentage; a dash where there is none.

    >>> percent(0.123), percent(None)
    ('12.3', '–')
    """
    if share is None or share != share:
        return "–"
    return f"{100 * share:.{digits}f}"


def with_interval(estimate: Mapping[str, float]) -> str:
    """A mean with its interval, in percent.

    >>> with_interval({"mean": 0.5, "low": 0.4, "high": 0.6})
    '50.0 [40.0, 60.0]'
    """
    return f"{percent(estimate['mean'])} [{percent(estimate['low'])}, {percent(estimate['high'])}]"


def signed_with_interval(estimate: Mapping[str, float]) -> str:
    """A difference in percentage points with its interval; a star marks an interval without 0."""
    mean = f"{100 * estimate['mean']:+.1f}"
    low = f"{100 * estimate['low']:+.1f}"
    high = f"{100 * estimate['high']:+.1f}"
    star = "*" if estimate["low"] > 0 or estimate["high"] < 0 else ""
    return f"{mean}{star} [{low}, {high}]"
