"""`qsft eval MODEL|RECIPE`: Average@n on the paper's benchmarks or your own, with intervals."""

import argparse
from pathlib import Path
from typing import Any

from qsft.commands import check_no_dry_run, list_terms, long_options, suggest_option
from qsft.files import shown
from qsft.processes import Group, is_main
from qsft.validation import did_you_mean

HELP = "evaluate a model, with Average@n and intervals"
EXAMPLES = """\
examples:
  # a trained model on the five math benchmarks
  qsft eval runs/numina_qwen_math_1p5b-target_sft --tasks math
  # the recipe's trained model on the recipe's tasks
  qsft eval numina_qwen_math_1p5b
  # the model that the recipe trained with another target
  qsft eval numina_qwen_math_1p5b --target dft
  # the model that `qsft train` trained with these options
  qsft eval --model_name_or_path X --dataset_name my.jsonl
  # a model of the Hub, with another protocol
  qsft eval Qwen/Qwen2.5-1.5B --tasks medical --protocol li-medical
  # a task of your own: one {"problem", "answer"} per line
  qsft eval runs/mine --tasks questions.jsonl --num_samples 4
  # problems from data/aime24.jsonl instead of the Hub
  qsft eval runs/mine --tasks aime24 --data_dir data
  # grade existing responses again, without a model
  qsft eval runs/mine --rescore
  # several processes share the work, each with its GPU
  accelerate launch -m qsft eval runs/mine --tasks math
  # vLLM with arguments of its engine
  qsft eval runs/mine --backend vllm \\
    --engine gpu_memory_utilization=0.8 enforce_eager=true
"""

# Options that replace a single setting of the protocol.
PROTOCOL_OPTIONS: dict[str, tuple[type, str]] = {
    "num_samples": (int, "responses per problem"),
    "temperature": (float, "sampling temperature; 0 is greedy"),
    "top_p": (float, "sample from the most likely tokens that together have this probability"),
    "top_k": (int, "sample from this many most likely tokens; 0 is all tokens"),
    "max_new_tokens": (int, "maximum length of a response"),
    "seed": (int, "seed of all samples"),
    "prompt": (str, "prompt format: boxed, question, qwen-math, plain or plain-boxed"),
    "rule": (str, "how multiple choice is read: boxed, li or m1"),
}
# Options that are arguments of `evaluate` under the same name.
EVALUATE_OPTIONS = (
    "data_dir",
    "limit",
    "backend",
    "dtype",
    "batch_size",
    "tensor_parallel_size",
    "seed_requests",
    "overwrite",
)


def description() -> str:
    from qsft.evals.protocol import PROTOCOL_TITLES

    return (
        "Sample responses, grade them and write a report. A killed evaluation continues. It is an error if the "
        "settings differ from those of existing results.\n\nMODEL is the directory of a model or LoRA adapter, or a "
        "Hub id. RECIPE is a file or the name of a recipe, and the model that it trained is evaluated. --key value "
        "replaces one of its keys, as for `qsft train`. Without MODEL and RECIPE, --model_name_or_path names the "
        "model. If --dataset_name is also given, the keys describe a training, and the model that `qsft train` "
        "trained with these keys is evaluated."
        f"\n\nprotocols:\n{list_terms(PROTOCOL_TITLES)}"
    )


DESCRIPTION = description  # called when help is printed


def add_options(parser: Any) -> None:
    parser.usage = "qsft eval MODEL|RECIPE [options] [--key value ...]"
    # args.recipe is the model or recipe, args.overrides are keys of a recipe
    parser.set_defaults(takes_recipe=True, parser=parser)
    parser.add_argument(
        "--tasks", help="math, medical, names of tasks, or JSONL files, comma-separated (default: math)"
    )
    parser.add_argument("--protocol", help="one of the above (default: paper-math; for multiple choice li-medical)")
    for name, (kind, text) in PROTOCOL_OPTIONS.items():
        parser.add_argument(f"--{name}", type=kind, help=text)
    parser.add_argument("--stop", nargs="*", help="strings that end a response")
    parser.add_argument("--data_dir", help="directory of local <task>.jsonl files")
    parser.add_argument(
        "--output_dir", help="where the evaluation is written (default: MODEL/_eval, or evals/NAME for a Hub id)"
    )
    parser.add_argument("--limit", type=int, help="evaluate only this many problems of each task, the first ones")
    parser.add_argument("--backend", default="auto", help="auto, transformers or vllm (default: auto)")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, … (default: bfloat16 on a GPU)")
    parser.add_argument(
        "--batch_size", type=int, help="number of sequences per batch (default: as many as memory allows)"
    )
    parser.add_argument("--tensor_parallel_size", type=int, default=1, help="number of GPUs for one model with vLLM")
    parser.add_argument(
        "--engine",
        nargs="+",
        metavar="KEY=VALUE",
        help="further arguments of vLLM's engine, such as enforce_eager=true",
    )
    parser.add_argument(
        "--no_request_seeds",
        dest="seed_requests",
        action="store_false",
        help="do not seed each sample with vLLM: faster, but not repeatable",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="move earlier results of these tasks aside and start again"
    )
    parser.add_argument(
        "--rescore", action="store_true", help="grade existing responses again and report, without a model"
    )


def run(args: argparse.Namespace) -> None:
    from qsft.evals.evaluate import evaluate, rescore
    from qsft.inference.vllm_engine import parse_engine_args

    request = _request(args)
    changes = {name: getattr(args, name) for name in PROTOCOL_OPTIONS if getattr(args, name) is not None}
    if args.stop is not None:
        changes["stop"] = tuple(args.stop)
    if args.rescore:
        _check_rescore(args, changes)
        report = rescore(request.output_dir, args.tasks, data_dir=args.data_dir, rule=args.rule)
    else:
        settings = {name: getattr(args, name) for name in EVALUATE_OPTIONS}
        report = evaluate(
            request.model,
            request.tasks,
            protocol=request.protocol,
            output_dir=request.output_dir,
            engine=parse_engine_args(args.engine or ()),
            **settings,
            **changes,
        )
    if is_main():
        print(f"\n{report}\n{shown(request.output_dir / 'report.html')}")
    Group().end()


def _request(args: argparse.Namespace) -> Any:
    """Return the request for the given model, for the model of a recipe, or for that of a training given by keys."""
    given = {"tasks": args.tasks, "protocol": args.protocol, "output_dir": args.output_dir}
    from qsft.experiments.eval_request import EvalRequest
    from qsft.recipe.recipe_file import is_recipe, packaged_recipes, read_recipe

    is_directory = args.recipe is not None and Path(args.recipe).is_dir()
    if args.recipe is not None and (is_directory or not is_recipe(args.recipe)):
        if args.overrides:
            guess = suggest_option(args.parser, args.overrides[0])
            raise ValueError(
                f"{args.overrides[0]!r} is not an option of `qsft eval` with a model.{guess} `qsft eval --help` lists "
                "them. Keys of a recipe are accepted with a RECIPE, or without a model."
            )
        if not is_directory and "/" not in args.recipe:
            recipes = [path.stem for path in packaged_recipes()]
            guess = did_you_mean(args.recipe, recipes)
            if guess:
                raise ValueError(f"there is neither a recipe nor a directory {args.recipe!r}.{guess}")
        return EvalRequest.for_model(args.recipe, given)
    if args.recipe is None and not args.overrides:
        raise ValueError("nothing is given. Name a MODEL or a RECIPE, or give --model_name_or_path.")
    own_options = [option.removeprefix("--") for option in long_options(args.parser)]
    recipe = read_recipe(args.recipe, args.overrides, own_options)
    check_no_dry_run(recipe, args.parser.prog)
    student = recipe.values.get("model_name_or_path")
    if args.recipe is None and student is not None and "dataset_name" not in recipe.values:
        return EvalRequest.for_model(student, given)
    return EvalRequest.for_trained_recipe(recipe, given)


def _check_rescore(args: argparse.Namespace, changes: dict[str, Any]) -> None:
    """Raise ValueError for options that concern sampling."""
    sampling = {name: value for name, value in changes.items() if name != "rule"}
    sampling.update(protocol=args.protocol, limit=args.limit, overwrite=args.overwrite or None)
    unused = [f"--{name}" for name, value in sampling.items() if value is not None]
    if unused:
        raise ValueError(
            f"--rescore grades all responses that were generated before: {', '.join(unused)} cannot be used with it. "
            "Remove the option, or remove --rescore to sample."
        )
