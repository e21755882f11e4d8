"""evaluate(): sample what is missing, grade, report. A killed evaluation continues; rescore() needs no model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from qsft.data.prompts import encode
from qsft.evals.eval_directory import EvalDirectory, TaskSettings
from qsft.evals.grading.grade import Grade
from qsft.evals.grading.pool import Judges, check_math_verify
from qsft.evals.problems import load_problems
from qsft.evals.protocol import Protocol, find_protocol
from qsft.evals.report import Report, summarize
from qsft.evals.task_run import Grading, TaskRun
from qsft.evals.tasks import Task, TaskNames, find_tasks, list_tasks
from qsft.files import shown
from qsft.inference.model import InferenceModel
from qsft.inference.sampling import Generation, Request
from qsft.inference.vllm_engine import EngineOptions
from qsft.ledger import SETTINGS, Key, Record, changed_settings
from qsft.processes import Group
from qsft.progress import Progress

START_AGAIN = "Choose another --output_dir, or pass --overwrite, which moves them aside and starts again."


def evaluate(
    model: str | Path | PreTrainedModel,
    tasks: TaskNames = "math",
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
    overwrite: bool = False,
    silent: bool = False,
    **changes: Any,
) -> Report:
    """Evaluate a model on tasks and return the report. With an output_dir, an earlier evaluation is continued.

    Args:
        model: a path, a Hub id, the directory of a LoRA adapter, or a model in memory with its tokenizer.
        tasks: math, medical, names, JSONL files, or Task objects.
        protocol: a name or a Protocol. None is the default for the kind of task (paper-math, li-medical).
        output_dir: where generations, grades and report are written. None writes nothing.
        data_dir: directory of local <task>.jsonl files, which are read instead of the Hub.
        limit: the number of problems of each task, the first ones. None is all problems.
        backend: auto, transformers or vllm.
        dtype: float32, bfloat16, … The default, auto, is bfloat16 on a GPU.
        batch_size: sequences per batch with transformers. None is as many as memory allows.
        tensor_parallel_size: number of GPUs for one model with vLLM.
        engine: further arguments of vLLM's engine, for example {"gpu_memory_utilization": 0.8}.
        seed_requests: whether every sample has its own seed with vLLM. Without seeds, sampling is faster but not
            repeatable.
        overwrite: move earlier results of these tasks aside and start again.
        changes: settings that replace those of the protocol: num_samples=4, prompt="plain", …

    Raises:
        ValueError: if output_dir has generations of these tasks that were made with other settings.
    """
    found = find_tasks(tasks)
    group = Group()
    if output_dir is None and group.count > 1:
        raise ValueError(f"{group.count} processes share their generations through files: set output_dir.")
    if any(task.grader is None for task in found):
        check_math_verify()  # before anything is generated
    with _directory_of_results(output_dir) as directory, Judges() as judges:
        inference_model = InferenceModel(
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
        for task in found:
            task_protocol = find_protocol(protocol, changes, multiple_choice=task.multiple_choice)
            runs.append(TaskRun(task, load_problems(task, data_dir, limit), task_protocol))
        if inference_model.backend == "vllm":
            for run in runs:
                prompts = encode_prompts(run, inference_model)
                inference_model.limit_context(prompts.values(), run.protocol.max_new_tokens)
        files = EvalDirectory(directory, group)
        if group.rank == 0:
            # Digesting the weights takes time, and nobody can continue what is not kept.
            identity = inference_model.identity() if output_dir is not None else {}
            start_tasks(files, runs, inference_model, identity, data_dir, overwrite)
        group.wait()
        grading = [sample_task(run, inference_model, files, judges, silent) for run in runs]
        for one in grading:
            grades = dict(group.gather(one.grades()))
            if group.rank == 0:
                write_grades(files, one.run, grades)
        group.wait()
        report = summarize(directory)
        if group.rank == 0 and output_dir is not None:
            report.write(files.path)
        group.wait()
        return report


def _directory_of_results(output_dir: str | Path | None) -> AbstractContextManager[str | Path]:
    """Where an evaluation is written: output_dir, or a temporary directory without one."""
    if output_dir is None:
        return TemporaryDirectory()
    return nullcontext(output_dir)


def rescore(
    output_dir: str | Path,
    tasks: TaskNames | None = None,
    *,
    data_dir: str | Path | None = None,
    rule: str | None = None,
) -> Report:
    """Grade existing generations again and return the report; needs no model.

    Args:
        tasks: None is all tasks of the evaluation.
        data_dir: where to read the problems; by default where they were read before.
        rule: another rule for multiple choice: boxed, li or m1.

    Raises:
        FileNotFoundError: if the directory has no evaluation.
    """
    files = EvalDirectory(output_dir)
    settings = files.settings()
    if not settings:
        raise FileNotFoundError(
            f"{shown(output_dir)} has no evaluation ({SETTINGS} is missing), so nothing to rescore."
        )
    with Judges() as judges:
        for task in _recorded_tasks(tasks, settings, output_dir):
            recorded = settings[task.name]
            protocol = Protocol(**{**recorded.protocol, "stop": tuple(recorded.protocol["stop"])})
            protocol = find_protocol(protocol, {} if rule is None else {"rule": rule})
            problems = load_problems(task, data_dir or recorded.data_dir, recorded.num_problems)
            run = TaskRun(task, problems, protocol)
            grading = Grading(run, judges)
            for generation in files.complete_generations(run):
                grading.submit(generation)
            settings[task.name] = replace(recorded, protocol=protocol.record())
            files.write_problems(task.name, problems)
            write_grades(files, run, dict(grading.grades()))
        files.write_settings(settings)
    report = summarize(output_dir)
    report.write(files.path)
    return report


def _recorded_tasks(
    tasks: TaskNames | None, settings: Mapping[str, TaskSettings], output_dir: str | Path
) -> list[Task]:
    """The tasks to rescore; those given by name are found where they were read before."""
    names = list(settings) if tasks is None else list_tasks(tasks)
    located = []
    for name in names:
        recorded = settings.get(name) if isinstance(name, str) else None
        located.append(recorded.path if recorded is not None and recorded.path is not None else name)
    found = find_tasks(located)
    for task in found:
        if task.name not in settings:
            raise ValueError(f"{shown(output_dir)} has no generations of {task.name!r}, only of {', '.join(settings)}.")
    return found


def start_tasks(
    files: EvalDirectory,
    runs: Sequence[TaskRun],
    inference_model: InferenceModel,
    identity: Mapping[str, Any],
    data_dir: str | Path | None,
    overwrite: bool,
) -> None:
    """Record the settings and problems of these tasks; ValueError if existing generations have other settings."""
    settings = files.settings()
    if overwrite:
        files.discard([run.name for run in runs])
    for run in runs:
        files.generations.repair(run.name)
        # An evaluation that failed to start left settings, but no generations: it does not bind the next one.
        if files.generations.has_records(run.name):
            check_unchanged(run, identity, settings.get(run.name), shown(files.path))
    for run in runs:
        settings.pop(run.name, None)  # the tasks evaluated last stand last
        settings[run.name] = TaskSettings(
            model=describe_model(inference_model),
            made_by={**identity, **run.sampling_settings()},
            protocol=run.protocol.record(),
            task=run.task.facts(),
            num_problems=len(run.problems),
            path=None if run.task.path is None else str(run.task.path.resolve()),
            data_dir=None if data_dir is None else str(Path(data_dir).resolve()),
        )
        files.write_problems(run.name, run.problems)
    files.write_settings(settings)


def check_unchanged(run: TaskRun, identity: Mapping[str, Any], recorded: TaskSettings | None, directory: str) -> None:
    """Raise ValueError if generations were made with other settings; more samples or problems only add to them."""
    what = f"{directory} has generations of {run.name!r}"
    if recorded is None:
        raise ValueError(f"{what}, but its {SETTINGS} does not say what made them. {START_AGAIN}")
    old = {"limit": recorded.num_problems, **recorded.made_by}
    new = {"limit": len(run.problems), **identity, **run.sampling_settings(recorded.num_problems)}
    allowed = {key for key in ("limit", "num_samples") if new[key] > old[key]}
    if new["limit"] < old["limit"]:
        allowed.add("prompts")  # a digest of prompts of which only some are here; the limit itself is reported
    changed = changed_settings(old, new, allowed=allowed)
    if changed:
        raise ValueError(f"{what} made with other settings: {'; '.join(changed)}. {START_AGAIN}")


def sample_task(
    run: TaskRun, inference_model: InferenceModel, files: EvalDirectory, judges: Judges, silent: bool
) -> Grading:
    """Sample this process's share of what is missing, and grade its share while the samples are drawn."""
    grading = Grading(run, judges)
    digests = run.sample_digests(files.settings()[run.name].made_by)
    share = files.generations.share(run.keys)

    def check_and_grade(record: Record) -> None:
        grading.submit(files.check_generation(record, run, digests))

    def sample(missing: Sequence[Key]) -> Iterator[Record]:
        prompts = encode_prompts(run, inference_model)
        requests = [Request(problem, number, prompts[problem]) for problem, number in missing]
        tokens = 0
        existing = len(share) - len(missing)
        show = not silent and files.group.rank == 0
        with Progress(run.name, len(share), "samples", done=existing, show=show) as progress:
            for generation in inference_model.sampler(run.protocol).sample(requests):
                yield {**generation.record(), "settings": digests[generation.problem]}
                tokens += generation.tokens
                rate = progress.per_second(tokens)
                progress.advance(1, f"{rate:,.0f} tokens/s{grading.accuracy_so_far()}")

    def grade_new(record: Record) -> None:
        grading.submit(Generation.from_record(record))

    files.generations.fill(run.name, run.keys, sample, on_existing=check_and_grade, on_new=grade_new)
    return grading


def write_grades(files: EvalDirectory, run: TaskRun, grades: Mapping[Key, Grade]) -> None:
    """Write the grades of a run in the order of its keys."""
    files.write_grades(run.name, {key: grades[key] for key in run.keys})


def encode_prompts(run: TaskRun, inference_model: InferenceModel) -> dict[str, tuple[int, ...]]:
    """The token ids of each problem's prompt."""
    tokenizer = inference_model.load_tokenizer()
    return {problem: tuple(encode(tokenizer, prompt)) for problem, prompt in run.prompts.items()}


def describe_model(inference_model: InferenceModel) -> dict[str, Any]:
    """What a report says about the model."""
    return {
        "model": inference_model.name,
        "context": inference_model.context_length,
        "backend": inference_model.backend,
        "dtype": inference_model.dtype,
        "reproducible": inference_model.samples_are_reproducible,
    }
