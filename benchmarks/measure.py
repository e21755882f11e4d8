"""What the benchmarks share: where they run, memory of a fresh process, a table, a JSON file."""

import json
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

GPU = torch.cuda.is_available()  # with one, models run there in bf16 and at the shapes of real models
DEVICE = "cuda" if GPU else "cpu"


def device_name() -> str:
    return torch.cuda.get_device_name() if GPU else "CPU"


def wait_for_device() -> None:
    """Return once the GPU has finished its work: before and after what is timed."""
    if GPU:
        torch.cuda.synchronize()


def status_bytes(field: str) -> int:
    """VmHWM (high-water mark) or VmRSS (now) of this process, from the kernel."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}: peak memory can be measured on Linux only")


def extra_memory(call: Callable[[], object]) -> int:
    """The peak memory of `call` in bytes, without what was allocated before; of the GPU if there is one.

    Call it in a fresh process.
    """
    if GPU:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    before = status_bytes("VmRSS")
    call()
    return status_bytes("VmHWM") - before


def print_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table("", *next(iter(rows.values())), title=title, title_justify="left")
    for name, row in rows.items():
        table.add_row(name, *(f"{v:,.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


def write_json(path: str, results: Mapping[str, Any]) -> None:
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": device_name() if GPU else None,
        "torch": torch.__version__,
    }
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"machine": machine, **results}, indent=1) + "\n")
    print(f"wrote {target}")
