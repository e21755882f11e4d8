"""Who made a cache: teacher, tokenizer, k and encoding; and the errors for whoever does not fit."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qsft.fingerprints import digest
from qsft.teacher.format.encoding import ENCODINGS, Codec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VOCABULARY = "vocabulary.json"
LARGEST_K, LARGEST_VOCABULARY = 65_535, 2**31 - 1


@dataclass(frozen=True)
class Identity:
    """What must be equal for two captures to share a cache."""

    teacher: dict[str, Any]  # name, revision, files (name, size, sampled digest), digests of weights and config
    tokenizer: dict[str, Any]  # digest and size of its vocabulary, digest of its chat template (not compared)
    vocab_size: int  # rows of the teacher's head
    top_k: int
    cache_encoding: str
    top_p: float | None
    min_k: int
    dtype: str  # what the teacher computed in; log-probs are always float32 before they are stored

    def __post_init__(self) -> None:
        _require(_is_int(self.vocab_size, 1, LARGEST_VOCABULARY), f"vocab_size={self.vocab_size!r}")
        check_settings(self.top_k, self.cache_encoding, self.top_p, self.min_k)
        _require(self.top_k <= self.vocab_size, f"top_k={self.top_k} with a vocabulary of {self.vocab_size}")
        _require(isinstance(self.teacher, dict) and isinstance(self.tokenizer, dict), "teacher or tokenizer")
        _require(_is_shallow(self.teacher) and _is_shallow(self.tokenizer), "so deeply nested an identity")
        _require(isinstance(self.dtype, str), f"dtype={self.dtype!r}")
        _require(isinstance(self.teacher.get("name"), str), "a teacher without a name")
        _require(isinstance(self.teacher.get("revision"), str | None), "such a revision")
        _require(_is_int(self.tokenizer.get("tokens"), 1, LARGEST_VOCABULARY), "the tokenizer's number of tokens")

    @classmethod
    def read(cls, values: object) -> "Identity":
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or set(values) != names:
            raise ValueError(f"its identity does not consist of {', '.join(sorted(names))}")
        return cls(**values)

    def codec(self, version: int) -> Codec:
        return ENCODINGS[self.cache_encoding](self.top_k, self.vocab_size, version)

    def check_same_settings(self, path: Path, **wanted: object) -> None:
        pairs = [(name, getattr(self, name), value) for name, value in wanted.items()]
        differing = [f"{name} is {held!r}, not {value!r}" for name, held, value in pairs if held != value]
        if differing:
            raise ValueError(
                f"the teacher cache {path} was made with other settings: {'; '.join(differing)}. "
                "Ask for what the cache holds, or give a new directory for the new settings."
            )

    def is_undecided(self, given: dict[str, Any]) -> bool:
        """Whether only the weights can tell: a model and its files differ in name, a commit may change README only."""
        evidence = shared_evidence(self.teacher, given)
        return evidence == "name" or (evidence == "revision" and bool(teacher_difference(self.teacher, given)))

    def check_same_teacher(self, path: Path, given: dict[str, Any]) -> None:
        difference = teacher_difference(self.teacher, given)
        if difference:
            raise ValueError(
                f"the teacher cache {path} holds the distributions of {difference}. "
                "Give a new directory for the new teacher; two teachers never share a cache."
            )

    def check_same_tokenizer(self, path: Path, given: "Vocabulary", whose: str) -> int:
        """How many ids `given` and the cache's tokenizer share; ValueError that names the first that differs."""
        if self.tokenizer.get("digest") == given.about["digest"]:
            return given.size
        known = path / VOCABULARY
        return given.shared_with(
            known.read_bytes() if known.is_file() else b"",
            f"{whose} is not the one the teacher cache {path} was made with",
            "use a student that shares the teacher's tokenizer, or build another cache in a new directory.",
        )


def check_settings(top_k: object, cache_encoding: object, top_p: object, min_k: object) -> None:
    _require(_is_int(top_k, 1, LARGEST_K), f"top_k={top_k!r} (1 to {LARGEST_K:,})")
    _require(_is_int(min_k, 1, top_k), f"min_k={min_k!r} with top_k={top_k} (1 to top_k)")  # type: ignore[arg-type]
    _require(
        isinstance(cache_encoding, str) and cache_encoding in ENCODINGS,
        f"cache_encoding={cache_encoding!r} ({' or '.join(ENCODINGS)})",
    )
    is_share = type(top_p) in (int, float) and 0 < top_p <= 1  # type: ignore[operator]
    _require(top_p is None or is_share, f"top_p={top_p!r} (above 0, at most 1)")


def teacher_difference(cached: dict[str, Any], given: dict[str, Any]) -> str | None:
    """What shows that two teachers are not the same one; None when nothing does.

    The strongest evidence both have decides: weights, weight files, the hub's commit, at last the name. The same
    weights under another configuration (rope, norms, activation) are another teacher.
    """
    evidence = shared_evidence(cached, given)
    configurations = next((n for n in ("config_file", "config") if cached.get(n) and given.get(n)), None)
    if cached.get(evidence) == given.get(evidence):
        if configurations is None or cached[configurations] == given[configurations]:
            return None
        return f"{cached.get('name')} with another configuration than that of {given.get('name')}"
    if evidence == "name":
        return f"{cached.get('name')}, not {given.get('name')}"
    if evidence == "revision":
        return f"revision {cached['revision']} of {cached.get('name')}, not {given['revision']}"
    return f"{cached.get('name')} (other {evidence} than those of {given.get('name')})"


def shared_evidence(cached: dict[str, Any], given: dict[str, Any]) -> str:
    """What is known of both teachers and decides whether they are one."""
    sampled = "config" not in cached  # version 1 of the format knew samples of the weights only
    kinds = ("files", "revision") if sampled else ("weights", "files", "revision")
    return next((name for name in kinds if cached.get(name) and given.get(name)), "name")


class Vocabulary(NamedTuple):
    """A tokenizer's tokens by id as JSON (null where an id has none), and what the manifest says about it."""

    content: bytes
    about: dict[str, Any]
    words: int  # tokens without the added ones, which may have no row in a head (Gemma 3's image token)

    @property
    def size(self) -> int:
        """Ids it knows, added ones included."""
        return int(self.about["tokens"])

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase") -> "Vocabulary":
        """The vocabulary of a tokenizer; the digest of its bytes pins it, the chat template is recorded only."""
        by_id = {index: token for token, index in tokenizer.get_vocab().items()}
        tokens = [by_id.get(index) for index in range(max(by_id) + 1)]
        content = json.dumps(tokens, ensure_ascii=False, indent=0).encode(errors="surrogatepass")
        template = getattr(tokenizer, "chat_template", None)
        template_digest = digest(json.dumps(template).encode()) if template else None
        about = {"digest": digest(content), "tokens": len(tokens), "chat_template": template_digest}
        return cls(content, about, tokenizer.vocab_size)

    def shared_with(self, other: bytes, problem: str, remedy: str) -> int:
        """How many ids it has in common with another's content; ValueError that names the first that differs."""
        if other == self.content:
            return self.size
        pair = (_tokens(other), _tokens(self.content))
        different = (index for index, (there, here) in enumerate(zip(*pair)) if there != here)
        index = next(different, None if all(pair) else 0)
        if index is None:  # tokens added at the end (a <pad>) are no difference as long as no document uses them
            return min(map(len, pair))
        there, here = ("no token" if token is None else repr(token) for token in ((*t, None)[index] for t in pair))
        raise ValueError(
            f"{problem}: id {index} is {there} there and {here} here. Teacher rows speak in token ids: {remedy}"
        )


def check_head_size(rows: int, words: int, whose: str) -> None:
    if rows < words:
        raise ValueError(
            f"the head of {whose} has {rows} rows, but the tokenizer has {words} tokens: they do not belong together. "
            "Teacher and student must share the tokenizer of the data; choose another model or tokenizer."
        )


def _tokens(content: bytes) -> list[str | None]:
    """The tokens of a vocabulary file; none when it is damaged."""
    try:
        tokens = json.loads(content)
    except ValueError:
        return []
    return tokens if isinstance(tokens, list) else []


def _is_shallow(value: object, levels: int = 6) -> bool:
    """Whether JSON is nested no deeper than an identity is; copying or comparing deeper ones may exhaust the stack."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_shallow(part, levels - 1) for part in inner)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"a teacher cache cannot have {what}")


def _is_int(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high
