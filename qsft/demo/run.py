"""The demo from beginning to end: pretrain, teach, cache, fine-tune every method, measure every model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from datasets import Dataset
from rich.console import Console

from qsft.demo.closed_form import Comparison, Contexts
from qsft.demo.curated import curated_rows
from qsft.demo.data import demonstrations
from qsft.demo.fit import fit
from qsft.demo.measure import Measurement, measure
from qsft.demo.methods import Method
from qsft.demo.models import load, make_base, make_teacher, save
from qsft.demo.progress import Phases, quiet_libraries
from qsft.demo.results import BASE, TEACHER, Results, SeedResult
from qsft.demo.settings import Settings
from qsft.demo.vocabulary import make_tokenizer
from qsft.demo.world import Problem, evaluation_problems
from qsft.demo.xray import most_instructive
from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture import build_cache


def run(
    settings: Settings, seeds: int, methods: tuple[Method, ...], out: Path, console: Console, *, quick: bool = False
) -> Results:
    """The results of `seeds` worlds; fine-tuned models are written below `out`."""
    settings = settings.quick() if quick else settings
    done = []
    for seed in range(settings.seed, settings.seed + seeds):
        console.print(f"\n[bold]seed {seed}[/bold]" if seeds > 1 else "", highlight=False)
        with quiet_libraries():
            done.append(run_seed(replace(settings, seed=seed), methods, out / f"seed-{seed}", Phases(console)))
    return Results(methods, tuple(done), quick)


def run_seed(settings: Settings, methods: Sequence[Method], out: Path, phases: Phases) -> SeedResult:
    """One world: its models, their measurements and what stands beside them."""
    base = make_base(settings, phases)
    teacher = make_teacher(settings, base, phases)
    data = demonstrations(settings)
    cache = cache_teacher(settings, data, teacher, phases)
    places = {BASE: base, TEACHER: teacher}
    for method in methods:
        places[method.label] = fine_tune(settings, method, data, base, cache, out / method.slug, phases)
    problems = evaluation_problems(settings.problems, settings.seed)
    models = {label: measure_model(label, place, problems, settings, phases) for label, place in places.items()}
    return SeedResult(
        settings=settings,
        models=models,
        closed_form=compare(settings, methods, problems, places),
        demonstration=most_instructive(load(base), data, cache),
        places={"teacher cache": str(cache.path), **{label: str(place) for label, place in places.items()}},
        seconds=phases.seconds,
    )


def cache_teacher(settings: Settings, data: Dataset, teacher: Path, phases: Phases) -> TeacherCache:
    """The teacher's top-k on the demonstrations; it lies beside the teacher, and other noise only adds to it."""
    path = teacher.with_name(teacher.name.replace("teacher", "cache"))
    with phases.phase("cache the teacher", len(data), "documents") as advance:
        if path.exists() and not (found := TeacherCache(path).verify()).ok:
            found.drop()
        cache = build_cache(
            data, str(teacher), path, tokenizer=make_tokenizer(), k=settings.top_k, device="cpu", progress=False
        )
        advance(len(data))
    return cache


def fine_tune(
    settings: Settings, method: Method, data: Dataset, base: Path, cache: TeacherCache, out: Path, phases: Phases
) -> Path:
    """The directory of the base tuned by one method."""
    phase = settings.fine_tuning
    if method.curate:
        data = curated_rows(settings, method, data, base, out.with_name(f"{out.name}-data"), phases)
    if method.learning_rate is not None:
        phase = replace(phase, learning_rate=method.learning_rate)
    with phases.phase(f"fine-tune {method.label}", phase.steps, "steps") as advance:
        model = fit(
            load(base),
            data,
            phase,
            seed=settings.seed,
            directory=out,
            advance=advance,
            teacher=cache if "teacher" in method.target.needs else None,
            target=method.row,
            target_kwargs=method.hparams,
        )
        save(model, out)
    return out


def measure_model(
    label: str, place: Path, problems: Sequence[Problem], settings: Settings, phases: Phases
) -> Measurement:
    """The measurement of a saved model."""
    with phases.phase(f"measure {label}", len(problems) * settings.samples, "samples") as advance:
        return measure(load(place), problems, settings.samples, advance)


def compare(
    settings: Settings, methods: Sequence[Method], problems: Sequence[Problem], places: dict[str, Path]
) -> dict[str, Comparison]:
    """For every method: how likely the right result of a step should be, and is."""
    contexts = Contexts.of(problems)
    teacher = contexts.numbers(load(places[TEACHER]))
    return {
        method.label: {
            # What a data-level method writes has no distribution that is known beforehand.
            "closed form": None if method.curate else contexts.predicted(method.target, settings.noise, teacher),
            "measured": contexts.right_by_kind(contexts.numbers(load(places[method.label]))),
        }
        for method in methods
    }
