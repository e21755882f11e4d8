"""`qsft demo`: the paper's effect in a small world, on this machine, without a download."""

import argparse
from pathlib import Path
from typing import Any

HELP = "see the paper's effect in minutes on a CPU, no download"
DESCRIPTION = (
    "Pretrain a small base, tune a teacher, cache its top-k, fine-tune one model per target on noisy demonstrations "
    "and measure them all, through qsft's own trainer, cache and evaluator. Base and teacher are kept in "
    "$QSFT_HOME/demo (by default ~/.cache/qsft/demo)."
)
EXAMPLES = """\
examples:
  qsft demo                                        one seed, about three minutes on two cores
  qsft demo --seeds 3                              three seeds, with the spread over them
  qsft demo --noise 0                              clean demonstrations: SFT is as good
  qsft demo --wrong_teacher                        a teacher that is sure and wrong: Target-SFT loses
  qsft demo --wrong_teacher half                   ... and wrong in half of what it teaches
  qsft demo --worlds                               all of these side by side in one table
  qsft demo --targets sft target_sft:eta=0.2 dft:lr=1e-3   any rows of `qsft targets`
  qsft demo --methods rft,star,grape               data-level methods beside the targets
  qsft demo --quick                                a few steps of everything, to see that it runs
"""


def add_options(parser: Any) -> None:
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="run N seeds (default: 1)")
    parser.add_argument("--noise", type=float, metavar="P", help="probability of a slip per step (default: 0.25)")
    how: dict[str, Any] = {"nargs": "?", "choices": ("wrong", "half"), "default": "right", "const": "wrong"}
    words = "the teacher is sure of wrong products; half: of half of them"
    parser.add_argument("--wrong_teacher", **how, help=words)
    words = "right, wrong and half-wrong teacher and clean data, in one table"
    parser.add_argument("--worlds", action="store_true", help=words)
    parser.add_argument("--targets", nargs="+", metavar="ROW[:KEY=VALUE,…]", help="rows to compare; lr=… is a key too")
    words = "rft, star, grape, …: see `qsft curate`"
    parser.add_argument("--methods", nargs="+", default=[], metavar="NAME", help=words)
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads; on a busy machine 1 may be fastest")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/demo"), help="(default: runs/demo)")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything: a smoke test")


def run(args: argparse.Namespace) -> None:
    for name in ("seeds", "threads"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name} {value} makes no sense; give 1 or more.")
    import torch
    from rich.console import Console

    from qsft.demo.experiment import run_worlds
    from qsft.demo.report import present, report_of
    from qsft.demo.scenario import METHODS, WORLDS, Scenario, find_data_level, parse_methods

    if args.threads:
        torch.set_num_threads(args.threads)
    scenario = Scenario(teacher=args.wrong_teacher, **({} if args.noise is None else {"noise": args.noise}))
    methods = (parse_methods(args.targets) if args.targets else METHODS) + find_data_level(args.methods)
    if args.quick and args.methods:
        raise ValueError("--quick leaves a base that never answers right: --methods would find nothing to keep.")
    if args.worlds and scenario != Scenario():
        raise ValueError("--worlds runs every world; leave --noise and --wrong_teacher out.")
    worlds = WORLDS if args.worlds else {"": scenario}
    worlds = {name: one.shortened() if args.quick else one for name, one in worlds.items()}
    console = Console()
    present(report_of(run_worlds(worlds, args.seeds, methods, args.output_dir, console)), args.output_dir, console)
