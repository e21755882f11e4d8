"""The token X-ray: what student, teacher and target say at every label token, and a page coloured by it.

Numbers are read off the fused head while it runs: an observer stands in for the real target inside
`model(…, target=…)` and sees what training would see, shifted and aligned by the head, a few tokens at a time. One
document is in memory at a time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from qsft.losses.evaluation_mode import evaluating
from qsft.losses.head import attach_target_head
from qsft.losses.sums import QUADRANTS, UNKNOWN, quadrant
from qsft.page import escape, page, static
from qsft.targets.table import formula
from qsft.targets.target import Mixture, Target
from qsft.targets.trust import Constant
from qsft.targets.view import Full, TokenView
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import label_positions
from qsft.teacher.live import LiveTeacher

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Teacher = TeacherCache | LiveTeacher | None
Document = Mapping[str, Any]  # input_ids and labels, and what the target reads beside them (critical)
Readings = dict[str, np.ndarray]  # see `read_document`
See = Callable[[TokenView, Mixture], None]

TILE_BYTES = 32 * 2**20  # of one dense distribution over the vocabulary; a handful of them exist at a time
MOST_TOKENS = 30_000  # label tokens on one page: beyond, it would be slow and large
PROMPT_CHARACTERS = 2_000


@dataclass(frozen=True)
class Observer:
    """A trust that shows every view, with what `target` makes of it, to `see`; its own γ is 1."""

    target: Target
    see: See
    needs: frozenset[str]

    def __call__(self, view: TokenView) -> Tensor:
        step = max(1, TILE_BYTES // (4 * view.logits.shape[-1]))
        for start in range(0, len(view.labels), step):
            rows = slice(start, start + step)
            teacher = None if view.teacher is None else view.teacher[rows]
            piece = TokenView(view.logits[rows], view.labels[rows], view.lse[rows], teacher, view.side[rows])
            self.see(piece, self.target(piece))
        return torch.ones_like(view.lse)


@torch.no_grad()
def observe(model: nn.Module, document: Document, target: Target, teacher: Teacher, see: See) -> None:
    """Run the model over one document and show to `see` what training with `target` would see; nothing is learnt."""
    attach_target_head(model)
    # The target's scale is kept: it may want the log-probs of the whole document beforehand. A loss has none.
    scale = Constant(1.0) if target.scale is None else target.scale
    observer = Target(Observer(target, see, target.needs), scale=scale)
    device = next(model.parameters()).device
    ids, labels = (torch.tensor(np.asarray(document[n]))[None].to(device).long() for n in ("input_ids", "labels"))
    extra = {"document": torch.zeros_like(ids)} if "document" in observer.needs else {}
    if "critical" in observer.needs and "critical" in document:
        extra["critical"] = torch.tensor(np.asarray(document["critical"]))[None].to(device)
    rows: Any = teacher.lookup(ids[0].cpu(), labels[0].cpu()) if isinstance(teacher, TeacherCache) else None
    if isinstance(teacher, LiveTeacher):
        rows = teacher(ids, labels)
    with evaluating(model):
        model(input_ids=ids, labels=labels, target=observer, teacher=rows, **extra)


def read_document(
    model: nn.Module, document: Document, target: Target, teacher: Teacher = None, *, top: int = 4
) -> Readings | None:
    """What is said at the N label tokens of one document; None if it has none.

    positions, labels  where they stand and what they are
    p, t, gamma, q     p_θ, p_T, γ and Q of the label; t is NaN where it is not known
    gradient           on the label: scale·(p_y − Q_y)
    quadrant           index into QUADRANTS, or UNKNOWN
    alternatives       [N, A, 4]: id, p, t and q of the `top` likeliest tokens of student and teacher; some stand twice
    """
    pieces: list[dict[str, Tensor]] = []
    observe(model, document, target, teacher, lambda view, q: pieces.append(_readings(view, q, top)))
    if not pieces:
        return None
    found = {name: torch.cat([piece[name] for piece in pieces]).cpu().numpy() for name in pieces[0]}
    return {**found, "positions": label_positions(document["labels"]), "quadrant": quadrant(found["p"], found["t"])}


def _readings(view: TokenView, q: Mixture, top: int) -> dict[str, Tensor]:
    p = (view.logits - view.lse[:, None]).exp()
    dense, t, label = q.dense(p), _teacher_probs(view), view.labels[:, None]
    p_y, q_y = (values.gather(-1, label)[:, 0] for values in (p, dense))
    own = p.topk(min(top, p.shape[-1]), dim=-1).indices
    best = t.nan_to_num(-1.0).topk(own.shape[-1], dim=-1)
    ids = torch.cat([own, torch.where(best.values < 0, own[:, :1], best.indices)], dim=-1)
    return {
        "labels": view.labels,
        "p": p_y,
        "t": teacher_label_probs(view),
        "gamma": q.gamma,
        "q": q_y,
        "gradient": q.scale * (p_y - q_y),
        "alternatives": torch.stack([ids.double(), *(values.gather(-1, ids).double() for values in (p, t, dense))], -1),
    }


def teacher_label_probs(view: TokenView) -> Float[Tensor, " N"]:
    """p_T(y) of each label; NaN where it is not known. Caches and live teachers give it with their slots."""
    teacher = view.teacher
    if isinstance(teacher, Full):
        return teacher.logps.gather(-1, view.labels[:, None])[:, 0].exp()
    if teacher is None or teacher.label_logp is None:
        return torch.full_like(view.lse, torch.nan)
    return teacher.label_logp.exp().masked_fill(teacher.empty, torch.nan)


def _teacher_probs(view: TokenView) -> Float[Tensor, "N V"]:
    """p_T of every token; NaN where there is no teacher or a truncated one does not say."""
    teacher, (n, v) = view.teacher, view.logits.shape
    if isinstance(teacher, Full):
        return teacher.logps.exp()
    wide = view.logits.new_full((n, v + 1), torch.nan)
    if teacher is not None:  # empty slots, whose ids mean nothing, go to a column of their own
        wide.scatter_(-1, torch.where(teacher.live, teacher.ids, v), teacher.logps.exp().to(wide.dtype))
    return wide[:, :-1]


# ---- as text ----


class Words:
    """The text of tokens, for one tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        # Whole words that nobody joins again: `decode` would run them together.
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        model = type(getattr(backend, "model", None)).__name__
        self.one_token_a_word = model == "WordLevel" and backend.decoder is None

    def text(self, ids: list[int]) -> str:
        if self.one_token_a_word:
            return " ".join(map(str, self.tokenizer.convert_ids_to_tokens(ids)))
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def alone(self, token: int) -> str:
        """One token; bytes that are no character by themselves are shown as the tokenizer spells them."""
        text = self.text([token])
        return text if text and "\ufffd" not in text else str(self.tokenizer.convert_ids_to_tokens(token))

    def after(self, before: int, token: int) -> str:
        """What a token adds to the text: some tokenizers write the space only between two tokens."""
        first, both = self.text([before]), self.text([before, token])
        return both.removeprefix(first) if both.startswith(first) and "\ufffd" not in both else self.alone(token)


def visible(text: str) -> str:
    """A token with its white space made visible, for tables."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") or "∅"


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
    """The numbers of the X-ray as JSON-able data: per document its tokens, their probabilities and alternatives.

    At most `n` documents and MOST_TOKENS label tokens are looked at; `left_out` says what was not.
    """
    words = Words(tokenizer)
    shown: list[dict[str, Any]] = []
    left = MOST_TOKENS
    for document in islice(documents, n):
        if left > 0 and (seen := read_document(model, document, target, teacher, top=top)) is not None:
            shown.append(_document(np.asarray(document["input_ids"]).tolist(), seen, words, left))
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
        f'<p class="note">Target: {escape(data["target"])}</p>' + static("qsft.explore", "tokens.html"),
        lede="Every label token of these documents: how likely student and teacher find it, and what the target asks.",
        data=data,
        script=static("qsft.explore", "tokens.js"),
        style=static("qsft.explore", "tokens.css"),
    )


def _document(ids: list[int], seen: Readings, words: Words, most: int) -> dict[str, Any]:
    count = min(len(seen["positions"]), most)
    kinds = [None if index == UNKNOWN else QUADRANTS[index] for index in seen["quadrant"][:count].tolist()]
    averaged = [name for name in ("gamma", "p", "t", "q", "gradient") if not np.isnan(seen[name]).all()]
    return {
        "prompt": words.text(ids[: seen["positions"][0]])[-PROMPT_CHARACTERS:],
        "tokens": [_token(ids, seen, i, kind, words) for i, kind in enumerate(kinds)],
        "left_out": len(seen["positions"]) - count,
        "means": {name: _number(float(np.nanmean(seen[name][:count]))) for name in averaged},
        "quadrants": {name: kinds.count(name) for name in QUADRANTS},
    }


def _token(ids: list[int], seen: Readings, i: int, kind: str | None, words: Words) -> list[Any]:
    """[text, unlabelled text before it, label, p, t, γ, Q_y, gradient, quadrant, alternatives], for tokens.js.

    An alternative is [id, p, t, q], each token once and not the label, the likeliest under Q or the student first.
    """
    at, label = int(seen["positions"][i]), int(seen["labels"][i])
    gap_from = int(seen["positions"][i - 1]) + 1 if i else at
    between = words.text(ids[gap_from:at]) if gap_from < at else ""
    numbers = [_number(seen[name][i]) for name in ("p", "t", "gamma", "q", "gradient")]
    others = {int(token): values for token, *values in seen["alternatives"][i].tolist() if token != label}
    ranked = sorted(others.items(), key=lambda item: -max(item[1][2], item[1][0]))
    shown = [[token, *map(_number, values)] for token, values in ranked]
    return [words.after(ids[at - 1], label), between, label, *numbers, kind, shown]


def _number(value: float) -> float | None:
    """Four significant digits; None for what is not known."""
    return None if np.isnan(value) else float(f"{value:.4g}")
