"""The demo from beginning to end: pretrain, teach, cache, fine-tune every method, measure every model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from datasets import Dataset
from rich.console import Console

from qsft.demo.contexts import Comparison, Contexts, knowledge
from qsft.demo.curated import curated_rows
from qsft.demo.demonstration import most_instructive
from qsft.demo.foundation import make_models
from qsft.demo.measure import Measurement, measure
from qsft.demo.methods import Method
from qsft.demo.results import BASE, TEACHER, TOKENS, Results, SeedResult
from qsft.demo.scenario import Scenario, demonstrations
from qsft.demo.training import Phases, fit, load, save
from qsft.demo.vocabulary import make_tokenizer
from qsft.explore.tokens import tokens_page, xray
from qsft.page import write_page
from qsft.progress import quiet_libraries
from qsft.targets.zoo import make_target
from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture import build_cache

CANDIDATES, COLOURED = 128, 12  # demonstrations among which the one to show is chosen; on the page of tokens
Memory = dict[tuple[int, float, str], tuple[Path, Measurement]]  # seed, noise, method → what no teacher can change


def run(
    scenario: Scenario,
    seeds: int,
    methods: tuple[Method, ...],
    out: Path,
    console: Console,
    *,
    quick: bool = False,
    memory: Memory | None = None,
) -> Results:
    """The results of `seeds` worlds; fine-tuned models are written below `out`.

    Scenarios that share a `memory` train and measure the methods that read no teacher once for the same demonstrations.
    """
    scenario, memory = scenario.quick() if quick else scenario, {} if memory is None else memory
    done = []
    for seed in range(scenario.seed, scenario.seed + seeds):
        console.print(f"\n[bold]seed {seed}[/bold]" if seeds > 1 else "", highlight=False)
        with quiet_libraries():
            here, phases = replace(scenario, seed=seed), Phases(console)
            done.append(run_seed(here, methods, out / f"seed-{seed}", phases, memory))
    return Results(methods, tuple(done), quick)


def run_seed(scenario: Scenario, methods: Sequence[Method], out: Path, phases: Phases, memory: Memory) -> SeedResult:
    """One world: its models, their measurements and what stands beside them."""
    base, teacher = make_models(scenario, phases)
    data = demonstrations(scenario)
    cache = cache_teacher(scenario, data, teacher, phases)
    places = {BASE: base, TEACHER: teacher}
    models = {label: measure_model(label, place, scenario, phases) for label, place in places.items()}
    for method in methods:
        key = (scenario.seed, scenario.noise, method.slug)
        if key in memory:
            phases.say(method.label, "as with the other teacher: it reads none")
            places[method.label], models[method.label] = memory[key]
            continue
        place = fine_tune(scenario, method, data, base, cache, out / method.slug, phases)
        places[method.label], models[method.label] = place, measure_model(method.label, place, scenario, phases)
        if "teacher" not in method.target.needs:
            memory[key] = place, models[method.label]
    target, shown = make_target("target"), data.select(range(min(CANDIDATES, len(data))))
    coloured = xray(load(base), make_tokenizer(), shown, target, cache, n=COLOURED)
    tokens = write_page(out / "tokens.html", tokens_page(coloured, title="Demonstrations, token by token"))
    return SeedResult(
        scenario=scenario,
        models=models,
        knows={label: knowledge(load(place)) for label, place in places.items()},
        closed_form=compare(scenario, methods, places),
        demonstration=most_instructive(load(base), shown, cache, target),
        places={
            TOKENS: str(tokens),
            "teacher cache": str(cache.path),
            **{label: str(place) for label, place in places.items()},
        },
        seconds=phases.seconds,
    )


def cache_teacher(scenario: Scenario, data: Dataset, teacher: Path, phases: Phases) -> TeacherCache:
    """The teacher's top-k on the demonstrations; it lies beside the teacher, and other noise only adds to it."""
    path = teacher.with_name(teacher.name.replace("teacher", "cache"))
    with phases.phase("cache the teacher", len(data), "documents") as progress:
        if path.exists() and not (found := TeacherCache(path).verify()).ok:
            found.drop()
        cache = build_cache(
            data, str(teacher), path, tokenizer=make_tokenizer(), k=scenario.top_k, device="cpu", progress=False
        )
        progress.advance(len(data))
    return cache


def fine_tune(
    scenario: Scenario, method: Method, data: Dataset, base: Path, cache: TeacherCache, out: Path, phases: Phases
) -> Path:
    """The directory of the base tuned by one method."""
    phase = scenario.fine_tuning
    if method.curate:
        data = curated_rows(scenario, method, data, base, out.with_name(f"{out.name}-data"), phases)
    if method.learning_rate is not None:
        phase = replace(phase, learning_rate=method.learning_rate)
    with phases.phase(f"fine-tune {method.label}", phase.steps, "steps") as progress:
        model = load(base)
        fit(
            model,
            data,
            phase,
            seed=scenario.seed,
            progress=progress,
            teacher=cache if "teacher" in method.target.needs else None,
            target=method.row,
            target_kwargs=method.hparams,
        )
        save(model, out)
    return out


def measure_model(label: str, place: Path, scenario: Scenario, phases: Phases) -> Measurement:
    """The measurement of a saved model."""
    answers = scenario.problems * (scenario.samples + 1)  # one more for greedy decoding
    with phases.phase(f"measure {label}", answers, "answers") as progress:
        return measure(load(place), scenario.evaluation, scenario.samples, progress)


def compare(scenario: Scenario, methods: Sequence[Method], places: Mapping[str, Path]) -> dict[str, Comparison]:
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
