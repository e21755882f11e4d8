"""Sampling settings, requests (prompts as token ids) and the generations that a sampler returns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from qsft.ledger import Key
from qsft.validation import check_range

STOP_STRINGS = ("</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn.

    Args:
        num_samples: responses per prompt.
        temperature: 0 is greedy decoding.
        top_p: 1 keeps every token.
        top_k: 0 keeps every token.
        max_new_tokens: longest response in tokens.
        seed: seed of all samples.
        stop: strings that end a response.

    Raises:
        ValueError: if a value is out of range, or if several greedy samples per prompt are requested.
    """

    num_samples: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 4096
    seed: int = 0
    stop: tuple[str, ...] = STOP_STRINGS

    def __post_init__(self) -> None:
        check_range("num_samples", self.num_samples, 1)
        check_range("temperature", self.temperature, 0)
        check_range("top_p", self.top_p, 0, 1, open_low=True)
        check_range("top_k", self.top_k, 0)
        check_range("max_new_tokens", self.max_new_tokens, 1)
        if self.temperature == 0 and self.num_samples > 1:
            raise ValueError(
                f"num_samples = {self.num_samples} with temperature = 0: greedy samples of a prompt are all the same. "
                "Set num_samples to 1, or a temperature above 0."
            )


@dataclass(frozen=True)
class Request:
    """One response to draw: sample number `sample` of problem `problem`, whose prompt is `ids`.

    `max_new_tokens` limits this response where that is fewer tokens than the sampling settings allow.
    """

    problem: str
    sample: int
    ids: tuple[int, ...]
    max_new_tokens: int | None = None

    @property
    def key(self) -> Key:
        return self.problem, self.sample


@dataclass(frozen=True)
class Generation:
    """One response: its text without special tokens, its length in tokens, and why it ended ("stop" or "length").

    `ids` are the generated tokens; they are not written to disk and not compared.
    """

    problem: str
    sample: int
    text: str
    tokens: int
    finish: str
    ids: Sequence[int] = field(default=(), compare=False, repr=False)

    @property
    def key(self) -> Key:
        return self.problem, self.sample

    def record(self) -> dict[str, Any]:
        """The generation as JSON."""
        return {
            "problem": self.problem,
            "sample": self.sample,
            "text": self.text,
            "tokens": self.tokens,
            "finish": self.finish,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Generation":
        return cls(record["problem"], record["sample"], record["text"], record["tokens"], record["finish"])


def plan_requests(requests: Iterable[Request], max_new_tokens: int, context_length: int | None) -> list[Request]:
    """The requests with their limits, longest prompt first, so that the first batch is the largest one.

    Raises:
        ValueError: if a prompt is empty or leaves no space for a response in the context.
    """
    planned = []
    for request in requests:
        limit = max_new_tokens
        if request.max_new_tokens is not None:
            limit = min(limit, request.max_new_tokens)
        if context_length is not None:
            limit = min(limit, context_length - len(request.ids))
        if not request.ids:
            raise ValueError(
                f"the prompt of problem {request.problem} has no tokens, so there is nothing to continue. Remove it."
            )
        if limit < 1:
            raise ValueError(
                f"the prompt of problem {request.problem} has {len(request.ids)} tokens, which leaves no space for a "
                f"response in the context of {context_length}. Remove it, or use a model with a longer context."
            )
        planned.append(replace(request, max_new_tokens=limit))
    return sorted(planned, key=lambda request: -len(request.ids))


def sample_key(seed: int, problem: str, sample: int) -> int:
    """A 64-bit key of one sample, as a signed integer: what its random numbers are computed from."""
    digest = blake2b(f"{seed}\0{problem}\0{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
