"""The demo from beginning to end: pretrain, teach, cache, fine-tune every method, measure every model.

Data-level methods first turn the noisy demonstrations into others, with the base's help.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from datasets import Dataset, load_from_disk
from rich.console import Console

from qsft.curate.context import CurationInputs
from qsft.curate.curation import curate
from qsft.curate.registry import Options
from qsft.data.sources import DataSettings
from qsft.demo.foundation import make_models
from qsft.demo.measure import LONGEST, Contexts, Knowledge, Measurement, knowledge, measure
from qsft.demo.results import BASE, TEACHER, TOKENS, Results, SeedResult
from qsft.demo.scenario import Method, Phases, Scenario, demonstrations, fit, load, save
from qsft.demo.world import EQUALS, ClockProblem, fact, make_tokenizer
from qsft.explore.tokens import tokens_page, xray
from qsft.page import write_page
from qsft.progress import quiet_libraries
from qsft.targets.registry import make_target
from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture.capture import build_cache

COLOURED = 128  # demonstrations on the page of tokens, among which the one to show is chosen
Memory = dict[Any, tuple[Path, Measurement]]  # by what a model is made from: see `run_seed`
SETTINGS: dict[str, dict[str, Any]] = {
    "rft": {"num_samples": 4, "max_new_tokens": LONGEST},
    "star": {"hint": "{question} the clock knows {gold}", "max_new_tokens": LONGEST},
    "grape": {"columns": "others"},
    "critical": {"alternatives": 2, "max_new_tokens": LONGEST},
}
OPTIONS = Options(gold="qsft.demo.world:answer", verifier="qsft.demo.world:verify", overwrite=True)
OTHERS = 3  # further demonstrators that GRAPE chooses from
ATTEMPTS = {"star": 2}  # at most: the second, with the hint, is for failures
MOST = {"critical": 512}  # problems: it tries every token, so it costs most


def run_worlds(
    worlds: Mapping[str, Scenario], seeds: int, methods: tuple[Method, ...], out: Path, console: Console
) -> dict[str, Results]:
    """The results of every world over `seeds` seeds; fine-tuned models are written below `out`.

    Methods that read no teacher are trained once for the same demonstrations.
    """
    memory: Memory = {}
    done = {}
    for name, scenario in worlds.items():
        console.print(f"\n[bold]the {name} world[/bold]" if name else "", highlight=False)
        found = []
        for seed in range(scenario.seed, scenario.seed + seeds):
            if seeds > 1:
                console.print(f"\n[bold]seed {seed}[/bold]", highlight=False)
            with quiet_libraries():
                place = out / name / f"seed-{seed}"
                found.append(run_seed(replace(scenario, seed=seed), methods, place, Phases(console), memory))
        done[name] = Results(methods, tuple(found))
    return done


def run_seed(scenario: Scenario, methods: Sequence[Method], out: Path, phases: Phases, memory: Memory) -> SeedResult:
    base, teacher = make_models(scenario, phases)
    data = demonstrations(scenario)
    cache = cache_teacher(scenario, data, teacher, phases)
    places = {BASE: base, TEACHER: teacher}
    models = {label: measure_model(label, place, scenario, phases) for label, place in places.items()}
    for method in methods:
        read = scenario.teacher if "teacher" in method.target.needs else None
        key = (scenario.seed, scenario.noise, read, method.slug)
        if key in memory:
            phases.say(method.label, "as with the other teacher: it reads none")
        else:
            place = fine_tune(scenario, method, data, base, cache, out / method.slug, phases)
            memory[key] = place, measure_model(method.label, place, scenario, phases)
        places[method.label], models[method.label] = memory[key]
    coloured = xray(load(base), make_tokenizer(), data, make_target("target_sft"), cache, n=COLOURED)
    tokens = write_page(out / "tokens.html", tokens_page(coloured, title="Demonstrations, token by token"))
    named = {TOKENS: tokens, "teacher cache": cache.path, **places}
    return SeedResult(
        scenario=scenario,
        models=models,
        knows={label: knowledge(load(place)) for label, place in places.items()},
        closed_form=compare(scenario, methods, places),
        demonstration=most_instructive(coloured),
        places={label: str(place) for label, place in named.items()},
        seconds=phases.seconds,
    )


def cache_teacher(scenario: Scenario, data: Dataset, teacher: Path, phases: Phases) -> TeacherCache:
    """The teacher's top-k on the demonstrations; it lies beside the teacher, and other noise only adds to it."""
    path = teacher.with_name(teacher.name.replace("teacher", "cache"))
    with phases.phase("cache the teacher", len(data), "documents") as progress:
        if path.exists() and not (found := TeacherCache(path).verify()).ok:
            found.drop()
        options: dict[str, Any] = {"top_k": scenario.top_k, "device": "cpu", "progress": False}
        cache = build_cache(data, str(teacher), path, tokenizer=make_tokenizer(), **options)
        progress.advance(len(data))
    return cache


def fine_tune(
    scenario: Scenario, method: Method, data: Dataset, base: Path, cache: TeacherCache, out: Path, phases: Phases
) -> Path:
    phase = scenario.fine_tuning
    if method.curate:
        data = curated_rows(scenario, method, data, base, out.with_name(f"{out.name}-data"), phases)
    if method.learning_rate is not None:
        phase = replace(phase, learning_rate=method.learning_rate)
    teacher = cache if "teacher" in method.target.needs else None
    target: dict[str, Any] = {"target": method.row, "target_kwargs": method.hparams}
    with phases.phase(f"fine-tune {method.label}", phase.steps, "steps") as progress:
        model = load(base)
        fit(model, data, phase, seed=scenario.seed, progress=progress, teacher=teacher, **target)
        save(model, out)
    return out


def curated_rows(scenario: Scenario, method: Method, data: Dataset, base: Path, out: Path, phases: Phases) -> Dataset:
    """As many documents as the demonstrations are, drawn from what a method makes of them: all train equally long."""
    name = str(method.curate)
    rows = data.select(range(min(len(data), MOST.get(name, len(data)))))
    rows = rows.add_column("others", other_demonstrations(rows, scenario)) if name == "grape" else rows
    responses = len(rows) * SETTINGS[name].get("num_samples", 1) * ATTEMPTS.get(name, 1)
    inputs = CurationInputs(rows, DataSettings(), load(base), make_tokenizer())
    with phases.phase(f"curate by {method.label}", responses, "responses") as progress:
        curate(name, SETTINGS[name], inputs, out, OPTIONS, watch=lambda record: progress.advance())
    made = load_from_disk(str(out)).shuffle(seed=scenario.seed)
    made = made.select_columns([name for name in ("input_ids", "labels", "critical") if name in made.column_names])
    return made.select([at % len(made) for at in range(len(data))])


def other_demonstrations(rows: Dataset, scenario: Scenario) -> list[list[str]]:
    """Further solutions to the same problems, by demonstrators who slip as often, without <eos>."""
    random, problems = Random(f"others {scenario.seed}"), map(ClockProblem.of, rows["input_ids"])
    write = scenario.demonstrator.solution
    return [[" ".join(write(problem, random)[:-1]) for _ in range(OTHERS)] for problem in problems]


def measure_model(label: str, place: Path, scenario: Scenario, phases: Phases) -> Measurement:
    answers = scenario.problems * (scenario.samples + 1)  # one more for greedy decoding
    with phases.phase(f"measure {label}", answers, "answers") as progress:
        return measure(load(place), scenario.evaluation, scenario.samples, progress)


def compare(
    scenario: Scenario, methods: Sequence[Method], places: Mapping[str, Path]
) -> dict[str, dict[str, Knowledge | None]]:
    """For every method: how likely the right result of a step should be, and is."""
    contexts = Contexts.of(scenario.evaluation)
    teacher = contexts.numbers(load(places[TEACHER]))
    return {
        method.label: {
            # What a data-level method writes has no distribution that is known beforehand.
            "closed form": None if method.curate else contexts.predicted(method.target, scenario.noise, teacher),
            "measured": contexts.right_by_kind(contexts.numbers(load(places[method.label]))),
        }
        for method in methods
    }


def most_instructive(coloured: Mapping[str, Any]) -> dict[str, Any]:
    """Of the X-ray's documents the one that shows most: a slip that is filtered, then a result that is rescued."""

    def shows(one: Mapping[str, Any]) -> int:
        filtered = any(token["slip"] and token["tag"] == "filter" for token in one["tokens"])
        return 2 * filtered + any(token["tag"] == "rescue" and token["word"].isdigit() for token in one["tokens"])

    return max((read_demonstration(one, coloured["vocabulary"]) for one in coloured["documents"]), key=shows)


def read_demonstration(document: Mapping[str, Any], vocabulary: Mapping[str, str]) -> dict[str, Any]:
    """A document of the X-ray in the world's words: by token p_θ, p_T, γ, the likeliest word of Q, slip and tag."""
    words, tokens = [vocabulary[str(token[2])] for token in document["tokens"]], []
    for at, (_, _, label, p, t, gamma, q, _, kind, others) in enumerate(document["tokens"]):
        favourite = max([(q, label), *((other[3], other[0]) for other in others)], key=lambda pair: pair[0])[1]
        is_result = at > 0 and words[at - 1] in EQUALS
        slip = is_result and int(words[at]) != fact(words[at - 3], int(words[at - 2]))
        tag = kind if kind in ("rescue", "filter") else ""  # nothing where the base finds the token likely
        said = {"word": words[at], "student": p, "teacher": t, "gamma": gamma, "favourite": vocabulary[str(favourite)]}
        tokens.append({**said, "slip": slip, "tag": tag})
    return {"question": document["prompt"].partition(" ")[2], "tokens": tokens}
