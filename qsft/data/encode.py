"""From a demonstration to a document: templated prompt ids + response ids + the model's own end token.

Prompt and response are tokenised separately and joined, so TRL only truncates or packs; loss is on the response and
the end token (the base model's eos, not the template's turn end).
"""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from qsft.data.prompts import CONVERSATIONS, PRESETS, render
from qsft.data.read import one_of
from qsft.data.sources import Source
from qsft.targets.view import IGNORED

ROW = "__row__"  # column with the index into the source; taken out again before training


class Encoder:
    """A batch of rows → input_ids, labels, and the index of the row each came from."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: Source, prompt: str, response: str) -> None:
        self.tokenizer, self.source, self.response, self.prompt = tokenizer, source, response, prompt
        one_of("prompt", prompt, CONVERSATIONS)
        if tokenizer.eos_token_id is None:
            raise ValueError(f"the tokenizer {tokenizer.name_or_path!r} has no eos token to end a response with.")

    def __call__(self, batch: dict[str, list[Any]], indices: Sequence[int]) -> dict[str, list[Any]]:
        """The documents of a batch of rows; rows without a demonstration are left out."""
        rows = (dict(zip(batch, values)) for values in zip(*batch.values()))
        pairs = [(i, pair) for i, row in zip(indices, rows) if (pair := self.source.demonstration(row, self.response))]
        if not pairs:
            return {"input_ids": [], "labels": [], ROW: []}
        end = self.tokenizer.eos_token_id
        prompts = self._ids([self.asked(question) for _, (question, _) in pairs])
        responses = [[*ids, end] for ids in self._ids([answer for _, (_, answer) in pairs])]
        return {
            "input_ids": [p + r for p, r in zip(prompts, responses)],
            "labels": [[IGNORED] * len(p) + r for p, r in zip(prompts, responses)],
            ROW: [i for i, _ in pairs],
        }

    def asked(self, question: str) -> str:
        """The conversation up to the first response token."""
        return render(self.tokenizer, PRESETS[self.prompt].prompt(question))  # type: ignore[arg-type]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    def record(self) -> dict[str, Any]:
        """What was chosen, for the manifest."""
        return {
            "response": self.response,
            "columns": list(self.source.columns[self.response]),
            "prompt": self.prompt,
            "prompt_example": self.asked("{question}"),
            "end_token": self.tokenizer.eos_token,
            "tokenizer": self.tokenizer.name_or_path,
        }
