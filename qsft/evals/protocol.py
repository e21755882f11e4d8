"""Evaluation protocols by name: how responses are drawn, how the question is asked, how multiple choice is read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from qsft.evals.grade import find_rule
from qsft.inference.sampling import Sampling
from qsft.validation import did_you_mean


@dataclass(frozen=True)
class Protocol(Sampling):
    """Sampling, the prompt preset, and the rule that reads a multiple-choice answer."""

    prompt: str = "boxed"
    rule: str = "boxed"

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "stop": list(self.stop)}


PROTOCOLS = {
    "paper-math": Protocol(),
    # KD and Target-SFT on Qwen2.5-Math-7B trained on openr1, by the paper's exception
    "paper-math-7b-openr1": Protocol(temperature=0.7, top_p=0.8),
    "paper-medical": Protocol(num_samples=1, temperature=0.0, max_new_tokens=8000, rule="paper"),
    "avg16": Protocol(),
}


def find_protocol(
    wanted: "str | Protocol | None", changes: Mapping[str, Any] | None = None, *, multiple_choice: bool = False
) -> Protocol:
    """The protocol of that name with single settings changed; None is the paper's for the kind of task."""
    if wanted is None:
        wanted = "paper-medical" if multiple_choice else "paper-math"
    if isinstance(wanted, str) and wanted not in PROTOCOLS:
        guess = did_you_mean(wanted, PROTOCOLS)
        raise ValueError(f"unknown protocol {wanted!r}.{guess} Known: {', '.join(PROTOCOLS)}.")
    known = [item.name for item in fields(Protocol)]
    if unknown := [name for name in changes or {} if name not in known]:
        raise ValueError(f"unknown setting {min(unknown)!r} of a protocol. Known: {', '.join(known)}.")
    protocol = replace(PROTOCOLS[wanted] if isinstance(wanted, str) else wanted, **dict(changes or {}))
    return replace(protocol, rule=find_rule(protocol.rule))
