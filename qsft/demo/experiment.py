"""The demo from beginning to end: pretrain, teach, cache, fine-tune with every method, measure every model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset
from rich.console import Console

from qsft.demo.curated import curated_demonstrations
from qsft.demo.documents import demonstrations
from qsft.demo.foundation import make_models
from qsft.demo.knowledge import Contexts, Knowledge, known_facts
from qsft.demo.measure import Measurement, measure
from qsft.demo.methods import Method
from qsft.demo.results import TEACHER, TEACHER_CACHE, TOKENS_PAGE, Results, SeedResult
from qsft.demo.scenario import Scenario
from qsft.demo.task import EQUALS, fact, make_tokenizer
from qsft.demo.training import Phases, fit, load, save
from qsft.explore.token_xray import tokens_page, xray
from qsft.page import write_page
from qsft.progress import quiet_libraries
from qsft.run_directory import BASE
from qsft.targets.registry import make_target
from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture.capture import build_cache
from qsft.teacher.format.shards import VERSION

COLORED_DOCUMENTS = 128  # demonstrations on the page of tokens; the one in the report is chosen from them


@dataclass(frozen=True)
class TrainedModel:
    """A fine-tuned model and its accuracy."""

    path: Path
    measurement: Measurement


# Fine-tuned models by what they are made from: seed, noise, the teacher if the method reads it, the method's slug.
TrainedModels = dict[tuple[int, float, str | None, str], TrainedModel]


def run_scenarios(
    scenarios: Mapping[str, Scenario], seeds: int, methods: tuple[Method, ...], output_dir: Path, console: Console
) -> dict[str, Results]:
    """Run every scenario over `seeds` seeds and return the results by scenario.

    Fine-tuned models are written below `output_dir`. Methods that read no teacher are trained once for the same
    demonstrations.
    """
    trained: TrainedModels = {}
    results = {}
    for name, scenario in scenarios.items():
        console.print(f"\n[bold]scenario: {name}[/bold]" if name else "", highlight=False)
        seed_results = []
        for seed in range(scenario.seed, scenario.seed + seeds):
            if seeds > 1:
                console.print(f"\n[bold]seed {seed}[/bold]", highlight=False)
            directory = output_dir / name / f"seed-{seed}"
            with quiet_libraries():
                result = run_seed(replace(scenario, seed=seed), methods, directory, Phases(console), trained)
            seed_results.append(result)
        results[name] = Results(methods, tuple(seed_results))
    return results


def run_seed(
    scenario: Scenario, methods: Sequence[Method], output_dir: Path, phases: Phases, trained: TrainedModels
) -> SeedResult:
    """Run one seed of one scenario.

    Args:
        trained: models of other scenarios, which are used again; new ones are added.
    """
    base, teacher = make_models(scenario, phases)
    data = demonstrations(scenario)
    cache = cache_teacher(scenario, data, teacher, phases)
    paths = {BASE: base, TEACHER: teacher}
    measurements = {label: measure_model(label, path, scenario, phases) for label, path in paths.items()}
    for method in methods:
        key = (scenario.seed, scenario.noise, scenario.teacher if method.reads_teacher else None, method.slug)
        if key in trained:
            phases.note(method.label, "already trained: it reads no teacher, and the demonstrations are the same")
        else:
            path = fine_tune(scenario, method, data, base, cache, output_dir / method.slug, phases)
            trained[key] = TrainedModel(path, measure_model(method.label, path, scenario, phases))
        paths[method.label] = trained[key].path
        measurements[method.label] = trained[key].measurement
    colored = xray(load(base), make_tokenizer(), data, make_target("target_sft"), cache, n=COLORED_DOCUMENTS)
    tokens = write_page(output_dir / "tokens.html", tokens_page(colored, title="Demonstrations, token by token"))
    named_paths = {TOKENS_PAGE: tokens, TEACHER_CACHE: cache.path, **paths}
    return SeedResult(
        scenario=scenario,
        models=measurements,
        knows={label: known_facts(load(path)) for label, path in paths.items()},
        closed_form=compare_with_closed_form(scenario, methods, paths),
        demonstration=most_instructive_demonstration(colored),
        paths={label: str(path) for label, path in named_paths.items()},
        seconds=phases.seconds,
    )


def cache_teacher(scenario: Scenario, data: Dataset, teacher: Path, phases: Phases) -> TeacherCache:
    """Return the teacher's top-k on the demonstrations.

    The cache is kept beside the teacher; demonstrations with other noise are added to it.
    """
    # A new format of caches has other directories, so that a cache of an earlier format is not in the way.
    path = teacher.with_name(teacher.name.replace("teacher", f"cache{VERSION}"))
    with phases.phase("cache the teacher", len(data), "documents") as progress:
        if path.exists():
            verification = TeacherCache(path).verify()
            if not verification.ok:
                verification.drop()
        cache = build_cache(
            data,
            str(teacher),
            path,
            tokenizer=make_tokenizer(),
            top_k=scenario.top_k,
            device="cpu",
            progress=False,
        )
        progress.advance(len(data))
    return cache


def fine_tune(
    scenario: Scenario, method: Method, data: Dataset, base: Path, cache: TeacherCache, output_dir: Path, phases: Phases
) -> Path:
    """Fine-tune the base with one method and return the model's directory."""
    phase = scenario.fine_tuning
    if method.learning_rate is not None:
        phase = replace(phase, learning_rate=method.learning_rate)
    if method.curate is not None:
        curated_dir = output_dir.with_name(f"{output_dir.name}-data")
        data = curated_demonstrations(method.curate, scenario, data, base, curated_dir, phases, method.label)
    with phases.phase(f"fine-tune {method.label}", phase.steps, "steps") as progress:
        model = load(base)
        fit(
            model,
            data,
            phase,
            seed=scenario.seed,
            progress=progress,
            target_name=method.target_name,
            hyper_parameters=method.hyper_parameters,
            teacher=cache if method.reads_teacher else None,
        )
        save(model, output_dir)
    return output_dir


def measure_model(label: str, path: Path, scenario: Scenario, phases: Phases) -> Measurement:
    """Return the accuracy of a model on the scenario's evaluation problems."""
    responses = scenario.problems * (scenario.samples + 1)  # one more for greedy decoding
    with phases.phase(f"measure {label}", responses, "responses") as progress:
        return measure(load(path), scenario.evaluation, scenario.samples, progress)


def compare_with_closed_form(
    scenario: Scenario, methods: Sequence[Method], paths: Mapping[str, Path]
) -> dict[str, dict[str, Knowledge | None]]:
    """Return for every method how likely the right result of a step is in theory, and how likely it was measured."""
    contexts = Contexts.of_problems(scenario.evaluation)
    teacher = contexts.number_probs(load(paths[TEACHER]))
    found: dict[str, dict[str, Knowledge | None]] = {}
    for method in methods:
        # The distribution of what a data-level method writes is not known beforehand.
        closed_form = None if method.curate else contexts.predict(method.target, scenario.noise, teacher)
        measured = contexts.right_by_kind(contexts.number_probs(load(paths[method.label])))
        found[method.label] = {"closed form": closed_form, "measured": measured}
    return found


def most_instructive_demonstration(colored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of `xray` that shows most: a slip that is filtered, then a result that is rescued."""

    def score(demonstration: Mapping[str, Any]) -> int:
        tokens = demonstration["tokens"]
        has_filtered_slip = any(token["slip"] and token["tag"] == "filter" for token in tokens)
        has_rescued_result = any(token["tag"] == "rescue" and token["word"].isdigit() for token in tokens)
        return 2 * int(has_filtered_slip) + int(has_rescued_result)

    read = [read_demonstration(document, colored["vocabulary"]) for document in colored["documents"]]
    return max(read, key=score)


def read_demonstration(document: Mapping[str, Any], vocabulary: Mapping[str, str]) -> dict[str, Any]:
    """Return the question of a document of `xray`, and per token p_θ, p_T, γ, the likeliest word of Q, slip, tag."""
    words = [vocabulary[str(token["label"])] for token in document["tokens"]]
    tokens = []
    for index, token in enumerate(document["tokens"]):
        likeliest = max([token, *token["alternatives"]], key=lambda candidate: candidate["q"])
        likeliest_id = token["label"] if likeliest is token else likeliest["token"]
        is_result = index > 0 and words[index - 1] in EQUALS
        is_slip = is_result and int(words[index]) != fact(words[index - 3], int(words[index - 2]))
        tokens.append(
            {
                "word": words[index],
                "student": token["p"],
                "teacher": token["t"],
                "gamma": token["gamma"],
                "top_of_q": vocabulary[str(likeliest_id)],
                "slip": is_slip,
                # Tokens that the base finds likely have no tag.
                "tag": token["quadrant"] if token["quadrant"] in ("rescue", "filter") else "",
            }
        )
    return {"question": document["prompt"].partition(" ")[2], "tokens": tokens}
