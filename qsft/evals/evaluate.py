"""evaluate(): sample what is missing, grade, report. It can be killed and continued, and rescored without a model.

An evaluation's directory: settings.json, generations/<task>.jsonl, grades/<task>.jsonl, problems/<task>.jsonl,
summary.json, summary.md, report.html.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from qsft.data.prompts import Prompt, find_preset
from qsft.evals.choice import better_reading
from qsft.evals.eval_directory import EvalDirectory
from qsft.evals.grade import Grade
from qsft.evals.grading import Grading
from qsft.evals.model_under_test import ModelUnderTest
from qsft.evals.problems import load_problems
from qsft.evals.protocol import Protocol, find_protocol
from qsft.evals.report_page import write_report_page
from qsft.evals.request import Generation, Request
from qsft.evals.summary import READINGS, Report, Result, make_report, percent
from qsft.evals.tasks import Problem, Task, describe, find_tasks
from qsft.files import read_json, write_text
from qsft.fingerprints import digest_json
from qsft.ledger import Key
from qsft.processes import Group
from qsft.progress import Progress


@dataclass(frozen=True)
class TaskRun:
    """One task to be measured under one protocol."""

    task: Task
    problems: Sequence[Problem] = field(repr=False)
    protocol: Protocol

    @cached_property
    def by_id(self) -> dict[str, Problem]:
        return {problem.id: problem for problem in self.problems}

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        """The prompt of each problem, by its id."""
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
        prompts = [[key, prompt] for key, prompt in list(self.prompts.items())[:first]]
        return {**settings, "prompts": digest_json(prompts)}

    def digests(self, made_by: Mapping[str, Any]) -> dict[str, str]:
        """What decides the text of each problem's samples: model, sampling and its own prompt, as one digest."""
        settings = {key: value for key, value in made_by.items() if key not in ("n", "prompts")}
        return {problem: digest_json([settings, prompt]) for problem, prompt in self.prompts.items()}


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
    engine: Mapping[str, Any] | None = None,
    seed_requests: bool = True,
    fresh: bool = False,
    silent: bool = False,
    **changes: Any,
) -> Report:
    """The report of a model on tasks; with an output_dir, what was generated before is continued.

    model: a path, a hub id, or a model in memory with its tokenizer. tasks: math, medical, names, JSONL files, Task
    objects. protocol: a name (paper-math, paper-math-7b-openr1, paper-medical, avg16) or a Protocol; None is the
    paper's for the kind of task; further keywords change single settings (n=4, temperature=0.7, prompt="plain", …).
    engine: further arguments of vLLM's engine (gpu_memory_utilization=0.8, enforce_eager=True, …). Its requests have
    seeds of their own unless seed_requests is off: faster there, but not repeatable.
    """
    wanted, group = find_tasks(tasks), Group()
    if output_dir is None and group.count > 1:
        raise ValueError(f"{group.count} processes share their generations through files: set output_dir.")
    drawn_by: dict[str, Any] = {"engine": engine or {}, "seed_requests": seed_requests, "device": group.device}
    subject = ModelUnderTest(
        model, tokenizer, backend, dtype, batch_size, tensor_parallel_size, processes=group.count, **drawn_by
    )
    runs = plan_runs(wanted, protocol, changes, data_dir, limit)
    for run in runs:
        subject.limit_positions(run.prompts.values(), run.protocol.max_new_tokens)
    files = EvalDirectory(output_dir, group)
    agree_on_settings(files, runs, subject, data_dir, fresh)
    with Grading() as grading:
        for run in runs:
            draw(run, subject, files, grading, silent)
        for run in runs:
            files.keep_grades(run.task.name, grading.grades(run.task.name))
    group.wait()
    report = conclude(runs, files, subject.about()) if group.rank == 0 else None
    group.wait()
    return report or Report(read_json(Path(str(output_dir)) / "summary.json", "Rerun the command."))


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
    files = EvalDirectory(output_dir)
    recorded = files.settings()
    if not recorded:
        raise FileNotFoundError(f"{output_dir} holds no evaluation (settings.json is missing), so nothing to rescore.")
    runs = []
    for task in find_recorded(tasks, recorded):
        if task.name not in recorded:
            raise ValueError(f"{output_dir} holds no generations of {task.name!r}, only of {', '.join(recorded)}.")
        settings = recorded[task.name]
        chosen = find_protocol(Protocol(**settings["protocol"]), {"rule": rule} if rule else {})
        problems = load_problems(task, data_dir or settings.get("data_dir"), settings["limit"])
        runs.append(TaskRun(task, problems, chosen))
        recorded[task.name] = {**settings, "protocol": chosen.record()}  # comparisons read which rule made the grades
    files.write_settings(recorded)
    with Grading() as grading:
        for run in runs:
            name = run.task.name
            for generation in files.finish(name, run.digests(recorded[name]["made_by"]), run.keys):
                grading.submit(run, generation)
        for run in runs:
            files.keep_grades(run.task.name, grading.grades(run.task.name))
    return conclude(runs, files, recorded[runs[0].task.name]["about"])


def find_recorded(tasks: str | Task | Iterable[str | Task] | None, recorded: Mapping[str, Any]) -> list[Task]:
    """The tasks named; a name that the settings know is read from the file it was read from."""
    if isinstance(tasks, str):
        tasks = [name.strip() for name in tasks.split(",") if name.strip()]
    named = recorded if tasks is None else [tasks] if isinstance(tasks, Task) else tasks
    return find_tasks(
        [recorded[one].get("path") or one if isinstance(one, str) and one in recorded else one for one in named]
    )


def plan_runs(
    tasks: Sequence[Task],
    protocol: str | Protocol | None,
    changes: Mapping[str, Any],
    data_dir: str | Path | None = None,
    limit: int | None = None,
) -> list[TaskRun]:
    """What is to be measured, every problem read and checked, before a model costs time."""
    chosen = [find_protocol(protocol, changes, multiple_choice=task.multiple_choice) for task in tasks]
    return [TaskRun(task, load_problems(task, data_dir, limit), one) for task, one in zip(tasks, chosen, strict=True)]


def draw(run: TaskRun, subject: ModelUnderTest, files: EvalDirectory, grading: Grading, silent: bool) -> None:
    """Sample this process's share of what is missing, grading as it comes."""
    name, group = run.task.name, files.group
    made_by = run.digests(files.settings()[name]["made_by"]) if files.path is not None else {}
    done, share = files.drawn(name, made_by), files.generations.share(run.keys)
    group.wait()  # nobody appends while another still reads
    for key in share:
        if key in done:
            grading.submit(run, done[key])
    missing = [key for key in share if key not in done]
    if not missing:
        return
    sampler = subject.sampler(run.protocol.sampling)
    requests = [Request(problem, sample, run.prompts[problem]) for problem, sample in missing]
    show, before, tokens = not silent and group.rank == 0, len(share) - len(missing), 0
    with Progress(name, len(share), "samples", done=before, show=show) as progress:
        for generation in files.append(name, made_by, sampler.sample(requests)):
            grading.submit(run, generation)
            tokens += generation.tokens
            progress.advance(1, f"{progress.per_second(tokens):,.0f} tokens/s{grading.so_far(name)}")


def conclude(runs: Sequence[TaskRun], files: EvalDirectory, about: Mapping[str, Any]) -> Report:
    """The report over complete generations and those of the directory's other tasks; grades, summary, page written."""
    settings = files.settings()
    results, notes, said = {}, {}, {}
    for run in runs:
        name = run.task.name
        made_by = run.digests(settings[name]["made_by"]) if name in settings else {}
        result = read_task(run, files.finish(name, made_by, run.keys), files.collect_grades(name, run.keys))
        files.write_result(result)
        if name in settings:
            settings[name] = {**settings[name], "reading": result.reading}
        results[name], notes[name] = result, make_notes(run, result, about)
        said[name] = {**run.protocol.record(), **describe(run.task)}
    files.write_settings(settings)
    others, left_out = files.other_results(list(results), settings)
    before = files.summary() if others else {}
    for result in others:
        name = result.task
        results[name], notes[name] = result, before.get("tasks", {}).get(name, {}).get("notes", [])
        said[name] = before.get("settings", {}).get("tasks", {}).get(name, settings[name]["protocol"])
    order = [name for name in settings if name in results] or list(results)
    said = {name: said[name] for name in order}
    report = make_report([results[name] for name in order], {**about, "tasks": said}, notes, left_out)
    files.write_json("summary.json", report.summary)
    if files.path is not None:
        write_text(files.path / "summary.md", str(report))
        write_report_page(report, files.path / "report.html", f"Evaluation of {about['model']}")
    return report


def read_task(run: TaskRun, generations: Sequence[Generation], grades: Sequence[Grade]) -> Result:
    """The result of a task; by the paper's rule the better of the two readings of its multiple-choice responses."""
    reading = None
    if run.task.multiple_choice and any(one.choices for one in grades):
        reading = "boxed"
        if run.protocol.rule == "paper":
            reading, grades = better_reading(grades, [run.by_id[one.problem].gold for one in generations])
    return Result(run.task.name, run.protocol.n, generations, grades, run.problems, reading)


def make_notes(run: TaskRun, result: Result, about: Mapping[str, Any]) -> list[str]:
    """What a reader of the numbers should know."""
    generations, grades = result.generations, result.grades
    notes, name = [], run.task.name
    if run.protocol.temperature == 0:
        notes.append("greedy: one response per prompt, so the interval is over problems only.")
    elif about["independent"]:
        notes.append("float32, seeded per sample: batching, processes and resuming do not change samples.")
    else:
        how = f"{about['backend']} in {about['dtype']}"
        notes.append(f"{how}: rounding depends on the batch, so batching may change samples from run to run.")
    rows = run.task.rows
    if rows is not None and rows != len(run.problems):
        notes.append(f"{name}: {len(run.problems)} of the {rows} published problems.")
    if result.reading is not None:
        shares = {key: percent(share) for key, share in result.readings().items()}
        notes.append(
            f"{name}: read by {READINGS[result.reading]}. Right by box {shares['boxed']} %, by the paper's first match "
            f"{shares['first']} %, by its last {shares['last']} %."
        )
    cut = sum(one.finish == "length" and one.tokens < run.protocol.max_new_tokens for one in generations)
    if cut:
        notes.append(f"{name}: {cut} responses ended at the model's context of {about['context']} tokens.")
    late, failures = sum(one.timed_out for one in grades), [one.failure for one in grades if one.failure]
    if late:
        notes.append(f"{name}: {late} responses took the grader too long and count as wrong.")
    if failures:
        kinds = ", ".join(sorted({failure.partition(":")[0] for failure in failures}))
        notes.append(
            f"{name}: the grader stumbled over {len(failures)} responses, which count as wrong ({kinds}; grades/ has "
            "each)."
        )
    return notes


def agree_on_settings(
    files: EvalDirectory, runs: Sequence[TaskRun], subject: ModelUnderTest, data_dir: str | Path | None, fresh: bool
) -> None:
    """Refuse to continue generations that other settings made; record the settings of this run."""
    if files.group.rank == 0 and files.path is not None:
        record, recorded = subject.record(), files.settings()
        for run in runs:
            name = run.task.name
            if fresh:
                files.generations.remove(name)
            files.generations.repair(name)
            files.grading.remove(name)
            if files.generations.holds(name):  # a run that failed to start left settings, but no generations
                _refuse_change(run, record, recorded.get(name), files.path)
            recorded[name] = {
                "about": subject.about(),
                "made_by": {**record, **run.record()},
                "protocol": run.protocol.record(),
                "limit": len(run.problems),
                "path": _absolute(run.task.path),
                "data_dir": _absolute(data_dir),
            }
        files.write_settings(recorded)
    files.group.wait()


def _absolute(path: str | Path | None) -> str | None:
    return None if path is None else str(Path(path).resolve())


def _refuse_change(
    run: TaskRun, record: Mapping[str, Any], recorded: Mapping[str, Any] | None, directory: Path
) -> None:
    """Refuse other settings than the recorded. More samples or problems add to what is there, fewer would delete."""
    name, ways_out = run.task.name, "Give another --output_dir, or --fresh to delete them and start again."
    if recorded is None:
        raise ValueError(
            f"{directory} holds generations of {name!r}, but its settings.json does not say what made them, so they "
            f"cannot be continued. {ways_out}"
        )
    old = {"limit": recorded["limit"], **recorded["made_by"]}
    new = {"limit": len(run.problems), **record, **run.record(recorded["limit"])}
    more = {key for key in ("limit", "n") if new[key] > old[key]}
    unknown = {"prompts"} if new["limit"] < old["limit"] else set()  # of all of them, of which only some are here
    compared = [key for key in new if key not in more | unknown]
    changed = [f"{key} was {old.get(key)!r}, is {new[key]!r}" for key in compared if old.get(key) != new[key]]
    if changed:
        raise ValueError(
            f"{directory} holds generations of {name!r} made with other settings: {'; '.join(changed)}. {ways_out}"
        )
