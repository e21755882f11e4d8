"""The page of tokens: every label token of some documents, colored by student, teacher or target.

One document is in memory at a time.
"""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from qsft.explore.observe import Document, Observations, Teacher, read_document
from qsft.explore.token_text import TokenText, table_text
from qsft.losses.sums import QUADRANTS, UNKNOWN
from qsft.page import escape, page, show_invisible, static
from qsft.targets.table import formula
from qsft.targets.target import Target

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_TOKENS = 30_000  # label tokens on one page: more would make it slow and large
PROMPT_CHARACTERS = 2_000


def xray(
    model: nn.Module,
    tokenizer: "PreTrainedTokenizerBase",
    documents: Iterable[Document],
    target: Target,
    teacher: Teacher = None,
    *,
    n: int = 20,
    top: int = 4,
) -> dict[str, Any]:
    """Return the numbers of the page of tokens as JSON-able data.

    A token is a dict: text, text_before (unlabeled text between the last label token and this one), label (the token
    id), p, t, gamma, q and gradient (of the label), quadrant, alternatives (dicts of token, p, t and q, without the
    label, likeliest first). What is not known is None.

    Args:
        n: documents at most. MOST_TOKENS label tokens are shown at most; `left_out` counts those of the
            last document that are not shown.
        top: how many of the likeliest tokens of student and of teacher are shown as alternatives.
    """
    text = TokenText(tokenizer)
    shown: list[dict[str, Any]] = []
    remaining = MOST_TOKENS
    for document in islice(documents, n):
        if remaining <= 0:
            break
        observed = read_document(model, document, target, teacher, top=top)
        if observed is not None:
            input_ids = np.asarray(document["input_ids"]).tolist()
            shown.append(_page_document(input_ids, observed, text, remaining))
            remaining -= len(shown[-1]["tokens"])
    tokens = [token for document in shown for token in document["tokens"]]
    used = {token["label"] for token in tokens}
    used |= {alternative["token"] for token in tokens for alternative in token["alternatives"]}
    return {
        "target": formula(target),
        "documents": shown,
        "label_tokens": len(tokens),
        "left_out": sum(document["left_out"] for document in shown),
        "quadrants": {name: sum(document["quadrants"][name] for document in shown) for name in QUADRANTS},
        "vocabulary": {str(token): table_text(text.alone(token)) for token in sorted(used)},
    }


def tokens_page(data: dict[str, Any], *, title: str = "Token X-ray") -> str:
    """Return the data of `xray` as HTML. The page inserts the text of tokens as text, never as HTML."""
    return page(
        title,
        f'<p class="note">Target: {escape(data["target"])}</p>' + static("qsft.explore", "tokens.html"),
        lede="Every label token of these documents: how likely student and teacher find it, and what the target is.",
        data=data,
        script=static("qsft.explore", "tokens.js"),
        style=static("qsft.explore", "tokens.css"),
    )


def _page_document(input_ids: list[int], observed: Observations, text: TokenText, most: int) -> dict[str, Any]:
    """Return one document for the page, with its first `most` label tokens."""
    count = min(len(observed.positions), most)
    tokens = [_page_token(input_ids, observed, index, text) for index in range(count)]
    quadrants = [token["quadrant"] for token in tokens]
    means = {}
    for name in ("gamma", "p", "t", "q", "gradient"):
        known = [token[name] for token in tokens if token[name] is not None]
        if known:
            means[name] = _number(float(np.mean(known)))
    prompt = text.decode(input_ids[: observed.positions[0]])
    return {
        "prompt": show_invisible(prompt[-PROMPT_CHARACTERS:]),
        "tokens": tokens,
        "left_out": len(observed.positions) - count,
        "means": means,
        "quadrants": {name: quadrants.count(name) for name in QUADRANTS},
    }


def _page_token(input_ids: list[int], observed: Observations, index: int, text: TokenText) -> dict[str, Any]:
    """Return one token for tokens.js; see `xray`."""
    position = int(observed.positions[index])
    label = int(observed.labels[index])
    text_before = ""
    if index > 0:
        unlabeled = input_ids[int(observed.positions[index - 1]) + 1 : position]
        if unlabeled:
            text_before = text.decode(unlabeled)
    kind = int(observed.quadrant[index])
    return {
        "text": show_invisible(text.after(input_ids[position - 1], label)),
        "text_before": show_invisible(text_before),
        "label": label,
        "p": _number(observed.p[index]),
        "t": _number(observed.t[index]),
        "gamma": _number(observed.gamma[index]),
        "q": _number(observed.q[index]),
        "gradient": _number(observed.gradient[index]),
        "quadrant": None if kind == UNKNOWN else QUADRANTS[kind],
        "alternatives": _page_alternatives(observed, index, label),
    }


def _page_alternatives(observed: Observations, index: int, label: int) -> list[dict[str, Any]]:
    """Return each alternative once, without the label, the likeliest under Q or the student first."""
    found = observed.alternatives
    by_token: dict[int, dict[str, float]] = {}
    for place, token in enumerate(found.ids[index].tolist()):
        if token != label:
            by_token[token] = {
                "p": float(found.p[index, place]),
                "t": float(found.t[index, place]),
                "q": float(found.q[index, place]),
            }
    ranked = sorted(by_token.items(), key=lambda item: -max(item[1]["q"], item[1]["p"]))
    return [{"token": token, **{name: _number(value) for name, value in probs.items()}} for token, probs in ranked]


def _number(value: float) -> float | None:
    """Return four significant digits; None for NaN, which stands for unknown."""
    return None if np.isnan(value) else float(f"{value:.4g}")
