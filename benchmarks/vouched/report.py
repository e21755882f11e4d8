"""The table of the study and its verdict, from the committed lines."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.vouched.study import CANDIDATES, METHODS, SAMPLES, WORLDS, teacherless
from qsft.evals.stats import paired_difference

JUDGED = ("right", "wrong", "half", "clean")
PICK, JUDGE = range(3), range(3, 9)
MARGIN = 1.0
Scores = dict[tuple[int, str, str], np.ndarray]


def report(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: means over the pick seeds, over the judged seeds, and what the protocol decides."""
    scores = read_scores(lines)
    parts = [f"{len(lines)} runs."]
    for name, seeds in (("Seeds 0–2 (pick)", PICK), ("Seeds 3–8 (judge)", JUDGE)):
        parts += [
            f"\n{name}: mean ± standard deviation over seeds (number of seeds where fewer)\n",
            table(scores, seeds),
        ]
    return "\n".join([*parts, "", verdict(scores)])


def read_scores(lines: Sequence[dict[str, Any]]) -> Scores:
    """(seed, world, method) → share of right samples of each problem."""
    return {
        (one["seed"], one["world"], one["method"]): np.array([int(digit) for digit in one["scores"]]) / SAMPLES
        for one in lines
    }


def picked(lines: Sequence[dict[str, Any]]) -> str | None:
    """The candidate with the higher mean over the judged worlds of the pick seeds, once all of them have run."""
    means = _pick_means(read_scores(lines))
    return max(means, key=lambda name: means[name]) if means else None


def _pick_means(scores: Scores) -> dict[str, float]:
    values = {name: [averages(scores, PICK, world, name) for world in JUDGED] for name in CANDIDATES}
    if any(len(one) < len(PICK) for each in values.values() for one in each):
        return {}
    return {name: float(np.mean(each)) for name, each in values.items()}


def table(scores: Scores, seeds: Sequence[int]) -> str:
    rows = ["| method | " + " | ".join(WORLDS) + " |", "|---" * (1 + len(WORLDS)) + "|"]
    for method in METHODS:
        cells = [_cell(averages(scores, seeds, world, method), len(seeds)) for world in WORLDS]
        rows.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def verdict(scores: Scores) -> str:
    """What the protocol says about the candidate, or what is missing."""
    means = _pick_means(scores)
    if not means:
        return "No pick yet: the candidates have not run on all pick seeds."
    winner = max(means, key=lambda name: means[name])
    lines = [f"Picked on seeds 0–2: {winner} ({', '.join(f'{name} {means[name]:.2f}' for name in CANDIDATES)}).\n"]
    earned = True
    for world in JUDGED:
        rivals = ("target",) if world == "right" else ("target", "beyond_log")
        seeds = [s for s in JUDGE if all(teacherless((s, world, m)) in scores for m in (winner, *rivals))]
        if not seeds:
            return "\n".join([*lines, f"No verdict yet: the {world} world has not been judged."])
        best = max(rivals, key=lambda rival: np.mean(averages(scores, seeds, world, rival)))
        a, b = (np.concatenate([scores[teacherless((s, world, m))] for s in seeds]) for m in (best, winner))
        gain = paired_difference(a, b)
        holds = 100 * gain.mean >= -MARGIN
        earned = earned and holds
        lines.append(
            f"- {world}: {100 * gain.mean:+.2f} points against {best} (95 % {100 * gain.low:+.2f} to "
            f"{100 * gain.high:+.2f}, {len(seeds)} of {len(JUDGE)} seeds): {'holds' if holds else 'fails'}"
        )
    return "\n".join([*lines, f"\n{winner} {'earns' if earned else 'does not earn'} a row by the protocol."])


def averages(scores: Scores, seeds: Sequence[int], world: str, method: str) -> list[float]:
    """Average@8 in per cent at each of the seeds that has run."""
    runs = [teacherless((seed, world, method)) for seed in seeds]
    return [100 * float(scores[run].mean()) for run in runs if run in scores]


def _cell(values: Sequence[float], seeds: int) -> str:
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{spread}" + (f" ({len(values)})" if len(values) < seeds else "")
