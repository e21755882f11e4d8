"""A reader of responses for the pages: every problem with its gold answer and what was answered, filtered and searched.

Numbers of all responses are in the page's data; the texts are packed in chunks that the page unpacks when they are
read, so that a file with 24,000 responses opens at once.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qsft import page
from qsft.evals.summary import Result

CHUNK = 32  # problems whose texts are packed together

READER = """\
<h2 id="reader">Responses</h2>
<div class="reader-bar" id="reader-bar">
<label>Task <select id="reader-task"></select></label>
<label>Show <select id="reader-filter"></select></label>
<input type="search" id="reader-search" aria-label="Search in problems, answers and responses" placeholder="Search">
<button type="button" id="reader-back">Back</button><button type="button" id="reader-next">Next</button>
<output id="reader-count" aria-live="polite"></output>
</div>
<div id="reader-list"></div>
"""


def page_with_reader(title: str, body: str, methods: Mapping[str, Mapping[str, Result]], lede: str = "") -> str:
    """A page with `body`, then the reader of each method's results by task; problems that all methods have."""
    style, script = (page.static("qsft.evals", name) for name in ("reader.css", "reader.js"))
    data, texts = reader_data(methods)
    chunks = [page.packed(json.dumps(texts[at : at + CHUNK]), level=6) for at in range(0, len(texts), CHUNK)]
    packed = "".join(f'<script type="text/plain" id="texts-{i}">{chunk}</script>' for i, chunk in enumerate(chunks))
    return page.page(title, body + READER + packed, lede=lede, data=data, style=style, script=script)


def reader_data(methods: Mapping[str, Mapping[str, Result]]) -> tuple[dict[str, Any], list[list[list[str]]]]:
    """What reader.js shows, and the texts by problem, method and sample."""
    problems: list[dict[str, Any]] = []
    texts: list[list[list[str]]] = []
    first, *others = [{task: _by_problem(result) for task, result in tasks.items()} for tasks in methods.values()]
    for task, answered in first.items():
        asked = {one.id: one for one in next(iter(methods.values()))[task].problems}
        for number, problem in enumerate(answered, start=1):
            runs = [answered[problem], *(other.get(task, {}).get(problem) for other in others)]
            if any(run is None for run in runs):
                continue
            known = asked.get(problem)
            row = {"id": problem, "task": task, "number": number, "at": len(problems)}
            row |= {"question": known and known.question, "gold": known and _gold(known.gold)}
            row |= {"options": dict(known.options) if known and known.options else None}
            problems.append({**row, "runs": [[facts for facts, _ in run] for run in runs if run]})
            texts.append([[text for _, text in run] for run in runs if run])
    return {"methods": list(methods), "problems": problems, "chunk": CHUNK}, texts


def _by_problem(result: Result) -> dict[str, list[tuple[list[Any], str]]]:
    """Of each problem's samples: tokens, cut off, strict, lenient, answer, note; and the text."""
    found: dict[str, list[tuple[list[Any], str]]] = {}
    for one, grade in zip(result.generations, result.grades, strict=True):
        note = "grading timed out" if grade.timed_out else grade.failure
        if grade.choices:
            note = ", ".join(f"{name} {letter or '–'}" for name, letter in grade.choices.items())
        lenient = grade.lenient or grade.correct
        facts = [one.tokens, one.finish == "length", grade.correct, lenient, grade.answer, note]
        found.setdefault(one.problem, []).append((facts, one.text))
    return found


def _gold(gold: object) -> str:
    return ", ".join(map(str, gold)) if isinstance(gold, Sequence) and not isinstance(gold, str) else str(gold)
