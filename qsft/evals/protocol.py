"""Evaluation protocols by name: how responses are drawn, how the question is asked, how multiple choice is read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from qsft.evals.grading.multiple_choice import check_rule
from qsft.inference.sampling import Sampling
from qsft.validation import did_you_mean


@dataclass(frozen=True)
class Protocol(Sampling):
    """Sampling settings, the prompt preset, and the rule that reads multiple-choice responses (boxed, li or m1)."""

    prompt: str = "boxed"
    rule: str = "boxed"

    def record(self) -> dict[str, Any]:
        """The protocol as JSON."""
        return {**asdict(self), "stop": list(self.stop)}


PROTOCOLS: dict[str, Protocol] = {}
PROTOCOL_TITLES: dict[str, str] = {}


def register_protocol(name: str, protocol: Protocol, *, title: str) -> None:
    """Make a protocol available under a name; `title` is one line for help and tables."""
    PROTOCOLS[name] = protocol
    PROTOCOL_TITLES[name] = title


register_protocol("paper-math", Protocol(), title="Average@16 at temperature 1, at most 4,096 tokens")
register_protocol(
    "paper-math-7b-openr1",
    Protocol(temperature=0.7, top_p=0.8),
    title="Average@16 at temperature 0.7, top_p 0.8, as in the paper for KD and Target-SFT in that setting",
)
register_protocol(
    "paper-medical",
    Protocol(rule="li"),
    title="Average@16 at temperature 1, at most 4,096 tokens, as in the paper's text",
)
register_protocol(
    "li-medical",
    Protocol(num_samples=1, temperature=0.0, max_new_tokens=8000, rule="li"),
    title="one greedy response, at most 8,000 tokens, as for the paper's printed medical numbers",
)
DEFAULT_MATH = "paper-math"
DEFAULT_MULTIPLE_CHOICE = "li-medical"


def find_protocol(
    protocol: str | Protocol | None, changes: Mapping[str, Any] | None = None, *, multiple_choice: bool = False
) -> Protocol:
    """The protocol of that name with single settings changed.

    Args:
        protocol: None is the default for the kind of task: paper-math, or li-medical for multiple choice.
        changes: settings that replace those of the protocol.

    Raises:
        ValueError: for an unknown name, setting or rule.
    """
    if protocol is None:
        protocol = DEFAULT_MULTIPLE_CHOICE if multiple_choice else DEFAULT_MATH
    if isinstance(protocol, str):
        if protocol not in PROTOCOLS:
            guess = did_you_mean(protocol, PROTOCOLS)
            raise ValueError(f"unknown protocol {protocol!r}.{guess} Known: {', '.join(PROTOCOLS)}.")
        protocol = PROTOCOLS[protocol]
    known = [item.name for item in fields(Protocol)]
    for name in changes or {}:
        if name not in known:
            guess = did_you_mean(name, known)
            raise ValueError(f"unknown setting {name!r} of a protocol.{guess} Known: {', '.join(known)}.")
    changed = replace(protocol, **dict(changes or {}))
    check_rule(changed.rule)
    return changed
