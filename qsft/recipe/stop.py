"""On Ctrl-C or SIGTERM finish the step and write a checkpoint; all processes exit together."""

import signal
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal(TrainerCallback):
    """While entered as a context: the first signal asks for a checkpoint and a stop; a second Ctrl-C kills."""

    def __init__(self) -> None:
        self.asked = False  # this process got a signal
        self.stopped = False  # all processes agreed to stop
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        # A launcher passes Ctrl-C on as SIGTERM too, so only a second SIGINT means "now".
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.asked = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Ask Trainer to save and stop once any process was signalled: signals reach processes at different steps."""
        if any_process(self.asked, args.device) and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True
        return control


def any_process(flag: bool, device: torch.device) -> bool:
    if not torch.distributed.is_initialized():
        return flag
    seen = torch.tensor(int(flag), device=device)
    torch.distributed.all_reduce(seen, op=torch.distributed.ReduceOp.MAX)
    return bool(seen)
