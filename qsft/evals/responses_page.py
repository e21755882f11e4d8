"""The part of a page in which every response can be read, filtered and searched.

The numbers of all responses are in the page's data. The texts are packed in chunks that the page unpacks when they are
read, so that a file with 24,000 responses opens at once.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from qsft import page
from qsft.evals.grading.grade import Grade
from qsft.evals.results import Result
from qsft.evals.tasks import Problem
from qsft.inference.sampling import Generation

CHUNK = 32  # problems whose texts are packed together
CONTROLS = """\
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

Results = Mapping[str, Result]  # by task


class ResponsesPart(NamedTuple):
    """HTML, data, style and script to add to a page."""

    html: str
    data: dict[str, Any]
    style: str
    script: str


class _Response(NamedTuple):
    """One response: the facts that reader.js shows (see `_facts`) and its text."""

    facts: dict[str, Any]
    text: str


def responses_part(methods: Mapping[str, Results]) -> ResponsesPart:
    """The responses of each method to the problems that all methods have.

    Args:
        methods: results by name of the method and by task.
    """
    problems: list[dict[str, Any]] = []
    texts: list[list[list[str]]] = []  # by problem, method and sample
    first_results = next(iter(methods.values()))
    by_method = [{task: _by_problem(result) for task, result in results.items()} for results in methods.values()]
    for task, result in first_results.items():
        known = {problem.id: problem for problem in result.problems}
        for number, problem_id in enumerate(by_method[0][task], start=1):
            runs = [method.get(task, {}).get(problem_id) for method in by_method]
            complete = [run for run in runs if run is not None]
            if len(complete) < len(runs):
                continue
            entry = {"id": problem_id, "task": task, "number": number, "at": len(problems)}
            entry.update(_question(known.get(problem_id)))
            entry["runs"] = [[response.facts for response in run] for run in complete]
            problems.append(entry)
            texts.append([[response.text for response in run] for run in complete])
    return ResponsesPart(
        html=CONTROLS + _pack(texts),
        data={"methods": list(methods), "problems": problems, "chunk": CHUNK},
        style=page.static("qsft.evals", "reader.css"),
        script=page.static("qsft.evals", "reader.js"),
    )


def _pack(texts: list[list[list[str]]]) -> str:
    chunks = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
    return "".join(
        f'<script type="text/plain" id="texts-{number}">{_pack_chunk(chunk)}</script>'
        for number, chunk in enumerate(chunks)
    )


def _pack_chunk(chunk: list[list[list[str]]]) -> str:
    return page.packed(page.show_invisible(json.dumps(chunk, ensure_ascii=False)), level=6)


def _question(problem: Problem | None) -> dict[str, Any]:
    if problem is None:
        return {"question": None, "gold": None, "options": None}
    golds = problem.gold if isinstance(problem.gold, list | tuple) else [problem.gold]
    return {
        "question": problem.question,
        "gold": ", ".join(map(str, golds)),
        "options": dict(problem.options) if problem.options else None,
    }


def _by_problem(result: Result) -> dict[str, list[_Response]]:
    found: dict[str, list[_Response]] = {}
    for generation, grade in zip(result.generations, result.grades, strict=True):
        response = _Response(_facts(generation, grade), generation.text)
        found.setdefault(generation.problem, []).append(response)
    return found


def _facts(generation: Generation, grade: Grade) -> dict[str, Any]:
    """What reader.js shows beside a response."""
    note = "grading timed out" if grade.timed_out else grade.failure
    if grade.choices:
        note = ", ".join(f"{reading} {letter or '–'}" for reading, letter in grade.choices.items())
    return {
        "tokens": generation.tokens,
        "cut_off": generation.finish == "length",
        "correct": grade.correct,
        "lenient": grade.lenient or grade.correct,
        "answer": grade.answer,
        "note": note,
    }
