"""`qsft compare RUN_A RUN_B …`: paired differences between evaluations, with intervals."""

import argparse
from pathlib import Path
from typing import Any

from qsft.files import shown

EXAMPLES = """\
examples:
  qsft compare runs/sft runs/target                 directories of trained models, or of their evaluations
  qsft compare base runs/sft runs/target            base: their student as it was before training
  qsft compare runs/sft/eval runs/dft/eval runs/target/eval
  qsft compare runs/numina_qwen_math_1p5b-sft runs/numina_qwen_math_1p5b-target --paper numina_qwen_math_1p5b
  qsft compare runs/sft runs/target --paper published.json

--paper puts published numbers beside, in per cent, and the lenient score beside the strict one: those of a recipe of
the paper, which come with qsft, or of a file, under the names of tasks; averages are recomputed:
  {"rows": {"SFT": {"math500": 61.2, "aime24": 7.5}, "Target-SFT": {"math500": …}}}
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare evaluations: paired differences with intervals",
        description="Each run is compared with the first one, problem by problem.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="directory of an evaluation (or of a model that has one)"
    )
    parser.add_argument("--paper", metavar="RECIPE|FILE", help="published numbers to put beside")
    parser.add_argument("--output_dir", default="comparison", help="where table and plot are written (%(default)s)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare, print the tables and say where the plot is."""
    from qsft.evals.comparison import compare, run_names
    from qsft.recipe.trained import BASE, base_evaluation

    others = [evaluation(run) for run in args.runs if run != BASE]
    # Beside base a run is called by its own name, not by its eval/
    own = [path.parent if path.name == "eval" else path for path in others]
    names = iter(run_names(own if len(others) < len(args.runs) else others) if others else ())
    runs = [base_evaluation(others) if run == BASE else evaluation(run) for run in args.runs]
    comparison = compare(runs, args.paper, names=[BASE if run == BASE else next(names) for run in args.runs])
    page = comparison.write(args.output_dir)
    print(f"{comparison}\n{shown(page)}")
    return 0


def evaluation(run: str) -> Path:
    """The evaluation's directory: the one given, or eval/ inside it."""
    path = Path(run)
    inside = path / "eval"
    return inside if (inside / "grades").is_dir() and not (path / "grades").is_dir() else path
