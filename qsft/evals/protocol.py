"""How an answer is drawn, asked for and read, by name: the paper's settings, and free ones."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from qsft.evals.grade import find_rule
from qsft.targets.did_you_mean import did_you_mean

STOP = ("</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn: n per prompt; temperature 0 is greedy; top_k 0 and top_p 1 keep every token."""

    n: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 4096
    seed: int = 0
    stop: tuple[str, ...] = STOP

    def __post_init__(self) -> None:
        for name, good, rule in (
            ("n", self.n >= 1, "1 or more"),
            ("temperature", self.temperature >= 0, "0 (greedy) or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k >= 0, "0 (all) or more"),
            ("max_new_tokens", self.max_new_tokens >= 1, "1 or more"),
        ):
            if not good:
                raise ValueError(f"{name}={getattr(self, name)} cannot be sampled with; {name} must be {rule}.")
        if self.temperature == 0 and self.n > 1:
            raise ValueError(f"n={self.n} greedy samples would all be the same. Set n=1, or a temperature above 0.")


@dataclass(frozen=True)
class Protocol(Sampling):
    """Sampling, the prompt preset, and the rule that reads a multiple-choice answer."""

    prompt: str = "boxed"
    rule: str = "boxed"

    def record(self) -> dict[str, Any]:
        """JSON-able settings of the run."""
        return {**asdict(self), "stop": list(self.stop)}


PROTOCOLS = {
    "paper-math": Protocol(),
    # KD and Target-SFT on Qwen2.5-Math-7B trained on openr1, by the paper's exception
    "paper-math-7b-openr1": Protocol(temperature=0.7, top_p=0.8),
    "paper-medical": Protocol(n=1, temperature=0.0, max_new_tokens=8000, rule="paper"),
    "avg16": Protocol(),
}


def find_protocol(
    wanted: "str | Protocol | None", changes: Mapping[str, Any] | None = None, *, multiple_choice: bool = False
) -> Protocol:
    """The protocol of that name with single settings changed; None is the paper's for the kind of task."""
    if wanted is None:
        wanted = "paper-medical" if multiple_choice else "paper-math"
    if isinstance(wanted, str) and wanted not in PROTOCOLS:
        raise ValueError(
            f"unknown protocol {wanted!r}.{did_you_mean(wanted, PROTOCOLS)} Known: {', '.join(PROTOCOLS)}."
        )
    protocol = PROTOCOLS[wanted] if isinstance(wanted, str) else wanted
    unknown = set(changes or {}) - {item.name for item in fields(Protocol)}
    if unknown:
        known = ", ".join(item.name for item in fields(Protocol))
        raise ValueError(f"unknown setting {sorted(unknown)[0]!r} of a protocol. Known: {known}.")
    protocol = replace(protocol, **dict(changes or {}))
    return replace(protocol, rule=find_rule(protocol.rule))
