"""The identity of a cache: teacher, tokenizer and settings; and the errors for a teacher or student that differs."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from qsft.teacher.format.encoding import ENCODINGS, Codec
from qsft.teacher.vocabulary import VOCABULARY, Vocabulary

LARGEST_K = 65_535
LARGEST_VOCABULARY = 2**31 - 1
DEEPEST_NESTING = 8  # of an identity's JSON; copying or comparing deeper JSON may exhaust the stack


@dataclass(frozen=True)
class Identity:
    """What must be equal for two captures to share a cache.

    teacher         what its source says about it (`TeacherSource.describe`)
    tokenizer       digest and size of its vocabulary, digest of its chat template (recorded, not compared)
    vocab_size      vocabulary entries of the teacher's head
    top_k           slots per label position
    cache_encoding  "exact" or "compact"
    top_p, min_k    keep only the slots that hold this share of the mass, at least min_k
    dtype           what the teacher computed in; log-probs are float32 before they are stored
    """

    teacher: dict[str, Any]
    tokenizer: dict[str, Any]
    vocab_size: int
    top_k: int
    cache_encoding: str
    top_p: float | None
    min_k: int
    dtype: str

    def __post_init__(self) -> None:
        check_settings(self.top_k, self.cache_encoding, self.top_p, self.min_k)
        _check_range("vocab_size", self.vocab_size, 1, LARGEST_VOCABULARY)
        _check_range("top_k", self.top_k, 1, self.vocab_size)
        for name in ("teacher", "tokenizer"):
            value = getattr(self, name)
            if not isinstance(value, dict) or not _is_shallow(value):
                raise ValueError(f"invalid {name} of a teacher cache: it must be an object that is not deeply nested")
        if not isinstance(self.dtype, str):
            raise ValueError(f"invalid dtype={self.dtype!r} of a teacher cache")
        if not isinstance(self.teacher.get("name"), str):
            raise ValueError("invalid teacher of a teacher cache: it has no name")
        if not isinstance(self.teacher.get("revision"), str | None):
            raise ValueError("invalid teacher of a teacher cache: its revision is not a string")
        _check_range("the tokenizer's number of tokens", self.tokenizer.get("tokens"), 1, LARGEST_VOCABULARY)

    @classmethod
    def from_json(cls, values: object) -> "Identity":
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or set(values) != names:
            raise ValueError(f"its identity does not consist of {', '.join(sorted(names))}")
        return cls(**values)

    def codec(self) -> Codec:
        return ENCODINGS[self.cache_encoding](self.top_k, self.vocab_size)

    def check_same_settings(self, path: Path, **requested: object) -> None:
        """Raise ValueError if the cache at `path` was made with other settings than those requested."""
        differences = [
            f"{name} is {getattr(self, name)!r}, not {value!r}"
            for name, value in requested.items()
            if getattr(self, name) != value
        ]
        if differences:
            raise ValueError(
                f"the teacher cache {path} was made with other settings: {'; '.join(differences)}. "
                "Request the settings of the cache, or give a new directory for the new settings."
            )

    def needs_weights_of(self, given: dict[str, Any]) -> bool:
        """Whether only the given teacher's weights can decide if it is this cache's.

        A model in memory and its files share no evidence but the name, and another commit may change a README only.
        """
        evidence = shared_evidence(self.teacher, given)
        if evidence == "revision":
            return self.teacher["revision"] != given["revision"]
        return evidence == "name"

    def check_same_teacher(self, path: Path, given: dict[str, Any]) -> None:
        """Raise ValueError if the cache at `path` is another teacher's."""
        difference = teacher_difference(self.teacher, given)
        if difference is not None:
            raise ValueError(
                f"the teacher cache {path} holds the log-probs of {difference}. "
                "Give a new directory for the new teacher; two teachers never share a cache."
            )

    def check_same_tokenizer(self, path: Path, given: Vocabulary, whose: str) -> int:
        """Return the number of ids that `given` and the cache's tokenizer share.

        Raises:
            ValueError: if the tokenizers do not match; it names the first token that differs.
        """
        if self.tokenizer.get("digest") == given.about["digest"]:
            return given.size
        stored = path / VOCABULARY
        return given.count_shared_ids(
            stored.read_bytes() if stored.is_file() else b"",
            problem=f"{whose} does not match the one the teacher cache {path} was made with",
            remedy="use a student that shares the teacher's tokenizer, or build another cache in a new directory.",
        )


def check_settings(top_k: object, cache_encoding: object, top_p: object, min_k: object) -> None:
    """Raise ValueError for settings that no cache can have."""
    _check_range("top_k", top_k, 1, LARGEST_K)
    _check_range("min_k", min_k, 1, top_k)  # type: ignore[arg-type]
    if not isinstance(cache_encoding, str) or cache_encoding not in ENCODINGS:
        raise ValueError(f"invalid cache_encoding={cache_encoding!r}: choose {' or '.join(ENCODINGS)}")
    if top_p is not None and not (type(top_p) in (int, float) and 0 < top_p <= 1):  # type: ignore[operator]
        raise ValueError(f"invalid top_p={top_p!r}: it must be above 0 and at most 1")


def teacher_difference(cached: dict[str, Any], given: dict[str, Any]) -> str | None:
    """Describe how two teachers differ, as "X, not Y"; None when nothing shows that they do.

    The strongest evidence that both have decides: weights, then weight files, then the Hub's commit, then the name. The
    same weights under another configuration (rope, norms, activation), with another adapter, or loaded with other
    arguments (quantization, attention) are another teacher.
    """
    name, given_name = cached.get("name"), given.get("name")
    evidence = shared_evidence(cached, given)
    if cached.get(evidence) != given.get(evidence):
        if evidence == "name":
            return f"{name}, not {given_name}"
        if evidence == "revision":
            return f"revision {cached['revision']} of {name}, not {given['revision']}"
        return f"{name} (other {evidence} than those of {given_name})"
    if evidence != "weights":
        difference = _base_difference(cached, given)
        if difference is not None:
            return difference
    for configuration in ("config_file", "config"):
        if cached.get(configuration) and given.get(configuration):
            if cached[configuration] != given[configuration]:
                return f"{name} with another configuration than that of {given_name}"
            break
    return _loading_difference(cached, given)


def shared_evidence(cached: dict[str, Any], given: dict[str, Any]) -> str:
    """The strongest thing known of both teachers that decides whether they are the same."""
    for name in ("weights", "files", "revision"):
        if cached.get(name) and given.get(name):
            return name
    return "name"


def _base_difference(cached: dict[str, Any], given: dict[str, Any]) -> str | None:
    """How the base models of two adapters differ; a teacher that is no adapter has no base."""
    base, given_base = cached.get("base"), given.get("base")
    if not base and not given_base:
        return None
    if not base or not given_base:
        adapter = cached if base else given
        return f"{cached.get('name')}, not {given.get('name')}: only {adapter.get('name')} is an adapter"
    difference = teacher_difference(base, given_base)
    if difference is None:
        return None
    return f"{cached.get('name')} on another base model: {difference}"


def _loading_difference(cached: dict[str, Any], given: dict[str, Any]) -> str | None:
    """How the loading arguments of two teachers differ; those of a model in memory are not known."""
    loading, given_loading = cached.get("loading"), given.get("loading")
    if loading is None or given_loading is None or loading == given_loading:
        return None
    names = sorted(name for name in {*loading, *given_loading} if loading.get(name) != given_loading.get(name))
    return f"{cached.get('name')} loaded with other arguments than requested ({', '.join(names)})"


def _is_shallow(value: object, levels: int = DEEPEST_NESTING) -> bool:
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list):
        parts = value
    else:
        parts = []
    return levels > 0 and all(_is_shallow(part, levels - 1) for part in parts)


def _check_range(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"invalid {name}={value!r} of a teacher cache: it must be an integer from {low} to {high:,}")
