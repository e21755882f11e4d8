"""Run the study of PROTOCOL.md, one line of results per run; whatever has a line is not run again."""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.vouched.report import JUDGE, JUDGED, PICK, picked, report
from benchmarks.vouched.study import CANDIDATES, METHODS, RIVALS, WORLDS, Bench, teacherless
from qsft.progress import quiet_libraries

RESULTS = Path(__file__).parents[1] / "results" / "vouched.jsonl"
Run = tuple[int, str, str]  # seed, world, method


def plan(lines: Sequence[dict[str, Any]]) -> Iterator[Run]:
    """Every run of the protocol, what the decision needs first: the pick, then what is judged, then the rest."""
    yield from ((seed, world, method) for seed in PICK for world in JUDGED for method in CANDIDATES)
    chosen = picked(lines)
    if chosen is not None:
        yield from ((seed, world, method) for seed in JUDGE for world in JUDGED for method in (chosen, *RIVALS))
        for worlds in (JUDGED, WORLDS):
            yield from ((seed, world, method) for seed in (*PICK, *JUDGE) for world in worlds for method in METHODS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="print the table and the verdict, run nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON lines (default: %(default)s)")
    args = parser.parse_args()
    if not args.report:
        run_all(args.out)
    print(report(read(args.out)))


def run_all(out: Path) -> None:
    torch.set_num_threads(1)
    bench = None
    while run := next_run(read(out)):
        seed, world, method = run
        with quiet_libraries():
            if bench is None or (bench.seed, bench.world) != (seed, world):
                bench = Bench(seed, world, Console(stderr=True))
            start = time.process_time()
            scores, known = bench.run(method)
        line = {
            "seed": seed,
            "world": world,
            "method": method,
            "average": round(100 * sum(scores) / len(scores) / bench.samples, 3),
            "known": known,
            "cpu_seconds": round(time.process_time() - start, 1),
            "scores": "".join(map(str, scores)),  # right samples of each problem, 0 to 8
        }
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(f"seed {seed}  {world:<8} {method:<16} {line['average']:6.2f}", flush=True)


def next_run(lines: Sequence[dict[str, Any]]) -> Run | None:
    """The first run of the plan that has no line yet."""
    done = {(one["seed"], one["world"], one["method"]) for one in lines}
    return next((run for run in map(teacherless, plan(lines)) if run not in done), None)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
