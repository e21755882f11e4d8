"""How responses are asked for, drawn, ended and read: protocols by name, a sampler's requests and what it returns."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any

from transformers import PreTrainedTokenizerBase

from qsft.data.prompts import Prompt, encode
from qsft.evals.grade import find_rule
from qsft.ledger import Key
from qsft.validation import did_you_mean

STOP = ("</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")
TEXT_CHECK = 32  # tokens between looks for a stop string; the text is cut exactly afterwards


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
        guess = did_you_mean(wanted, PROTOCOLS)
        raise ValueError(f"unknown protocol {wanted!r}.{guess} Known: {', '.join(PROTOCOLS)}.")
    known = [item.name for item in fields(Protocol)]
    if unknown := [name for name in changes or {} if name not in known]:
        raise ValueError(f"unknown setting {min(unknown)!r} of a protocol. Known: {', '.join(known)}.")
    protocol = replace(PROTOCOLS[wanted] if isinstance(wanted, str) else wanted, **dict(changes or {}))
    return replace(protocol, rule=find_rule(protocol.rule))


@dataclass(frozen=True)
class Request:
    """One response to draw: sample `sample` of problem `problem`, whose prompt is text, token ids or messages."""

    problem: str
    sample: int
    prompt: Prompt
    limit: int | None = None  # its most tokens, where that is fewer than what is sampled otherwise
    ids: tuple[int, ...] = ()  # of the prompt, once it is planned

    @property
    def key(self) -> Key:
        return self.problem, self.sample


@dataclass(frozen=True)
class Generation:
    """One response: its text without special tokens, its length in tokens, and why it ended (stop or length)."""

    problem: str
    sample: int
    text: str
    tokens: int
    finish: str
    ids: Sequence[int] = field(default=(), compare=False, repr=False)  # as long as it is not written to disk

    @property
    def key(self) -> Key:
        return self.problem, self.sample

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("problem", "sample", "text", "tokens", "finish")}


def plan(
    requests: Iterable[Request], tokenizer: PreTrainedTokenizerBase, max_new_tokens: int, context: int | None
) -> list[Request]:
    """The requests with ids and limits, longest prompt first: then a batch is even and the first one is the largest."""
    requests = list(requests)
    prompts = {id(request.prompt): request.prompt for request in requests}  # samples share their prompt's object
    ids = {key: tuple(encode(tokenizer, prompt)) for key, prompt in prompts.items()}
    planned = []
    for request in requests:
        prompt = ids[id(request.prompt)]
        limits = (max_new_tokens, request.limit, None if context is None else context - len(prompt))
        room = min(limit for limit in limits if limit is not None)
        if not prompt or room < 1:
            why = f"its prompt of {len(prompt)} tokens leaves no room for a response in the context of {context}"
            raise ValueError(f"problem {request.problem}: {why}. Leave it out, or use a model of longer context.")
        planned.append(replace(request, ids=prompt, limit=room))
    return sorted(planned, key=lambda request: -len(request.ids))


def context_of(config: Any) -> int | None:
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def row_key(seed: int, problem: str, sample: int) -> int:
    """64 bits that stand for one sample, as a signed integer."""
    digest = blake2b(f"{seed}\0{problem}\0{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class Stops:
    """Where a response ends: ids of special tokens, which its text does not show; stop strings, wherever they occur."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], model: Any = None) -> None:
        self.tokenizer = tokenizer
        configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        ends = {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None}
        special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        special |= {*tokenizer.all_special_ids, *ends}
        by_id = {text: index for text, index in tokenizer.get_vocab().items() if text in stop and index in special}
        self.ids = sorted({*ends, *by_id.values()})
        self.texts = tuple(text for text in stop if text not in by_id)
        # A token holds at least a byte of text, so this many surely hold the longest stop string and what came before.
        self.window = TEXT_CHECK + max((len(text.encode()) for text in self.texts), default=0)

    def cut(self, ids: Sequence[int]) -> tuple[str, int, str]:
        """Text, number of tokens (the ending one counts) and finish of a response, cut at the first stop string."""
        stopped = bool(ids) and ids[-1] in self.ids
        body = ids[:-1] if stopped else ids
        text = self._decode(body)
        found = [at for stop in self.texts if (at := text.find(stop)) >= 0]
        if not found:
            return text, len(ids), "stop" if stopped else "length"
        tokens = bisect_left(range(1, len(body)), True, key=lambda n: self.holds(body[:n])) + 1
        return text[: min(found)], tokens, "stop"

    def holds(self, ids: Sequence[int]) -> bool:
        text = self._decode(ids)
        return any(stop in text for stop in self.texts)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
