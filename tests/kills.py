"""Killing a process in the middle of its work."""

import signal
import time


def kill_after(process, path, lines):
    """Kill a process once the file at `path` has so many lines; what the file holds then."""
    while process.poll() is None and (not path.is_file() or path.read_bytes().count(b"\n") < lines):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return path.read_text(encoding="utf-8")
