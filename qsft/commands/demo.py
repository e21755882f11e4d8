"""`qsft demo`: the paper's effect on a synthetic task, on this machine, without a download."""

import argparse
from pathlib import Path
from typing import Any

HELP = "show the paper's effect in minutes on a CPU, without a download"
DESCRIPTION = (
    "Pretrain a small base model, tune a teacher, cache its top-k, fine-tune one model per target on noisy "
    "demonstrations, and evaluate all models. The demo uses qsft's own trainer, cache and evaluator. The base model "
    "and the teacher are kept in $QSFT_CACHE/demo (by default ~/.cache/qsft/demo)."
)
EXAMPLES = """\
examples:
  # one seed, about three minutes on two cores
  qsft demo
  # three seeds, with the spread over them
  qsft demo --seeds 3
  # clean demonstrations: SFT is as good
  qsft demo --noise 0
  # a teacher that is confident and wrong: Target-SFT loses
  qsft demo --wrong_teacher
  # a teacher that is wrong in half of the products
  qsft demo --wrong_teacher half
  # all of these cases in one table
  qsft demo --scenarios
  # any targets of `qsft targets`
  qsft demo --targets sft target_sft:eta=0.2 dft:lr=1e-3
  # data-level methods beside the targets
  qsft demo --methods rft,star,grape
  # a few steps of everything, to check that it runs
  qsft demo --quick
"""


def add_options(parser: Any) -> None:
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="run N seeds (default: 1)")
    parser.add_argument(
        "--noise", type=float, metavar="P", help="probability of a mistake per step of a demonstration (default: 0.25)"
    )
    parser.add_argument(
        "--wrong_teacher",
        nargs="?",
        choices=("wrong", "half"),
        default="right",
        const="wrong",
        help="use a teacher that is confident and wrong in every product; with half, in half of the products",
    )
    parser.add_argument(
        "--scenarios",
        action="store_true",
        help="compare a right, a wrong and a half-wrong teacher and clean data in one table",
    )
    parser.add_argument(
        "--targets", nargs="+", metavar="TARGET[:KEY=VALUE,…]", help="targets to compare; lr=… sets the learning rate"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[],
        metavar="NAME",
        help="data-level methods to compare: rft, star, grape, critical (see `qsft curate`)",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="number of CPU threads; on a busy machine 1 may be fastest"
    )
    parser.add_argument(
        "--output_dir", type=Path, default=Path("runs/demo"), help="where results are written (default: runs/demo)"
    )
    parser.add_argument("--quick", action="store_true", help="run only a few steps of everything, as a smoke test")


def run(args: argparse.Namespace) -> None:
    for name in ("seeds", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}.")
    if args.quick and args.methods:
        raise ValueError("--quick trains a base that never answers right, so --methods would have nothing to keep.")
    if args.scenarios and (args.noise is not None or args.wrong_teacher != "right"):
        raise ValueError("--scenarios sets noise and teacher itself: leave --noise and --wrong_teacher out.")
    import torch
    from rich.console import Console

    from qsft.demo.experiment import run_scenarios
    from qsft.demo.methods import METHODS, find_data_level_methods, parse_methods
    from qsft.demo.report import make_report
    from qsft.demo.scenario import SCENARIOS, Scenario
    from qsft.demo.show_report import show_report

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    methods = parse_methods(args.targets) if args.targets else METHODS
    methods += find_data_level_methods(args.methods)
    if args.scenarios:
        scenarios = SCENARIOS
    else:
        noise = Scenario.noise if args.noise is None else args.noise
        scenarios = {"": Scenario(teacher=args.wrong_teacher, noise=noise)}
    if args.quick:
        scenarios = {name: scenario.shortened() for name, scenario in scenarios.items()}
    console = Console()
    results = run_scenarios(scenarios, args.seeds, methods, args.output_dir, console)
    show_report(make_report(results), args.output_dir, console)
