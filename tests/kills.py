"""Killing a process in the middle of its work."""

import os
import time


def rounds(short, long):
    """How often a campaign does what it does: `short` in `make test-slow`, `long` in `make campaign`."""
    return long if os.environ.get("QSFT_CAMPAIGN") else short


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def kill_when(ready, process):
    """Kill a process as soon as `ready()`; its exit code."""
    while process.poll() is None and not ready():
        time.sleep(0.01)
    process.kill()
    process.communicate()
    return process.returncode


def kill_after(process, path, lines):
    """Kill a process once the file at `path` has so many lines; what the file holds then."""
    kill_when(lambda: lines_of(path) >= lines, process)
    return path.read_text(encoding="utf-8")
