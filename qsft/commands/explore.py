"""`qsft explore`: pictures of targets, tokens, alignment and runs, each one HTML file."""

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qsft.recipe.job import Job

EXAMPLES = """\
examples:
  qsft explore targets                                     every target with sliders
  qsft explore tokens numina_qwen_math_1p5b --n 20         documents of a recipe, token by token
  qsft explore tokens --model out --teacher_cache CACHE    documents that the cache keeps, without a data set
  qsft explore tokens RECIPE --target kd_hybrid c=0.5      as another target sees them
  qsft explore alignment numina_qwen_math_1p5b --n 500     correction, noise or agreement? also as JSON
  qsft explore run out/sft out/target                      training curves over each other
"""


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `qsft explore` and its pictures."""
    form = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(
        "explore",
        help="pictures as HTML files: targets, tokens, alignment, run curves",
        description="Make a picture: one HTML file that works offline.",
        epilog=EXAMPLES,
        formatter_class=form,
    )
    parser.set_defaults(run=lambda args: parser.print_help())
    pictures = parser.add_subparsers(title="pictures", metavar="PICTURE")
    targets = pictures.add_parser("targets", help="every target with sliders: loss, gradient, Q, where training goes")
    targets.add_argument("--out", default="targets.html", metavar="FILE", help="(default: %(default)s)")
    targets.set_defaults(run=run_targets)
    _register_data(pictures, "tokens", 20, "documents coloured token by token", run_tokens)
    _register_data(pictures, "alignment", 200, "where teacher and student disagree, and what that says", run_alignment)
    run = pictures.add_parser("run", help="training curves of one or several runs")
    run.add_argument("directories", nargs="+", metavar="OUTPUT_DIR")
    run.add_argument("--out", default="run.html", metavar="FILE", help="(default: %(default)s)")
    run.set_defaults(run=run_run)


def _register_data(pictures: Any, name: str, n: int, words: str, run: Any) -> None:
    parser = pictures.add_parser(
        name,
        help=words,
        description=f"Show {words}: of a RECIPE (its keys may be replaced: --key value), or of a model and a cache.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --dataset is a key of the recipe, not the beginning of --dataset_path
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="a recipe file or the name of a packaged recipe")
    parser.add_argument("--model", metavar="MODEL", help="the student: a path or hub id (default: the recipe's)")
    parser.add_argument("--teacher_cache", metavar="DIR", help="the teacher's cache (default: the recipe's)")
    parser.add_argument(
        "--target",
        nargs="+",
        metavar=("NAME", "KEY=VALUE"),
        help="the target to look at, such as: target eta=0.2 (default: the recipe's, or target)",
    )
    parser.add_argument("--dataset_path", help="input_ids and labels: a save_to_disk directory, .parquet or .jsonl")
    parser.add_argument("--n", type=int, default=n, help="documents to look at, drawn at random (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    parser.add_argument("--out", default=f"{name}.html", metavar="FILE", help="(default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers as JSON as well")
    parser.set_defaults(run=run, takes_overrides=True)


class Subject(NamedTuple):
    """What a picture is made of."""

    model: Any
    tokenizer: Any
    documents: "Iterable[Mapping[str, Any]]"
    target: Any
    teacher: Any


def run_targets(args: argparse.Namespace) -> int:
    """Write the target explorer."""
    from qsft.explore.targets import targets_page

    print("computing the tables of every target, some ten seconds ...", flush=True)
    return _write(args.out, targets_page())


def run_run(args: argparse.Namespace) -> int:
    """Write the curves of the given runs."""
    from qsft.explore.runs import read_runs, run_page

    return _write(args.out, run_page(read_runs(args.directories)))


def run_tokens(args: argparse.Namespace) -> int:
    """Write the token X-ray."""
    from qsft.explore.tokens import tokens_page, xray

    subject = _subject(args)
    data = xray(subject.model, subject.tokenizer, subject.documents, subject.target, subject.teacher, n=args.n)
    _write_json(args.json, data)
    return _write(args.out, tokens_page(data))


def run_alignment(args: argparse.Namespace) -> int:
    """Write the alignment and say in words what it shows."""
    from qsft.explore.alignment import comparable_targets, measure_alignment
    from qsft.explore.heatmap import alignment_page
    from qsft.explore.reading import in_words

    subject = _subject(args)
    targets = comparable_targets()
    if subject.target.needs <= {"teacher"} and subject.target not in targets.values():
        targets["yours"] = subject.target
    data = measure_alignment(
        subject.model, subject.tokenizer, subject.documents, subject.teacher, n=args.n, targets=targets
    )
    print("\n".join(f"- {sentence}" for sentence in in_words(data)))
    _write_json(args.json, data)
    return _write(args.out, alignment_page(data))


def _subject(args: argparse.Namespace) -> Subject:
    if args.n < 1:
        raise ValueError(f"--n {args.n}: at least one document is needed.")
    if args.recipe is not None:
        return _of_recipe(args)
    if args.model is None or args.teacher_cache is None:
        raise ValueError("name a RECIPE, or give --model and --teacher_cache (and --dataset_path for your documents).")
    if args.overrides:
        raise ValueError(f"{args.overrides[0]} is a key of a recipe, but no RECIPE is named.")
    return _of_options(args)


def _target_words(args: argparse.Namespace) -> list[str]:
    """`--target target eta=0.2` as a recipe's overrides."""
    if args.target is None:
        return []
    name, *pairs = args.target
    words = ["--target", name]
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--target {name}: {pair!r} is no hyper-parameter; write KEY=VALUE, and the RECIPE first.")
        words += [f"--target_kwargs.{key}", value]
    return words


def _of_options(args: argparse.Namespace) -> Subject:
    """A model and a cache; without a data set the documents that the cache keeps whole."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from qsft.commands.cache import load_documents
    from qsft.recipe.read import read_recipe
    from qsft.targets.zoo import make_target
    from qsft.teacher.cache import TeacherCache
    from qsft.teacher.source import default_device

    cache = TeacherCache(args.teacher_cache)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype="auto")
    cache.check_student(tokenizer, model.config.get_text_config().vocab_size)
    recipe = read_recipe(None, _target_words(args)).values
    target = make_target(recipe.get("target", "target"), **recipe.get("target_kwargs", {}))
    if args.dataset_path is not None:
        rows = _drawn(load_documents(args.dataset_path), args)
        return Subject(model.to(default_device()), tokenizer, (row for row in rows if row in cache), target, cache)
    kept = [{"input_ids": input_ids, "labels": labels} for input_ids, labels in cache.samples()]
    return Subject(model.to(default_device()), tokenizer, kept, target, cache)


def _of_recipe(args: argparse.Namespace) -> Subject:
    """The recipe's model, target, teacher and documents, prepared by the trainer as for training, of a draw of rows."""
    from qsft.recipe.job import configure
    from qsft.recipe.read import read_recipe
    from qsft.teacher.documents import Documents

    given = {"model_name_or_path": args.model, "teacher_cache": args.teacher_cache}
    words = [word for name, value in given.items() if value is not None for word in (f"--{name}", value)]
    job = configure(read_recipe(args.recipe, [*_target_words(args), *args.overrides, *words]))
    _draw(job, args)
    trainer = job.trainer()
    documents = Documents(trainer.train_dataset)
    teacher = trainer.cache or trainer.live
    known = (d for d in documents if trainer.cache is None or d in trainer.cache)
    return Subject(trainer.model, job.tokenizer, known, trainer.target, teacher)


def _draw(job: "Job", args: argparse.Namespace) -> None:
    """Give the job a few rows of its data instead of all.

    A cache that is there is read, not added to. Without one the drawn rows go into a cache beside it, which the next
    draw adds to: the run's own stays untouched until the run fills it.
    """
    from dataclasses import replace
    from pathlib import Path

    from qsft.data.load import load_training_data
    from qsft.teacher.manifest import MANIFEST

    settings = job.settings
    if settings.sample_rows is None:
        rows = _drawn(job.stored_rows(settings), args)
        data = load_training_data(settings, job.tokenizer, max_length=job.args.max_length, rows=rows)
    else:  # the rows trained on are a draw themselves: only they are in the cache
        data = replace(job.data, dataset=_drawn(job.data.dataset, args))
    vars(job)["data"] = data
    cache = Path(job.args.teacher_cache or Path(str(job.args.output_dir), "teacher_cache"))
    if (cache / MANIFEST).is_file():
        job.args.teacher_cache, job.args.teacher_model_name_or_path = str(cache), None
        job.args.teacher_missing = "self"
    else:
        job.args.teacher_cache = f"{cache}-sample"


def _drawn(rows: Any, args: argparse.Namespace) -> Any:
    """A few rows more than asked for: some may have no label, or not be in the cache."""
    return rows.shuffle(seed=args.seed).select(range(min(len(rows), args.n + args.n // 4 + 8)))


def _write(path: str, text: str) -> int:
    from qsft.page import write_page

    print(f"{write_page(path, text)}  ({len(text.encode()) / 1e6:.1f} MB; open it in a browser)")
    return 0


def _write_json(path: str | None, data: "Mapping[str, Any]") -> None:
    import json
    from pathlib import Path

    if path is not None:
        Path(path).write_text(json.dumps(data, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)
