"""The head alone: ours against bare matmuls, TRL's fused head and full logits; forward and backward, all labeled.

Times are interleaved (one round of all methods after the other) and given as ratios of medians; the extra memory is the
high-water mark of a fresh process (on a GPU: of its allocator) minus its memory before the call. With a GPU it runs
there, in bf16 and at the shapes of real models. Losses of other frameworks are rows where they are installed: see
peers.py. `--tiles` measures the time against the tokens that are projected at a time.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import DEVICE, GPU, device_name, extra_memory, print_table, wait_for_device, write_json
from benchmarks.peers import installed_peers, installed_versions
from qsft import TopK, fused_target_loss, make_target, target_loss
from qsft.losses.projection import tile_dtype, tokens_per_chunk
from qsft.targets.view import SideInputs

K = 64
OURS = ("sft", "dft", "kd", "target_sft", "gem", "iw_sft")


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
    "qwen-bf16": Shape(192, 1536, 151_936, "bfloat16"),
}
GPU_SHAPES = {  # run when there is a GPU, where the CPU's are not
    "llama-8b": Shape(8192, 4096, 128_256, "bfloat16"),
    "published": Shape(8192, 4096, 151_936, "bfloat16"),
    "qwen-1.5b": Shape(16_384, 1536, 151_936, "bfloat16"),
}
TILE_SHAPES = {  # what the default size of the tile is chosen by
    "smollm-tiles": Shape(2048, 576, 49_152, "float32"),
    "smollm-bf16-tiles": Shape(2048, 576, 49_152, "bfloat16"),
    "llama-1b-tiles": Shape(1024, 2048, 128_256, "float32"),
    "qwen-tiles": Shape(1024, 1536, 151_936, "float32"),
}
CHUNKS = (64, 128, 256, 512, 1024)
ALL_SHAPES = SHAPES | GPU_SHAPES | TILE_SHAPES


class Inputs:
    """Random hidden states, weight, labels and teacher of a shape."""

    def __init__(self, shape: Shape) -> None:
        g = torch.Generator().manual_seed(0)
        dtype = getattr(torch, shape.dtype)
        n, h, v = shape.tokens, shape.hidden, shape.vocabulary
        self.hidden = torch.randn(n, h, generator=g).to(DEVICE, dtype).requires_grad_()
        self.weight = (torch.randn(v, h, generator=g) * 0.02).to(DEVICE, dtype).requires_grad_()
        self.labels = torch.randint(v, (n,), generator=g).to(DEVICE)
        logps = (torch.randn(n, K, generator=g).log_softmax(-1) - 0.05).to(DEVICE)
        self.teacher = TopK(torch.randint(v, (n, K), generator=g).to(DEVICE), logps, logps[:, 0])
        self.side = SideInputs(ref_logp=logps[:, 0], document=torch.arange(n, device=DEVICE) // 64)


def bare_matmuls(x: Inputs) -> None:
    """The three matrix products that every head needs, in the chunks that our head uses."""
    hidden_size = x.weight.shape[-1]
    dtype = tile_dtype(x.weight.dtype, DEVICE)
    chunk = tokens_per_chunk(len(x.labels), len(x.weight), dtype, DEVICE, hidden_size)
    with torch.no_grad():
        grad_weight = torch.empty_like(x.weight)
        grad_hidden = torch.empty_like(x.hidden)
        tile = x.weight.new_empty(chunk, len(x.weight))
        for start in range(0, len(x.labels), chunk):
            h = x.hidden[start : start + chunk]
            z = torch.mm(h, x.weight.t(), out=tile[: len(h)])
            torch.mm(z, x.weight, out=grad_hidden[start : start + chunk])
            grad_weight.addmm_(z.t(), h, beta=float(start > 0))  # the first chunk overwrites


def trl_head(x: Inputs) -> None:
    """TRL's fused head with the outputs that its SFTTrainer requests."""
    from trl.trainer import utils

    log_probs, *_ = utils._ChunkedLogProbFunction.apply(
        x.hidden, x.weight, None, x.labels, 1.0, utils._CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0,
        ("log_probs", "entropy", "is_top1"),
    )  # fmt: skip
    (-log_probs.sum()).backward()


def full_logits_sft(x: Inputs) -> None:
    logits = (x.hidden @ x.weight.t()).float()
    torch.nn.functional.cross_entropy(logits, x.labels, reduction="sum").backward()


def full_logits_own_dtype(x: Inputs) -> None:
    logits = x.hidden @ x.weight.t()
    torch.nn.functional.cross_entropy(logits, x.labels, reduction="sum").backward()


def full_logits_target(x: Inputs) -> None:
    target_loss((x.hidden @ x.weight.t()).float(), x.labels, make_target("target_sft"), x.teacher).backward()


def ours(name: str, head_kernel: str = "auto") -> Callable[[Inputs], None]:
    def run(x: Inputs) -> None:
        fused_target_loss(
            x.hidden, x.weight, x.labels, make_target(name), x.teacher, side=x.side, head_kernel=head_kernel
        ).loss.backward()

    return run


METHODS: dict[str, Callable[[Inputs], None]] = {
    "bare matmuls": bare_matmuls,
    "TRL fused head": trl_head,
    "full logits, SFT": full_logits_sft,
    "full logits not in float32, SFT": full_logits_own_dtype,
    "full logits, Target-SFT": full_logits_target,
    **{f"qsft {name}": ours(name) for name in OURS},
    **dict(installed_peers()),
}
if GPU:
    METHODS["qsft target_sft, no kernels"] = ours("target_sft", "torch")


def seconds(call: Callable[[Inputs], None], x: Inputs) -> float:
    """Seconds of one call; on a CPU of its threads together, on which other processes have less influence."""
    clock = time.perf_counter if GPU else time.process_time
    x.hidden.grad = None
    x.weight.grad = None
    wait_for_device()
    start = clock()
    call(x)
    wait_for_device()
    return clock() - start


def median_seconds(calls: dict[str, Callable[[Inputs], None]], x: Inputs, repeats: int) -> dict[str, float]:
    """The median time of every call; each round runs all of them, in another order."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(repeats + 1):  # the first round warms up
        for name in random.sample(list(calls), len(calls)):  # the method before may affect caches and allocator
            elapsed = seconds(calls[name], x)
            if round_:
                times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def megabytes(method: str, shape: str) -> float:
    """Peak extra memory of one call in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_head", "--memory", method, "--shapes", shape]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def measure(key: str, repeats: int) -> dict[str, object]:
    x = Inputs(ALL_SHAPES[key])
    median = median_seconds(METHODS, x, repeats)
    del x
    rows = {
        method: {
            "seconds": median[method],
            "of bare matmuls": median[method] / median["bare matmuls"],
            "of TRL": median[method] / median["TRL fused head"],
            "extra MB": megabytes(method, key),
        }
        for method in METHODS
    }
    return {"shape": asdict(ALL_SHAPES[key]), "device": device_name(), "methods": rows}


def measure_tiles(key: str, repeats: int) -> dict[str, object]:
    """Time and tile of our head for several numbers of tokens that are projected at a time."""
    x = Inputs(ALL_SHAPES[key])
    tile = tile_dtype(x.weight.dtype, DEVICE)
    median = median_seconds({str(chunk): chunked(chunk) for chunk in CHUNKS}, x, repeats)
    best = min(median.values())
    rows = {
        f"{chunk} tokens": {
            "seconds": median[str(chunk)],
            "of the best": median[str(chunk)] / best,
            "tile MiB": chunk * len(x.weight) * tile.itemsize / 2**20,
        }
        for chunk in CHUNKS
    }
    return {"shape": asdict(ALL_SHAPES[key]), "device": device_name(), "chunks": rows}


def chunked(chunk: int) -> Callable[[Inputs], None]:
    def run(x: Inputs) -> None:
        target = make_target("target_sft")
        fused_target_loss(x.hidden, x.weight, x.labels, target, x.teacher, chunk=chunk).loss.backward()

    return run


def kernel_resources() -> dict[str, dict[str, Any]]:
    """Registers, spills and shared memory of both kernels, compiled here for three GPUs; no GPU is needed."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from qsft.losses import kernels

    rows = {}
    for kernel, written in ((kernels.row_statistics_kernel, "*fp32"), (kernels.write_gradient_kernel, "*bf16")):
        types = {"tile": "*fp32", "grad": written, "best_out": "*i64", "scale": "fp32", "softcap": "fp32"}
        types |= dict.fromkeys(("size", "row_stride", "grad_stride"), "i32")
        fixed = {"bias": None, "HAS_BIAS": False, "CAPPED": False, "BLOCK": kernels.BLOCK}
        signature = {n: "constexpr" if n in fixed else types.get(n, "*fp32") for n in kernel.arg_names}
        source = ASTSource(kernel, signature, {(kernel.arg_names.index(n),): value for n, value in fixed.items()})
        for capability in (80, 90, 100):
            target = GPUTarget("cuda", capability, 32)
            built = compile(source, target=target, options={"num_warps": kernels.WARPS})
            rows[f"{kernel.__name__} sm_{capability}"] = _resources(built)
    return rows


def _resources(kernel: Any) -> dict[str, Any]:
    """Registers, spills and shared memory of a compiled kernel, by the `cuobjdump` that comes with triton.

    Shared memory that is requested at the launch is not included.
    """
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|LOCAL):(\d+)", text))
    return {"registers": found["REG"], "spilled bytes": found["LOCAL"], "shared bytes": kernel.metadata.shared}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=list(ALL_SHAPES))
    parser.add_argument("--tiles", action="store_true", help="only time against the tokens projected at a time")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", metavar="METHOD", help="print the peak extra memory of one call, in MB")
    parser.add_argument("--output_file", help="default: benchmarks/results/head.json, with --tiles tiles.json")
    args = parser.parse_args(argv)
    if args.memory:
        shape = ALL_SHAPES[args.shapes[0]]
        METHODS[args.memory](Inputs(Shape(8, 16, 300, shape.dtype)))  # imports are not part of what is measured
        x = Inputs(shape)
        print(json.dumps(extra_memory(lambda: METHODS[args.memory](x)) / 2**20))
        return
    results: dict[str, Any] = {"versions": installed_versions()}
    if args.tiles:
        for key in args.shapes or TILE_SHAPES:
            results[key] = measure_tiles(key, args.repeats)
            print_table(f"tiles on {device_name()}: {ALL_SHAPES[key].name}", results[key]["chunks"])
        write_json(args.output_file or "benchmarks/results/tiles.json", results)
        return
    for key in args.shapes or (GPU_SHAPES if GPU else SHAPES):
        results[key] = measure(key, args.repeats)
        print_table(f"head on {device_name()}: {ALL_SHAPES[key].name}", results[key]["methods"])
    if find_spec("triton"):
        results["kernels"] = kernel_resources()
        print_table("the two kernels, compiled", results["kernels"])
    write_json(args.output_file or "benchmarks/results/head.json", results)


if __name__ == "__main__":
    main()
