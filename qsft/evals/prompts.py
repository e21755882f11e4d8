"""From a question to token ids: prompt presets by name, and one place that turns any prompt into ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from transformers import PreTrainedTokenizerBase

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."


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
    "boxed": Preset(system="You are a helpful assistant.", suffix="\n" + BOXED),  # the paper's, math and medical
    "question": Preset(),
    "qwen-math": Preset(system=BOXED),
    "plain": Preset(chat=False),
    "plain-boxed": Preset(suffix="\n" + BOXED + "\n", chat=False),
}


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        close = get_close_matches(name, PRESETS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown prompt {name!r}.{hint} Known: {', '.join(PRESETS)}.")
    return PRESETS[name]


def encode(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """The token ids of a prompt: ids as they are, text with the tokenizer's special tokens (one BOS), messages by the
    chat template, else in Llama-3's header format if the vocabulary has it."""
    if isinstance(prompt, str):
        marked = bool(tokenizer.bos_token) and prompt.startswith(str(tokenizer.bos_token))
        return _ids(tokenizer, prompt, special=not marked)
    if not prompt or isinstance(prompt[0], int):
        return [int(token) for token in prompt]  # type: ignore[arg-type]
    messages: list[Any] = [dict(message) for message in prompt]  # type: ignore[arg-type]
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return _ids(tokenizer, str(text), special=False)
    if "<|start_header_id|>" not in tokenizer.get_vocab():
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template, so the prompt's turns cannot be written. "
            "Choose a prompt without turns (--prompt plain-boxed), or set `tokenizer.chat_template`."
        )
    turns = "".join(f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n{m['content']}<|eot_id|>" for m in messages)
    text = f"{tokenizer.bos_token or ''}{turns}<|start_header_id|>assistant<|end_header_id|>\n\n"
    return _ids(tokenizer, text, special=False)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool) -> list[int]:
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])
