"""The head alone: ours against bare matmuls, TRL's fused head and full logits; forward and backward, all labelled.

Times are interleaved (one round of all methods after the other) and given as ratios of medians; the extra memory is the
high-water mark of a fresh process minus what it held before the call.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from benchmarks.measure import extra_memory, print_table, write_json
from qsft import TopK, fused_target_loss, make_target, target_loss
from qsft.losses.matmuls import tokens_per_chunk
from qsft.targets.view import SideInputs

K = 64
OURS = ("sft", "dft", "target", "gem", "iw_sft")


@dataclass(frozen=True)
class Shape:
    tokens: int
    hidden: int
    vocabulary: int
    dtype: str

    @property
    def name(self) -> str:
        return f"N={self.tokens} H={self.hidden} V={self.vocabulary:,} {self.dtype}"


SHAPES = {
    "qwen": Shape(512, 1536, 151_936, "float32"),
    "smollm": Shape(2048, 576, 49_152, "float32"),
    "smollm-bf16": Shape(512, 576, 49_152, "bfloat16"),
}


class Inputs:
    def __init__(self, shape: Shape) -> None:
        g = torch.Generator().manual_seed(0)
        dtype = getattr(torch, shape.dtype)
        n, h, v = shape.tokens, shape.hidden, shape.vocabulary
        self.hidden = torch.randn(n, h, generator=g).to(dtype).requires_grad_()
        self.weight = (torch.randn(v, h, generator=g) * 0.02).to(dtype).requires_grad_()
        self.labels = torch.randint(v, (n,), generator=g)
        logps = torch.randn(n, K, generator=g).log_softmax(-1) - 0.05
        self.teacher = TopK(torch.randint(v, (n, K), generator=g), logps, logps[:, 0])
        self.side = SideInputs(ref_logp=logps[:, 0], document=torch.arange(n) // 64)


def bare_matmuls(x: Inputs) -> None:
    """The three products nobody can avoid, in the chunks that our head uses."""
    chunk = tokens_per_chunk(len(x.labels), len(x.weight), torch.float32)
    with torch.no_grad():
        grad_weight, grad_hidden = torch.empty_like(x.weight), torch.empty_like(x.hidden)
        tile = torch.empty(chunk, len(x.weight), dtype=x.weight.dtype)
        for start in range(0, len(x.labels), chunk):
            h = x.hidden[start : start + chunk]
            z = torch.mm(h, x.weight.t(), out=tile[: len(h)])
            torch.mm(z, x.weight, out=grad_hidden[start : start + chunk])
            grad_weight.addmm_(z.t(), h, beta=float(start > 0))  # the first chunk overwrites


def trl_head(x: Inputs) -> None:
    """TRL's fused head with the outputs that its SFTTrainer asks for."""
    from trl.trainer import utils

    log_probs, *_ = utils._ChunkedLogProbFunction.apply(
        x.hidden, x.weight, None, x.labels, 1.0, utils._CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0,
        ("log_probs", "entropy", "is_top1"),
    )  # fmt: skip
    (-log_probs.sum()).backward()


def full_logits_sft(x: Inputs) -> None:
    logits = (x.hidden @ x.weight.t()).float()
    torch.nn.functional.cross_entropy(logits, x.labels, reduction="sum").backward()


def full_logits_target(x: Inputs) -> None:
    target_loss((x.hidden @ x.weight.t()).float(), x.labels, make_target("target"), x.teacher).backward()


def ours(name: str) -> Callable[[Inputs], None]:
    def run(x: Inputs) -> None:
        fused_target_loss(x.hidden, x.weight, x.labels, make_target(name), x.teacher, side=x.side).loss.backward()

    return run


METHODS: dict[str, Callable[[Inputs], None]] = {
    "bare matmuls": bare_matmuls,
    "TRL fused head": trl_head,
    "full logits, SFT": full_logits_sft,
    "full logits, Target-SFT": full_logits_target,
    **{f"qsft {name}": ours(name) for name in OURS},
}


def seconds(method: str, x: Inputs) -> float:
    x.hidden.grad = x.weight.grad = None
    start = time.perf_counter()
    METHODS[method](x)
    return time.perf_counter() - start


def megabytes(method: str, shape: str) -> float:
    """Peak extra memory of one call in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_head", "--memory", method, "--shapes", shape]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def measure(key: str, repeats: int) -> dict[str, object]:
    x = Inputs(SHAPES[key])
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for round_ in range(repeats + 1):  # the first round warms up
        for method in random.sample(list(METHODS), len(METHODS)):  # what ran before leaves its mark on the memory
            elapsed = seconds(method, x)
            if round_:
                times[method].append(elapsed)
    del x
    median = {method: statistics.median(values) for method, values in times.items()}
    rows = {
        method: {
            "seconds": median[method],
            "of bare matmuls": median[method] / median["bare matmuls"],
            "of TRL": median[method] / median["TRL fused head"],
            "extra MB": megabytes(method, key),
        }
        for method in METHODS
    }
    return {"shape": asdict(SHAPES[key]), "methods": rows}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", metavar="METHOD", help="print the peak extra memory of one call, in MB")
    parser.add_argument("--json", default="benchmarks/results/head.json")
    args = parser.parse_args(argv)
    if args.memory:
        x = Inputs(SHAPES[args.shapes[0]])
        print(json.dumps(extra_memory(lambda: METHODS[args.memory](x)) / 2**20))
        return
    results = {}
    for key in args.shapes:
        results[key] = measure(key, args.repeats)
        print_table(f"head: {SHAPES[key].name}", results[key]["methods"])
    write_json(args.json, results)


if __name__ == "__main__":
    main()
