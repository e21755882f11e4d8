"""One batch of rows on its way: prefill once per prompt, one token per row and step, finished rows left behind."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qsft.evals.noise import row_key
from qsft.evals.request import TEXT_CHECK, Generation, Row

if TYPE_CHECKING:
    from qsft.evals.sample import Sampler


class Batch:
    """The state of rows that are decoded together. `alive` holds indices into `rows`; finished ones leave it lazily."""

    def __init__(self, sampler: "Sampler", rows: Sequence[Row]) -> None:
        self.sampler, self.rows = sampler, rows
        device = sampler.model.device
        keys = [row_key(sampler.sampling.seed, row.request.problem, row.request.sample) for row in rows]
        self.keys = torch.tensor(keys, device=device)
        self.limits = torch.tensor([row.limit for row in rows], device=device)
        self.alive = torch.arange(len(rows), device=device)
        self.running = torch.ones(len(rows), dtype=torch.bool, device=device)
        self.written = torch.zeros(len(rows), int(self.limits.max()), dtype=torch.long)
        self.steps = 0

    @property
    def all_finished(self) -> bool:
        """Whether no row is left to decode."""
        return not bool(self.running.any())

    def prefill(self) -> Float[Tensor, "B V"]:
        """The logits after the prompts; equal prompts are computed once and their cache is copied to all samples."""
        device = self.keys.device
        prompts = list(dict.fromkeys(row.prompt for row in self.rows))
        which = {prompt: index for index, prompt in enumerate(prompts)}
        width = max(map(len, prompts))
        ids = torch.tensor([[self.sampler.pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self.sampler.forward(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=positions.to(device),
            logits_to_keep=1,
        )
        spread = torch.tensor([which[row.prompt] for row in self.rows], device=device)
        self.cache = out.past_key_values
        self.cache.batch_select_indices(spread)
        self.positions = positions.to(device)[spread, -1]
        ahead = torch.ones(len(self.rows), int(self.limits.max()), dtype=torch.long, device=device)
        self.mask, self.width = torch.cat([mask.to(device)[spread], ahead], dim=1), width
        logits: Tensor = out.logits
        return logits[:, -1][spread]

    def write(self, tokens: Int[Tensor, " B"], step: int) -> Bool[Tensor, " B"]:
        """Append a token to every row; true where the row ended with it."""
        self.tokens, self.steps = tokens, step + 1
        self.written[self.alive.cpu(), step] = tokens.cpu()
        ended = self.sampler.stops.among(tokens) | (step + 1 >= self.limits)
        if self.sampler.stops.texts and (step + 1) % TEXT_CHECK == 0:
            ended |= self._text_ended()
        ended &= self.running
        self.running = self.running & ~ended
        return ended

    def _text_ended(self) -> Bool[Tensor, " B"]:
        written = self.written[self.alive.cpu(), max(0, self.steps - 2 * TEXT_CHECK) : self.steps]
        texts = self.sampler.tokenizer.batch_decode(written, skip_special_tokens=False)
        stops = self.sampler.stops.texts
        return torch.tensor([any(stop in text for stop in stops) for text in texts], device=self.keys.device)

    def drop_finished(self) -> None:
        """Leave finished rows behind once they are an eighth of the batch: each time copies the whole cache."""
        if int(self.running.sum()) > 0.875 * len(self.running):
            return
        keep = self.running.nonzero().flatten()
        self.cache.batch_select_indices(keep)
        for name in ("keys", "limits", "alive", "running", "mask", "positions", "tokens"):
            setattr(self, name, getattr(self, name)[keep])

    def advance(self, step: int) -> Float[Tensor, "B V"]:
        """The logits after the tokens just written."""
        self.positions = self.positions + 1
        out = self.sampler.forward(
            input_ids=self.tokens[:, None],
            attention_mask=self.mask[:, : self.width + step + 1],
            position_ids=self.positions[:, None],
            past_key_values=self.cache,
            logits_to_keep=1,
        )
        logits: Tensor = out.logits
        return logits[:, -1]

    def finish(self, index: int) -> Generation:
        """The response of a row that ended, by its place in the batch."""
        place = int(self.alive[index])
        ids = self.written[place, : self.steps].tolist()
        text, tokens, finish = self.sampler.stops.cut(ids)
        request = self.rows[place].request
        return Generation(request.problem, request.sample, text, tokens, finish)
