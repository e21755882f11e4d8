"""One task under one protocol, graded while it is drawn, and what an evaluation keeps of its tasks.

The directory: settings.json, and problems/, generations/ and grades/ with one JSONL file per task.
Every line carries a digest of itself, and a generation one of the settings that drew it: a damaged line is named, and
one that another model or protocol made is never taken for this one's.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from qsft.data.prompts import Prompt, find_preset
from qsft.evals.grade import Grade, better_reading
from qsft.evals.judge import Judges
from qsft.evals.protocol import Protocol
from qsft.evals.report import percent
from qsft.evals.stats import READINGS, Result
from qsft.evals.tasks import Problem, Task
from qsft.files import make_directory, read_json, read_lines, shown, write_json, write_lines
from qsft.fingerprints import digest_json
from qsft.inference.sampling import Generation
from qsft.ledger import Key, Ledger, Record, check_stage, key_of
from qsft.processes import Group

REMEDY = "Delete the line (it is sampled again), or start with --fresh."
LOST = "Restore the file; or delete it and start with --fresh, since nothing says then what made the generations."
AGAIN = "Grade again with `qsft eval … --rescore`."


@dataclass(frozen=True)
class TaskRun:
    """One task to be measured under one protocol."""

    task: Task
    problems: Sequence[Problem] = field(repr=False)
    protocol: Protocol

    @property
    def name(self) -> str:
        return self.task.name

    @cached_property
    def by_id(self) -> dict[str, Problem]:
        return {problem.id: problem for problem in self.problems}

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        preset = find_preset(self.protocol.prompt)
        ask = self.task.prompt or (lambda problem: preset.prompt(problem.question, problem.options))
        return {problem.id: ask(problem) for problem in self.problems}

    @property
    def keys(self) -> list[Key]:
        return [(problem.id, sample) for problem in self.problems for sample in range(self.protocol.num_samples)]

    def record(self, first: int | None = None) -> dict[str, Any]:
        """The settings that generations (of the first problems) depend on; how they are graded may change."""
        settings = {name: value for name, value in self.protocol.record().items() if name not in ("rule", "prompt")}
        return {**settings, "prompts": digest_json([list(one) for one in self.prompts.items()][:first])}

    def digests(self, made_by: Mapping[str, Any]) -> dict[str, str]:
        """What decides the text of each problem's samples: model, sampling and its own prompt, as one digest."""
        settings = {key: value for key, value in made_by.items() if key not in ("num_samples", "prompts")}
        return {problem: digest_json([settings, prompt]) for problem, prompt in self.prompts.items()}

    def result(self, generations: Sequence[Generation], graded: Mapping[Key, Grade]) -> Result:
        """The result; by the paper's rule the better of the two readings of its multiple-choice responses."""
        grades, reading = [graded[key] for key in self.keys], None
        if self.task.multiple_choice and any(one.choices for one in grades):
            reading = "boxed"
            if self.protocol.rule == "paper":
                reading, grades = better_reading(grades, [self.by_id[one.problem].gold for one in generations])
        return Result(self.name, self.protocol.num_samples, generations, grades, self.problems, reading)

    def notes(self, result: Result, about: Mapping[str, Any]) -> list[str]:
        name, grades, notes = self.name, result.grades, []
        if self.protocol.temperature == 0:
            notes.append("greedy: one response per prompt, so the interval is over problems only.")
        elif about["independent"]:
            notes.append("float32, seeded per sample: batching, processes and resuming do not change samples.")
        else:
            how = f"{about['backend']} in {about['dtype']}"
            notes.append(f"{how}: rounding depends on the batch, so batching may change samples from run to run.")
        if self.task.rows not in (None, len(self.problems)):
            notes.append(f"{name}: {len(self.problems)} of the {self.task.rows} published problems.")
        if result.reading is not None:
            boxed, first, last = (percent(result.readings()[key]) for key in ("boxed", "first", "last"))
            notes.append(
                f"{name}: read by {READINGS[result.reading]}. Right by box {boxed} %, by the paper's first match "
                f"{first} %, by its last {last} %."
            )
        longest = self.protocol.max_new_tokens
        if cut := sum(one.finish == "length" and one.tokens < longest for one in result.generations):
            notes.append(f"{name}: {cut} responses ended at the model's context of {about['context']} tokens.")
        if late := sum(one.timed_out for one in grades):
            notes.append(f"{name}: {late} responses took the grader too long and count as wrong.")
        if failures := [one.failure.partition(":")[0] for one in grades if one.failure]:
            kinds = f"{', '.join(sorted(set(failures)))}; grades/ has each"
            notes.append(f"{name}: the grader stumbled over {len(failures)} responses, which count as wrong ({kinds}).")
        return notes


class Grading:
    """The grades of a run's generations: by the task's own grader here, else by judges in other processes."""

    def __init__(self, run: TaskRun, judges: Judges, generations: Iterable[Generation] = ()) -> None:
        self.run, self.judges = run, judges
        self._futures: dict[Key, Future[Grade]] = {}
        self._done: deque[Future[Grade]] = deque()  # judges answer in threads of their own; counted in this one
        self._graded = self._right = 0
        for generation in generations:
            self.submit(generation)

    def submit(self, generation: Generation) -> None:
        problem, task = self.run.by_id[generation.problem], self.run.task
        future: Future[Grade] = Future()
        if task.grader is None:
            options, rule = problem.options, self.run.protocol.rule
            future = self.judges.submit(generation.text, problem.gold, options=options, rule=rule)
        else:
            graded = task.grader(generation, problem)
            future.set_result(graded if isinstance(graded, Grade) else Grade(graded, graded, generation.text))
        self._futures[generation.key] = future
        future.add_done_callback(self._done.append)

    def grades(self) -> list[tuple[Key, Grade]]:
        return [(key, future.result()) for key, future in self._futures.items()]

    def so_far(self) -> str:
        while self._done:
            self._right += self._done.popleft().result().correct
            self._graded += 1
        share = 100 * self._right / max(1, self._graded)
        return f", accuracy {share:.1f} % of {self._graded:,} graded" if self._graded else ""


class EvalDirectory:
    """An evaluation's files."""

    def __init__(self, path: str | Path, group: Group | None = None) -> None:
        self.path, self.group = Path(path), group or Group()
        if self.path.exists():
            make_directory(self.path, "the evaluation's directory")
        self.generations = Ledger(self.path / "generations", self.group, remedy=REMEDY)

    def settings(self) -> dict[str, Any]:
        path = self.path / "settings.json"
        recorded = read_json(path, LOST) if path.is_file() else {}
        for task, one in recorded.items():
            keys = ("about", "made_by", "protocol", "limit")
            if not isinstance(one, dict) or any(key not in one for key in keys) or not is_whole(one):
                raise ValueError(f"{shown(path)}: the settings of {task!r} are damaged. {LOST}")
        return recorded

    def write_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        write_json(self.path / "settings.json", {task: sealed(one) for task, one in settings.items()})

    def other_results(self, done: Sequence[str], settings: Record) -> tuple[dict[str, Result], dict[str, str]]:
        """The complete results of the directory's other tasks; those that do not belong here, with the reason."""
        results: dict[str, Result] = {}
        left_out: dict[str, str] = {}
        model = settings[done[0]]["made_by"].get("model")
        for task, one in settings.items():
            if task in done:
                continue
            graded = (self.path / "grades" / f"{task}.jsonl").is_file()
            if one["made_by"].get("model") != model:
                left_out[task] = "other weights answered it"
            elif not self.generations.holds(task):
                left_out[task] = "its generations are lost"
            elif not graded or len(self.generations.read(task)) < one["limit"] * one["protocol"]["num_samples"]:
                left_out[task] = "it is not finished"
            else:
                results[task] = read_result(self.path, task, one.get("reading"))
        return results, left_out

    def drawn(self, run: TaskRun) -> dict[Key, Generation]:
        """The generations so far, each whole and drawn with the settings that are recorded."""
        found, made_by = self.generations.read(run.name), self._made_by(run)
        for (problem, sample), record in found.items():
            where = f"{shown(self.path / 'generations')}/{run.name}*.jsonl: problem {problem}, sample {sample}"
            if not is_whole(record):
                raise ValueError(f"{where} is damaged. {REMEDY}")
            if "settings" in record and problem in made_by and record["settings"] != made_by[problem]:
                raise ValueError(f"{where} was drawn with other settings than settings.json says. {REMEDY}")
        return {key: _generation(record) for key, record in found.items()}

    def append(self, run: TaskRun, drawn: Iterable[Generation]) -> Iterator[Generation]:
        """Pass generations on, each written before it is passed; their token ids are not kept."""
        made_by = self._made_by(run)
        rows = (sealed({**one.record(), "settings": made_by.get(one.problem)}) for one in drawn)
        yield from map(_generation, self.generations.append(run.name, rows))

    def finish(self, run: TaskRun) -> list[Generation]:
        """The complete generations in the order of the run's keys, on disk one file."""
        self.drawn(run)
        return [_generation(record) for record in self.generations.settle(run.name, run.keys)]

    def _made_by(self, run: TaskRun) -> dict[str, str]:
        return run.digests(self.settings()[run.name]["made_by"])

    def write_result(self, result: Result) -> None:
        pairs = zip(result.generations, result.grades, strict=True)
        grades = ({"problem": one.problem, "sample": one.sample, **asdict(grade)} for one, grade in pairs)
        for name, rows in (("grades", grades), ("problems", map(asdict, result.problems))):
            write_lines(self.path / name / f"{result.task}.jsonl", map(sealed, rows))


def graded_tasks(directory: Path) -> list[str]:
    found = sorted((directory / "grades").glob("*.jsonl"))
    if not found:
        raise FileNotFoundError(f"{shown(directory)} holds no graded evaluation. Run `qsft eval` into it first.")
    return [path.stem for path in found]


def read_result(directory: Path, task: str, reading: str | None = None) -> Result:
    """The graded generations of a task, as an evaluation left them; texts are empty where they are lost."""
    check_stage(task)
    records: dict[str, list[Record]] = {}
    for kind, remedy in {"generations": REMEDY, "grades": AGAIN, "problems": AGAIN}.items():
        path = directory / kind / f"{task}.jsonl"
        records[kind] = list(read_lines(path, remedy=remedy)) if path.is_file() else []
        if damaged := [number for number, row in enumerate(records[kind], start=1) if not is_whole(row)]:
            raise ValueError(f"{shown(path)}:{damaged[0]}: damaged, its digest does not match. {remedy}")
    texts = {key_of(record, directory): _generation(record) for record in records["generations"]}
    keys = [key_of(record, directory) for record in records["grades"]]
    where = shown(directory)
    if lost := [f"problem {one}, sample {i}, which was graded" for one, i in keys if texts and (one, i) not in texts]:
        raise ValueError(f"{where}/generations/{task}.jsonl lacks {lost[0]}.")
    if not keys or (texts and len(keys) != len(texts)):
        raise ValueError(f"{where}/grades/{task}.jsonl has {len(keys)} grades of {len(texts)} generations. {AGAIN}")
    return Result(
        task,
        len(keys) // len({problem for problem, _ in keys}),
        [texts.get(key, Generation(*key, "", 0, "stop")) for key in keys],
        [Grade(**_fields(Grade, record)) for record in records["grades"]],
        [Problem(**_fields(Problem, record)) for record in records["problems"]],
        reading,
    )


def sealed(record: Mapping[str, Any]) -> Record:
    content = {key: value for key, value in record.items() if key != "check"}
    return {**content, "check": digest_json(content)}


def is_whole(record: Mapping[str, Any]) -> bool:
    """Whether a record is as it was written; those of version 0.1 do not say."""
    return "check" not in record or sealed(record)["check"] == record["check"]


def _generation(record: Record) -> Generation:
    problem = record["problem"] if "problem" in record else record["document"]  # version 0.1
    return Generation(problem, *(record[name] for name in ("sample", "text", "tokens", "finish")))


def _fields(kind: Any, record: Record) -> dict[str, Any]:
    return {item.name: record[item.name] for item in fields(kind) if item.name in record}
