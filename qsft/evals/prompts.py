"""From a question to token ids: prompt presets by name, and one place that turns any prompt into ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from qsft.targets.checks import did_you_mean
from qsft.turns import BOXED, SYSTEM, render_turns

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]


@dataclass(frozen=True)
class Preset:
    """A way to ask: a system turn (None: the template's own), what follows the question, with or without turns."""

    system: str | None = None
    suffix: str = ""
    chat: bool = True

    def prompt(self, question: str, options: Mapping[str, str] | None = None) -> str | list[dict[str, str]]:
        """The conversation (or, without turns, the text) up to where the response begins; options as lines A. text."""
        lines = [question, *(f"{letter}. {text}" for letter, text in (options or {}).items())]
        text = "\n".join(lines) + self.suffix
        if not self.chat:
            return text
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": text}]


PRESETS = {
    "boxed": Preset(system=SYSTEM, suffix="\n" + BOXED),  # the paper's, math and medical
    "question": Preset(),
    "qwen-math": Preset(system=BOXED),
    "plain": Preset(chat=False),
    "plain-boxed": Preset(suffix="\n" + BOXED + "\n", chat=False),
}


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise ValueError(f"unknown prompt {name!r}.{did_you_mean(name, PRESETS)} Known: {', '.join(PRESETS)}.")
    return PRESETS[name]


def encode(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """The token ids of a prompt: ids as they are, text with the tokenizer's special tokens (one BOS), messages by the
    chat template, else in Llama-3's header format if the vocabulary has it."""
    if isinstance(prompt, str):
        marked = bool(tokenizer.bos_token) and prompt.startswith(str(tokenizer.bos_token))
        return _ids(tokenizer, prompt, special=not marked)
    if not prompt or isinstance(prompt[0], int):
        return [int(token) for token in prompt]  # type: ignore[arg-type]
    text = render_turns(tokenizer, [dict(message) for message in prompt])  # type: ignore[arg-type]
    return _ids(tokenizer, text, special=False)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool) -> list[int]:
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])
