"""Where the time of a capture goes, and what to change when it is slow."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

DATA, WRITES = "data", "writes"
NOTABLE = 1 / 3  # a share of the time, or of a GPU's memory, that is worth a word
FIRST_LOOK = 60.0  # seconds; a shorter capture is not worth any
REMEDIES = {
    DATA: "Keep the prepared data set on a local disk, and leave this process a CPU core for reading it.",
    WRITES: "Put the cache (teacher_cache, --output_dir) on a faster disk, leave this process a CPU core for encoding, "
    "or store less (teacher_top_k, teacher_top_p).",
}


class Pace:
    """The seconds in which a capture's teacher had to wait, by what for."""

    def __init__(self, device: torch.device, show: bool = True) -> None:
        self.waited = dict.fromkeys(REMEDIES, 0.0)
        self._device, self._show, self._said = device, show, False

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """What happens inside keeps the teacher waiting for `what`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.waited[what] += time.monotonic() - start

    def split(self, seconds: float) -> str:
        shares = {what: waited / max(seconds, 1e-9) for what, waited in self.waited.items()}
        waits = (f"{share:.0%} waiting for {what}" for what, share in shares.items())
        return ", ".join([f"{max(1 - sum(shares.values()), 0):.0%} of the time the teacher's own", *waits])

    def advise(self, seconds: float, *, finished: bool = False) -> None:
        """Say what to change, once after the first minute and once at the end."""
        if self._show and seconds >= FIRST_LOOK and (finished or not self._said):
            self._said = True
            for line in self.advice(seconds):
                print(f"slow capture: {line}", file=sys.stderr)

    def advice(self, seconds: float) -> list[str]:
        """What to change after so many seconds, largest gain first; nothing where a GPU is kept busy."""
        shares = {what: waited / seconds for what, waited in self.waited.items() if waited > NOTABLE * seconds}
        if shares:
            slowest_first = sorted(shares, key=shares.__getitem__, reverse=True)
            return [f"{shares[what]:.0%} of the time is waiting for {what}. {REMEDIES[what]}" for what in slowest_first]
        if self._device.type == "cpu":
            return ["the teacher computes on a CPU; a GPU is a hundred times faster. A cache may be built elsewhere."]
        used = memory_share(self._device)
        few = f"the teacher uses {used:.0%} of its GPU's memory. Raise teacher_batch_tokens (--batch_tokens)."
        return [] if used > NOTABLE else [few]


def memory_share(device: torch.device) -> float:
    """How much of a GPU's memory this process held at its peak; 1 where that is not known."""
    if device.type != "cuda":
        return 1.0
    return torch.cuda.max_memory_allocated(device) / torch.cuda.get_device_properties(device).total_memory
