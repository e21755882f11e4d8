"""evaluate(): sample what is missing, grade, report. It can be killed and continued, and rescored without a model.

An evaluation's directory: settings.json, generations/<task>.jsonl, grades/<task>.jsonl, problems/<task>.jsonl,
summary.json, summary.md, report.html.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from qsft.data.prompts import encode
from qsft.evals.eval_directory import EvalDirectory, Grading, TaskRun
from qsft.evals.grade import Grade
from qsft.evals.judge import Judges
from qsft.evals.protocol import Protocol, find_protocol
from qsft.evals.report import Report, make_report
from qsft.evals.tasks import Wanted, find_tasks, listed, load_problems
from qsft.files import read_json, shown
from qsft.inference.model import InferenceModel
from qsft.inference.sampling import Request
from qsft.inference.vllm_engine import EngineOptions
from qsft.ledger import Key, Record
from qsft.processes import Group
from qsft.progress import Progress


def evaluate(
    model: str | Path | PreTrainedModel,
    tasks: Wanted = "math",
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
    paper's for the kind of task; further keywords change single settings (num_samples=4, prompt="plain", …).
    engine: further arguments of vLLM's engine (gpu_memory_utilization=0.8, enforce_eager=True, …). Its requests have
    seeds of their own unless seed_requests is off: faster there, but not repeatable.
    """
    wanted, group = find_tasks(tasks), Group()
    if output_dir is None and group.count > 1:
        raise ValueError(f"{group.count} processes share their generations through files: set output_dir.")
    subject = InferenceModel(
        model,
        tokenizer,
        backend,
        dtype,
        batch_size,
        engine=EngineOptions(tensor_parallel_size=tensor_parallel_size, engine_args=engine or {}),
        seed_requests=seed_requests,
        device=group.device,
        num_processes=group.count,
    )
    runs = []
    for task in wanted:
        chosen = find_protocol(protocol, changes, multiple_choice=task.multiple_choice)
        runs.append(run := TaskRun(task, load_problems(task, data_dir, limit), chosen))
        subject.limit_context(encode_prompts(run, subject).values(), run.protocol.max_new_tokens)
    with TemporaryDirectory() if output_dir is None else nullcontext(output_dir) as directory, Judges() as judges:
        files = EvalDirectory(directory, group)
        if group.rank == 0:
            record = subject.identity() if output_dir is not None else {}  # digesting weights takes its time
            agree_on_settings(files, runs, describe_model(subject), record, data_dir, fresh)
        group.wait()
        grading = [draw(run, subject, files, judges, silent) for run in runs]
        grades = {one.run.name: dict(group.gather(one.grades())) for one in grading}
        report = conclude(runs, files, grades, keep=output_dir is not None) if group.rank == 0 else None
        group.wait()
        return report or Report(read_json(files.path / "summary.json", "Rerun the command."))


def rescore(
    output_dir: str | Path, tasks: Wanted | None = None, *, data_dir: str | Path | None = None, rule: str | None = None
) -> Report:
    """The report of generations that are already there, graded again; needs no model.

    tasks: None is all of the run's. Their rows are read from where they were read then, unless data_dir says otherwise.
    """
    files, where = EvalDirectory(output_dir), shown(output_dir)
    recorded = files.settings()
    if not recorded:
        raise FileNotFoundError(f"{where} holds no evaluation (settings.json is missing), so nothing to rescore.")
    asked = list(recorded) if tasks is None else listed(tasks)
    named = [recorded.get(one, {}).get("path") or one if isinstance(one, str) else one for one in asked]
    runs = []
    for task in find_tasks(named):
        if task.name not in recorded:
            raise ValueError(f"{where} holds no generations of {task.name!r}, only of {', '.join(recorded)}.")
        settings = recorded[task.name]
        chosen = find_protocol(Protocol(**settings["protocol"]), {"rule": rule} if rule else {})
        runs.append(TaskRun(task, load_problems(task, data_dir or settings.get("data_dir"), settings["limit"]), chosen))
        settings["protocol"] = chosen.record()  # comparisons read which rule made the grades
    files.write_settings(recorded)
    with Judges() as judges:
        grading = [Grading(run, judges, files.finish(run)) for run in runs]
        return conclude(runs, files, {one.run.name: dict(one.grades()) for one in grading})


def agree_on_settings(
    files: EvalDirectory, runs: list[TaskRun], about: Record, record: Record, data_dir: str | Path | None, fresh: bool
) -> None:
    """Refuse to continue generations that other settings made; record the settings of this run."""
    recorded = files.settings()
    for run in runs:
        if fresh:
            files.generations.remove(run.name)
        files.generations.repair(run.name)
        if files.generations.holds(run.name):  # a run that failed to start left settings, but no generations
            _refuse_change(run, record, recorded.get(run.name), shown(files.path))
        recorded[run.name] = {
            "about": about,
            "made_by": {**record, **run.record()},
            "protocol": run.protocol.record(),
            "limit": len(run.problems),
            "path": run.task.path and str(run.task.path.resolve()),
            "data_dir": data_dir and str(Path(data_dir).resolve()),
        }
    files.write_settings(recorded)


def _refuse_change(run: TaskRun, record: Record, recorded: Record | None, directory: str) -> None:
    """More samples or problems add to what is there, fewer would delete."""
    what = f"{directory} holds generations of {run.name!r}"
    ways_out = "Give another --output_dir, or --fresh to delete them and start again."
    if recorded is None:
        raise ValueError(f"{what}, but its settings.json does not say what made them. {ways_out}")
    old = {"limit": recorded["limit"], **recorded["made_by"]}
    new = {"limit": len(run.problems), **record, **run.record(recorded["limit"])}
    free = {key for key in ("limit", "num_samples") if new[key] > old[key]}
    free |= {"prompts"} if new["limit"] < old["limit"] else set()  # of all of them, of which only some are here
    differ = [key for key in new if key not in free and old.get(key) != new[key]]
    changed = [f"{key} was {old.get(key)!r}, is {new[key]!r}" for key in differ]
    if changed:
        raise ValueError(f"{what} made with other settings: {'; '.join(changed)}. {ways_out}")


def draw(run: TaskRun, subject: InferenceModel, files: EvalDirectory, judges: Judges, silent: bool) -> Grading:
    """Sample this process's share of what is missing, grading as it comes."""
    done, share, group = files.drawn(run), files.generations.share(run.keys), files.group
    group.wait()  # nobody appends while another still reads
    grading = Grading(run, judges, (done[key] for key in share if key in done))
    missing = [key for key in share if key not in done]
    if not missing:
        return grading
    ids = encode_prompts(run, subject)
    requests = [Request(problem, sample, ids[problem]) for problem, sample in missing]
    drawn = files.append(run, subject.sampler(run.protocol).sample(requests))
    show, before, tokens = not silent and group.rank == 0, len(share) - len(missing), 0
    with Progress(run.name, len(share), "samples", done=before, show=show) as progress:
        for generation in drawn:
            grading.submit(generation)
            tokens += generation.tokens
            progress.advance(1, f"{progress.per_second(tokens):,.0f} tokens/s{grading.so_far()}")
    return grading


def encode_prompts(run: TaskRun, subject: InferenceModel) -> dict[str, tuple[int, ...]]:
    tokenizer = subject.load_tokenizer()
    return {problem: tuple(encode(tokenizer, prompt)) for problem, prompt in run.prompts.items()}


def describe_model(subject: InferenceModel) -> Record:
    return {
        "model": subject.name,
        "context": subject.context_length,
        "backend": subject.backend,
        "dtype": subject.dtype,
        "independent": subject.samples_are_reproducible,
    }


def conclude(
    runs: Sequence[TaskRun], files: EvalDirectory, grades: Mapping[str, Mapping[Key, Grade]], *, keep: bool = True
) -> Report:
    """The report over complete generations and those of the directory's other tasks, written if it is to be kept."""
    settings, before = files.settings(), dict[str, Any]()
    with suppress(OSError, ValueError):  # the report written last, as far as it can be read
        before = read_json(files.path / "summary.json", "")
    about = settings[runs[0].name]["about"]
    said = {name: one["protocol"] for name, one in settings.items()} | before.get("settings", {}).get("tasks", {})
    notes = {name: one.get("notes", []) for name, one in before.get("tasks", {}).items()}
    results = {}
    for run in runs:
        results[run.name] = result = run.result(files.finish(run), grades[run.name])
        files.write_result(result)
        settings[run.name]["reading"] = result.reading
        task, notes[run.name] = run.task, run.notes(result, about)
        rows = {"hub": task.hub, "split": task.split, "source": task.source, "published_rows": task.rows}
        said[run.name] = {**run.protocol.record(), **rows}
    files.write_settings(settings)
    others, left_out = files.other_results(list(results), settings)
    order = [name for name in settings if name in results or name in others]
    told = {**about, "tasks": {name: said[name] for name in order}}
    report = make_report([{**others, **results}[name] for name in order], told, notes, left_out)
    if keep:
        report.write(files.path)
    return report
