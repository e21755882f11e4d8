"""The token X-ray: documents whose label tokens are coloured by γ, p_θ, p_T, Q_y or the gradient."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from qsft.explore.probe import AnyTarget, Document, Teacher, TokenReadings, probe
from qsft.losses.sums import QUADRANTS, UNKNOWN
from qsft.page import escape, page, static
from qsft.targets.table import formula

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_TOKENS = 30_000  # label tokens on one page: beyond, it would be slow and large
PROMPT_CHARACTERS = 2_000

_BODY = """
<div class="toolbar card" role="toolbar" aria-label="What to look at">
<div class="choice" id="colour" role="group" aria-label="Colour tokens by"><span>Colour</span></div>
<div class="choice" id="filter" role="group" aria-label="Show only one kind of token"><span>Show</span></div>
<label class="search"><span class="hidden-visually">Search the documents</span>
<input type="search" id="search" placeholder="Search text" autocomplete="off"></label>
</div>
<p class="note" id="found" role="status"></p>
<div class="reading"><div id="documents"></div>
<aside id="detail" class="card" aria-live="polite" aria-label="The chosen token"></aside></div>
"""


class Words:
    """The text of tokens, for one tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        self.one_token_a_word = _one_token_a_word(tokenizer)
        self.alone = lru_cache(maxsize=200_000)(self._alone)
        self.after = lru_cache(maxsize=200_000)(self._after)

    def text(self, ids: list[int]) -> str:
        if self.one_token_a_word:
            return " ".join(map(str, self.tokenizer.convert_ids_to_tokens(ids)))
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def _alone(self, token: int) -> str:
        """One token; bytes that are no character by themselves are shown as the tokenizer spells them."""
        text = self.text([token])
        return text if text and "\ufffd" not in text else str(self.tokenizer.convert_ids_to_tokens(token))

    def _after(self, before: int | None, token: int) -> str:
        """What a token adds to the text: some tokenizers write the space only between two tokens."""
        if before is None:
            return self.alone(token)
        first, both = self.text([before]), self.text([before, token])
        return both.removeprefix(first) if both.startswith(first) and "\ufffd" not in both else self.alone(token)


def _one_token_a_word(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether tokens are whole words that nobody joins again: `decode` would run them together."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return type(getattr(backend, "model", None)).__name__ == "WordLevel" and getattr(backend, "decoder", None) is None


def visible(text: str) -> str:
    """A token with its white space made visible, for tables."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") or "∅"


def xray(
    model: nn.Module,
    tokenizer: "PreTrainedTokenizerBase",
    documents: Iterable[Document],
    target: AnyTarget,
    teacher: Teacher = None,
    *,
    n: int = 20,
    top: int = 4,
) -> dict[str, Any]:
    """The numbers of the X-ray as JSON-able data: per document its tokens, their probabilities and alternatives.

    At most `n` documents and MOST_TOKENS label tokens are looked at; `left_out` says what was not.
    """
    words = Words(tokenizer)
    shown: list[dict[str, Any]] = []
    left = MOST_TOKENS
    for seen in probe(model, islice(documents, n), target, teacher, top=top):
        if left <= 0:
            break
        shown.append(_document(seen, words, left))
        left -= len(shown[-1]["tokens"])
    tokens = [token for document in shown for token in document["tokens"]]
    used = {i for _, _, label, *_, alternatives in tokens for i in (label, *(one[0] for one in alternatives))}
    return {
        "target": formula(target),
        "documents": shown,
        "label_tokens": len(tokens),
        "left_out": sum(d["left_out"] for d in shown),
        "quadrants": {name: sum(d["quadrants"][name] for d in shown) for name in QUADRANTS},
        "vocabulary": {str(i): visible(words.alone(i)) for i in sorted(used)},
    }


def tokens_page(data: dict[str, Any], *, title: str = "Token X-ray") -> str:
    """The X-ray of `xray`'s data as HTML. Token text is only ever set as text, never as HTML."""
    return page(
        title,
        f'<p class="note">Target: {escape(data["target"])}</p>' + _BODY,
        lede="Every label token of these documents: how likely student and teacher find it, and what the target asks.",
        data=data,
        script=static("qsft.explore", "tokens.js"),
        style=static("qsft.explore", "tokens.css"),
    )


def _document(seen: TokenReadings, words: Words, most: int) -> dict[str, Any]:
    count = min(len(seen.positions), most)
    before = seen.input_ids[: seen.positions[0]].tolist()
    kinds = [None if index == UNKNOWN else QUADRANTS[index] for index in seen.quadrant[:count].tolist()]
    return {
        "prompt": words.text(before)[-PROMPT_CHARACTERS:],
        "tokens": [_token(seen, i, kind, words) for i, kind in enumerate(kinds)],
        "left_out": len(seen.positions) - count,
        "means": {name: _number(np.nanmean(values[:count])) for name, values in _columns(seen).items()},
        "quadrants": {name: kinds.count(name) for name in QUADRANTS},
    }


def _columns(seen: TokenReadings) -> dict[str, np.ndarray]:
    known = {} if np.isnan(seen.t).all() else {"t": seen.t}
    return {"gamma": seen.gamma, "p": seen.p, **known, "q": seen.q, "gradient": seen.gradient}


def _token(seen: TokenReadings, i: int, kind: str | None, words: Words) -> list[Any]:
    """[text, unlabelled text before it, label, p, t, γ, Q_y, gradient, quadrant, alternatives], for tokens.js."""
    at = int(seen.positions[i])
    gap_from = int(seen.positions[i - 1]) + 1 if i else at
    numbers = [_number(values[i]) for values in (seen.p, seen.t, seen.gamma, seen.q, seen.gradient)]
    text = words.after(int(seen.input_ids[at - 1]), int(seen.input_ids[at]))
    between = words.text(seen.input_ids[gap_from:at].tolist()) if gap_from < at else ""
    return [text, between, int(seen.labels[i]), *numbers, kind, list(_alternatives(seen, i))]


def _alternatives(seen: TokenReadings, i: int) -> Iterator[list[Any]]:
    """[id, p, t, q] of the likeliest tokens beside the label, each once, the likeliest under Q first."""
    rows = zip(*(seen.alternatives[name][i].tolist() for name in ("ids", "p", "t", "q")))
    unique = {row[0]: row for row in rows if row[0] != seen.labels[i]}
    for token, *values in sorted(unique.values(), key=lambda row: -max(row[3], row[1])):
        yield [token, *(_number(value) for value in values)]


def _number(value: float) -> float | None:
    """Four significant digits; None for what is not known."""
    return None if np.isnan(value) else float(f"{value:.4g}")
