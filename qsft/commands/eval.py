"""`qsft eval MODEL|RECIPE`: Average@n on the paper's benchmarks or one's own, with intervals."""

import argparse
from typing import Any

from qsft.files import shown
from qsft.processes import Group, is_main

HELP = "measure a model: Average@n with intervals, resumable"
DESCRIPTION = "Sample, grade and report. A killed run continues where it was; changed settings are refused."
EXAMPLES = """\
examples:
  qsft eval runs/numina_qwen_math_1p5b-target --tasks math
  qsft eval numina_qwen_math_1p5b                         the recipe's trained model on the recipe's tasks
  qsft eval Qwen/Qwen2.5-1.5B --tasks medical --protocol paper-medical
  qsft eval runs/mine --tasks questions.jsonl --num_samples 4   a task of your own: one {"problem", "answer"} per line
  qsft eval runs/mine --tasks aime24 --data_dir data      rows from data/aime24.jsonl instead of the hub
  qsft eval runs/mine --rescore                           grade again what was generated; needs no model
  accelerate launch -m qsft eval runs/mine --tasks math   the work shared by several processes, each with its GPU
  qsft eval runs/mine --backend vllm --engine gpu_memory_utilization=0.8 enforce_eager=true

protocols: paper-math (n=16, T=1), paper-math-7b-openr1 (T=0.7, top_p=0.8), paper-medical (greedy,
           n=1, 8000 tokens, read by the paper's rule), avg16 (n=16, T=1, multiple choice read by the box)
"""

# Settings that replace a single one of the protocol.
CHANGES: dict[str, tuple[type, str]] = {
    "num_samples": (int, "responses per problem"),
    "temperature": (float, "0 is greedy"),
    "top_p": (float, "keep the likeliest tokens of this mass"),
    "top_k": (int, "keep this many tokens; 0 is all"),
    "max_new_tokens": (int, "longest response"),
    "seed": (int, "seed of all samples"),
    "prompt": (str, "boxed, question, qwen-math, plain, plain-boxed"),
    "rule": (str, "how multiple choice is read: boxed, or paper (first or last match, whichever scores higher)"),
}
SETTINGS = ("data_dir", "limit", "backend", "dtype", "batch_size", "tensor_parallel_size", "seed_requests", "fresh")


def add_options(parser: Any) -> None:
    parser.add_argument("model", metavar="MODEL|RECIPE", help="directory, hub id, recipe file or recipe name")
    parser.add_argument("--tasks", help="math, medical, names, or JSONL files, comma-separated (default: math)")
    parser.add_argument("--protocol", help="a name below (default: the paper's for the kind of task)")
    for name, (kind, text) in CHANGES.items():
        parser.add_argument(f"--{name}", type=kind, help=text)
    parser.add_argument("--stop", nargs="*", help="strings that end a response")
    parser.add_argument("--data_dir", help="directory of local <task>.jsonl files")
    parser.add_argument("--output_dir", help="where the run is kept (default: MODEL/_eval, or evals/NAME for a hub id)")
    parser.add_argument("--limit", type=int, help="only the first so many problems of each task")
    parser.add_argument("--backend", default="auto", help="auto, transformers or vllm")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, … (default: bfloat16 on a GPU)")
    parser.add_argument("--batch_size", type=int, help="rows at once (default: what memory allows)")
    parser.add_argument("--tensor_parallel_size", type=int, default=1, help="GPUs that vLLM spreads one model over")
    words = "further arguments of vLLM's engine (enforce_eager=true …)"
    parser.add_argument("--engine", nargs="+", metavar="KEY=VALUE", help=words)
    words = "vLLM: faster, but not repeatable"
    parser.add_argument("--no_request_seeds", dest="seed_requests", action="store_false", help=words)
    parser.add_argument("--fresh", action="store_true", help="delete earlier generations of these tasks first")
    parser.add_argument("--rescore", action="store_true", help="only grade and report what was generated before")


def run(args: argparse.Namespace) -> None:
    from qsft.evals.evaluate import evaluate, rescore
    from qsft.experiments.eval_request import EvalRequest
    from qsft.inference.vllm_engine import parse_engine_args

    given = {"tasks": args.tasks, "protocol": args.protocol, "output_dir": args.output_dir}
    request = EvalRequest.for_model(args.model, given)
    directory = request.output_dir
    args.stop = None if args.stop is None else tuple(args.stop)
    changes = {name: value for name, value in vars(args).items() if name in (*CHANGES, "stop") and value is not None}
    if args.rescore:
        given = {**changes, "protocol": args.protocol, "limit": args.limit, "fresh": args.fresh or None}
        if unused := [f"--{name}" for name, value in given.items() if name != "rule" and value is not None]:
            said = f"{', '.join(unused)} cannot be used with it. Leave it out, or leave out --rescore to sample."
            raise ValueError(f"--rescore grades what was generated before, all of it, so {said}")
        report = rescore(directory, args.tasks, data_dir=args.data_dir, rule=args.rule)
    else:
        settings = {name: getattr(args, name) for name in SETTINGS} | {"engine": parse_engine_args(args.engine or ())}
        report = evaluate(
            request.model, request.tasks, protocol=request.protocol, output_dir=directory, **settings, **changes
        )
    if is_main():
        print(f"\n{report}\n{shown(directory / 'report.html')}")
    Group().end()
