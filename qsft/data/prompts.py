"""From a question to the prompt's text: which turns there are."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from qsft.turns import BOXED, SYSTEM, render_turns


@dataclass(frozen=True)
class Prompt:
    """A system turn (None: whatever the template writes by itself) and what follows the question in the user turn."""

    system: str | None
    suffix: str

    def turns(self, question: str) -> list[dict[str, str]]:
        """The conversation that ends where the response begins."""
        user = {"role": "user", "content": question + self.suffix}
        return [user] if self.system is None else [{"role": "system", "content": self.system}, user]


PROMPTS = {
    "question": Prompt(system=None, suffix=""),
    "boxed": Prompt(system=SYSTEM, suffix="\n" + BOXED),
}


def render_prompt(tokenizer: PreTrainedTokenizerBase, question: str, prompt: Prompt) -> str:
    """The prompt's text up to the first response token, with exactly the special tokens it needs (one BOS at most).

    Tokenise it with `add_special_tokens=False`.
    """
    return render_turns(tokenizer, prompt.turns(question))
