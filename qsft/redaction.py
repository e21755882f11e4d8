"""Replace secrets in what is written or printed: by the name of the key, and by value wherever they appear."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

REDACTED = "<redacted>"
SHORTEST_SECRET = 6  # shorter values would be replaced inside ordinary words

# `token` alone or at the end of a name (hub_token, use_auth_token), but not pad_token, eos_token, max_new_tokens.
_SECRET_NAME = re.compile(
    r"(^|.*_)(auth|hub|access|api|hf|bearer|push_to_hub|use_auth)_?token$|^token$|.*(password|secret|api_?key|credential).*",
    re.IGNORECASE,
)
_ENVIRONMENT = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "TRACKIO_API_KEY", "OPENAI_API_KEY")

_known_secrets: set[str] = set()


class Secret(str):
    """A token among settings: usable as text, but shown, copied to disk and pickled as <redacted>.

    >>> settings = {"token": Secret("hf_abcdef")}
    >>> settings, settings["token"].upper()
    ({'token': <redacted>}, 'HF_ABCDEF')
    """

    def __repr__(self) -> str:
        return REDACTED

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return str, (REDACTED,)

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: Any) -> "Secret":
        return self


def protect(value: Any, name: str = "") -> Any:
    """Return a copy of nested settings in which the values of secret keys are `Secret`, and remember them."""
    if isinstance(value, Mapping):
        return {key: protect(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [protect(inner, name) for inner in value]
    if isinstance(value, str) and value and is_secret_name(name):
        remember_secrets(value, name)
        return Secret(value)
    return value


def is_secret_name(name: str) -> bool:
    """Whether a key or option holds a secret.

    >>> is_secret_name("hub_token"), is_secret_name("token"), is_secret_name("eos_token")
    (True, True, False)
    """
    return _SECRET_NAME.fullmatch(name.removeprefix("--").replace("-", "_")) is not None


def remember_secrets(value: Any, name: str = "") -> None:
    """Collect the values of secret keys in nested settings, so that `redact` replaces them wherever they appear."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            remember_secrets(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            remember_secrets(inner, name)
    elif isinstance(value, str) and is_secret_name(name) and len(value) >= SHORTEST_SECRET:
        _known_secrets.add(value)


def redact(value: Any) -> Any:
    """Return a copy of nested settings without secrets: by the name of their key, and by value inside any text."""
    remember_secrets(value)
    return _redact(value, "")


def redact_text(text: str) -> str:
    """Return a text without the secrets that were seen so far or are set in the environment."""
    secrets = {*_known_secrets, *(os.environ.get(name, "") for name in _ENVIRONMENT)}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, REDACTED)
    return text


def redact_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without the values of secret options.

    >>> redact_words(["--hub_token", "hf_abcdef", "--token=hf_ghijkl", "--seed", "1"])
    ['--hub_token', '<redacted>', '--token=<redacted>', '--seed', '1']
    """
    redacted = []
    is_value = False
    for word in words:
        name, equals, value = word.partition("=")
        if is_value and not word.startswith("--"):
            remember_secrets(word, "token")
            redacted.append(REDACTED)
            is_value = False
        elif word.startswith("--") and any(is_secret_name(part) for part in name.removeprefix("--").split(".")):
            is_value = not equals
            if equals:
                remember_secrets(value, "token")
            redacted.append(f"{name}={REDACTED}" if equals else word)
        else:
            is_value = False
            redacted.append(redact_text(word))
    return redacted


def _redact(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _redact(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(inner, name) for inner in value]
    if isinstance(value, str):
        if value and is_secret_name(name):
            return REDACTED
        return redact_text(value)
    return value
