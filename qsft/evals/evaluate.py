"""evaluate(): sample what is missing, grade, report. It can be killed and continued, and rescored without a model.

A run's directory: settings.json, generations/<task>.jsonl, grades/<task>.jsonl, summary.json, summary.md, report.html.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from qsft.data.prompts import Prompt, find_preset
from qsft.evals.grade import Grade, Judges
from qsft.evals.model_under_test import ModelUnderTest, Processes
from qsft.evals.problems import load_problems
from qsft.evals.progress import Progress
from qsft.evals.protocol import Protocol, find_protocol
from qsft.evals.report_page import write_report_page
from qsft.evals.request import Generation, Request
from qsft.evals.store import Key, Store
from qsft.evals.summary import Report, Result, make_report
from qsft.evals.tasks import Problem, Task, describe, find_tasks
from qsft.jsonl import write_text


@dataclass(frozen=True)
class Job:
    """One task to be measured under one protocol."""

    task: Task
    problems: Sequence[Problem] = field(repr=False)
    protocol: Protocol

    @cached_property
    def by_id(self) -> dict[str, Problem]:
        """The problems by their id."""
        return {problem.id: problem for problem in self.problems}

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        """The prompt of each problem."""
        if self.task.prompt is not None:
            return {problem.id: self.task.prompt(problem) for problem in self.problems}
        preset = find_preset(self.protocol.prompt)
        return {problem.id: preset.prompt(problem.question, problem.options) for problem in self.problems}

    @property
    def keys(self) -> list[Key]:
        """What the finished task consists of, in order."""
        return [(problem.id, sample) for problem in self.problems for sample in range(self.protocol.n)]

    def record(self, first: int | None = None) -> dict[str, Any]:
        """The settings that generations (of the first problems) depend on; how they are graded may change."""
        settings = {name: value for name, value in self.protocol.record().items() if name not in ("rule", "prompt")}
        prompts = list(self.prompts.items())[:first]
        asked = json.dumps([[key, list(p) if not isinstance(p, str) else p] for key, p in prompts])
        return {**settings, "prompts": blake2b(asked.encode(), digest_size=16).hexdigest()}


def evaluate(
    model: str | Path | PreTrainedModel,
    tasks: str | Task | Iterable[str | Task] = "math",
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    protocol: str | Protocol | None = None,
    output_dir: str | Path | None = None,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    backend: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
    tensor_parallel_size: int = 1,
    fresh: bool = False,
    silent: bool = False,
    **changes: Any,
) -> Report:
    """The report of a model on tasks; with an output_dir, what was generated before is continued.

    model: a path, a hub id, or a model in memory with its tokenizer. tasks: math, medical, names, JSONL files, Task
    objects. protocol: a name (paper-math, paper-math-7b-openr1, paper-medical, avg16) or a Protocol; None is the
    paper's for the kind of task; further keywords change single settings (n=4, temperature=0.7, prompt="plain", …).
    """
    wanted, group = find_tasks(tasks), Processes()
    if output_dir is None and group.count > 1:
        raise ValueError(f"{group.count} processes share their generations through files: set output_dir.")
    source = ModelUnderTest(
        model, tokenizer, backend, dtype, batch_size, tensor_parallel_size, device=group.device, processes=group.count
    )
    jobs = make_jobs(wanted, protocol, changes, data_dir, limit)
    store = Store(output_dir, group.rank)
    _agree_on_settings(store, jobs, source, group, data_dir, fresh)
    with Grading() as grading:
        for job in jobs:
            draw(job, source, store, group, grading, silent)
        group.wait()
        report = conclude(jobs, store, grading, source.about()) if group.rank == 0 else None
    group.wait()
    return report or Report(json.loads((Path(str(output_dir)) / "summary.json").read_text(encoding="utf-8")))


def rescore(
    output_dir: str | Path,
    tasks: str | Task | Iterable[str | Task] | None = None,
    *,
    data_dir: str | Path | None = None,
    rule: str | None = None,
) -> Report:
    """The report of generations that are already there, graded again; needs no model.

    tasks: None is all of the run's. Their rows are read from where they were read then, unless data_dir says otherwise.
    """
    store = Store(output_dir)
    recorded = store.settings()
    if not recorded:
        raise FileNotFoundError(f"{output_dir} holds no evaluation (settings.json is missing), so nothing to rescore.")
    paths = [settings.get("path") or name for name, settings in recorded.items()]
    wanted = find_tasks(paths if tasks is None else tasks)
    jobs = []
    for task in wanted:
        if task.name not in recorded:
            raise ValueError(f"{output_dir} holds no generations of {task.name!r}, only of {', '.join(recorded)}.")
        settings = recorded[task.name]
        chosen = find_protocol(Protocol(**settings["protocol"]), {"rule": rule} if rule else {})
        problems = load_problems(task, data_dir or settings.get("data_dir"), settings["limit"])
        jobs.append(Job(task, problems, chosen))
        settings["protocol"] = chosen.record()  # a comparison reads which rule made the grades
    store.write_json("settings.json", recorded)
    with Grading() as grading:
        return conclude(jobs, store, grading, recorded[wanted[0].name]["about"])


def make_jobs(
    tasks: Sequence[Task],
    protocol: str | Protocol | None,
    changes: Mapping[str, Any],
    data_dir: str | Path | None = None,
    limit: int | None = None,
) -> list[Job]:
    """The jobs, every problem read and checked, before a model costs time."""
    chosen = [find_protocol(protocol, changes, multiple_choice=task.multiple_choice) for task in tasks]
    return [Job(task, load_problems(task, data_dir, limit), one) for task, one in zip(tasks, chosen, strict=True)]


def draw(job: Job, source: ModelUnderTest, store: Store, group: Processes, grading: "Grading", silent: bool) -> None:
    """Sample this process's share of what is missing, grading as it comes."""
    name = job.task.name
    done = store.generations(name)
    share = {problem.id for problem in job.problems[group.rank :: group.count]}
    missing = [key for key in job.keys if key[0] in share and key not in done]
    if not missing:
        return
    sampler = source.sampler(job.protocol.sampling)
    requests = [Request(problem, sample, job.prompts[problem]) for problem, sample in missing]
    total = len(share) * job.protocol.n
    with Progress(name, total, total - len(missing), silent=silent or group.rank > 0) as progress:
        for generation in store.append(name, sampler.sample(requests)):
            progress.add(generation.tokens)
            if group.rank == 0:
                grading.submit(job, generation).add_done_callback(progress.count_grade)


class Grading:
    """Grades generations of jobs, each once: by the task's own grader here, else by judges in other processes."""

    def __init__(self) -> None:
        self._judges: Judges | None = None
        self._futures: dict[tuple[str, str, int], Future[Grade]] = {}

    def submit(self, job: Job, generation: Generation) -> "Future[Grade]":
        """The future grade of a generation."""
        key = (job.task.name, generation.problem, generation.sample)
        if key not in self._futures:
            self._futures[key] = self._grade(job, generation)
        return self._futures[key]

    def _grade(self, job: Job, generation: Generation) -> "Future[Grade]":
        problem = job.by_id[generation.problem]
        if job.task.grader is None:
            self._judges = self._judges or Judges()
            rule = job.protocol.rule
            return self._judges.submit(generation.text, problem.gold, options=problem.options, rule=rule)
        graded = job.task.grader(generation, problem)
        future: Future[Grade] = Future()
        future.set_result(graded if isinstance(graded, Grade) else Grade(graded, graded, generation.text))
        return future

    def __enter__(self) -> "Grading":
        return self

    def __exit__(self, *_: object) -> None:
        if self._judges is not None:
            self._judges.close()


def conclude(jobs: Sequence[Job], store: Store, grading: Grading, about: Mapping[str, Any]) -> Report:
    """The report over complete generations; grades, summary and page are written."""
    results, notes = [], {}
    for job in jobs:
        generations = store.finish(job.task.name, job.keys)
        grades = [future.result() for future in [grading.submit(job, generation) for generation in generations]]
        store.write_grades(job.task.name, generations, grades)
        results.append(Result(job.task.name, job.protocol.n, generations, grades))
        notes[job.task.name] = make_notes(job, generations, grades, about)
    settings = {job.task.name: {**job.protocol.record(), **describe(job.task)} for job in jobs}
    report = make_report(results, {**about, "tasks": settings}, notes)
    store.write_json("summary.json", report.summary)
    if store.directory is not None:
        write_text(store.directory / "summary.md", str(report))
        write_report_page(report, store.directory / "report.html", f"Evaluation of {about['model']}")
    return report


def make_notes(
    job: Job, generations: Sequence[Generation], grades: Sequence[Grade], about: Mapping[str, Any]
) -> list[str]:
    """What a reader of the numbers should know."""
    notes = []
    if job.protocol.temperature == 0:
        notes.append("greedy: one response per prompt, so the interval is over problems only.")
    elif about["independent"]:
        notes.append("float32, seeded per sample: batching, processes and resuming do not change samples.")
    else:
        how = f"{about['backend']} in {about['dtype']}"
        notes.append(f"{how}: rounding depends on the batch, so batching may change samples from run to run.")
    rows = job.task.rows
    if rows is not None and rows != len(job.problems):
        notes.append(f"{job.task.name}: {len(job.problems)} of the {rows} published problems.")
    cut = sum(one.finish == "length" and one.tokens < job.protocol.max_new_tokens for one in generations)
    if cut:
        notes.append(f"{job.task.name}: {cut} responses ended at the model's context of {about['context']} tokens.")
    late, failures = sum(one.timed_out for one in grades), [one.failure for one in grades if one.failure]
    if late:
        notes.append(f"{job.task.name}: {late} responses took the grader too long and count as wrong.")
    if failures:
        notes.append(
            f"{job.task.name}: the grader stumbled over {len(failures)} responses, which count as wrong "
            f"({', '.join(sorted({failure.partition(':')[0] for failure in failures}))}; grades/ has each)."
        )
    return notes


def _agree_on_settings(
    store: Store,
    jobs: Sequence[Job],
    source: ModelUnderTest,
    group: Processes,
    data_dir: str | Path | None,
    fresh: bool,
) -> None:
    """Refuse to continue generations that other settings made; record the settings of this run."""
    if group.rank == 0 and store.directory is not None:
        record = source.record()
        recorded = store.settings()
        for job in jobs:
            name, made_by = job.task.name, {**record, **job.record()}
            if fresh:
                store.remove(name)
                recorded.pop(name, None)
            store.repair(name)
            if name in recorded and store.holds(name):  # a run that failed to start left settings, but no generations
                _refuse_change(job, record, recorded[name], store.directory)
            recorded[name] = {
                "about": source.about(),
                "made_by": made_by,
                "protocol": job.protocol.record(),
                "limit": len(job.problems),
                "path": _absolute(job.task.path),
                "data_dir": _absolute(data_dir),
            }
        store.write_json("settings.json", recorded)
    group.wait()


def _absolute(path: str | Path | None) -> str | None:
    return None if path is None else str(Path(path).resolve())


def _refuse_change(job: Job, record: Mapping[str, Any], recorded: Mapping[str, Any], directory: Path) -> None:
    """Refuse other settings than the recorded. More samples or problems add to what is there, fewer would delete."""
    old = {"limit": recorded["limit"], **recorded["made_by"]}
    new = {"limit": len(job.problems), **record, **job.record(recorded["limit"])}
    more = {name for name in ("limit", "n") if new[name] > old[name]}
    unknown = {"prompts"} if new["limit"] < old["limit"] else set()  # of all of them, of which only some are here
    compared = [key for key in new if key not in more | unknown]
    changed = [f"{key} was {old.get(key)!r}, is {new[key]!r}" for key in compared if old.get(key) != new[key]]
    if changed:
        raise ValueError(
            f"{directory} holds generations of {job.task.name!r} made with other settings: {'; '.join(changed)}. Give "
            "another --output_dir, or --fresh to delete them and start again."
        )
