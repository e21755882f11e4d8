"""Prompts, conversations and documents, for training, evaluation and curation alike.

The base models of the paper come with a chat template (Qwen) or without one (Llama); the latter get the header
format of their instruct versions, so that student and teacher read the same prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from qsft.targets.view import IGNORED
from qsft.validation import did_you_mean

SYSTEM = "You are a helpful assistant."
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
LLAMA3_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]


@dataclass(frozen=True)
class Preset:
    """A prompt format.

    Args:
        system: the system turn; None for the template's own.
        suffix: what follows the question.
        chat: whether the prompt is a conversation, or plain text.
    """

    system: str | None = None
    suffix: str = ""
    chat: bool = True

    def prompt(self, question: str, options: Mapping[str, str] | None = None) -> str | list[dict[str, str]]:
        """Return the conversation (or the plain text) up to the response; options become lines `A. text`."""
        lines = [question, *(f"{letter}. {text}" for letter, text in (options or {}).items())]
        text = "\n".join(lines) + self.suffix
        if not self.chat:
            return text
        turns = [{"role": "user", "content": text}]
        if self.system is not None:
            turns.insert(0, {"role": "system", "content": self.system})
        return turns


PRESETS = {
    "question": Preset(),
    "boxed": Preset(system=SYSTEM, suffix="\n" + BOXED),  # the paper's, math and medical
    "qwen-math": Preset(system=BOXED),
    "plain": Preset(chat=False),
    "plain-boxed": Preset(suffix="\n" + BOXED + "\n", chat=False),
}
CONVERSATIONS = [name for name, preset in PRESETS.items() if preset.chat]  # what a model can be trained with


def find_preset(name: str) -> Preset:
    """Return the prompt format of that name; ValueError suggests a similar one."""
    if name not in PRESETS:
        raise ValueError(f"unknown prompt {name!r}.{did_you_mean(name, PRESETS)} Known: {', '.join(PRESETS)}.")
    return PRESETS[name]


def encode(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """Return the token ids of a prompt: ids unchanged, text with special tokens (one BOS), messages by `render`."""
    if isinstance(prompt, str):
        has_bos = bool(tokenizer.bos_token) and prompt.startswith(str(tokenizer.bos_token))
        return list(tokenizer(prompt, add_special_tokens=not has_bos)["input_ids"])
    if not prompt or isinstance(prompt[0], int):
        return [int(token) for token in prompt]  # type: ignore[arg-type]
    return list(tokenizer(render(tokenizer, prompt), add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]


def render(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Message]) -> str:
    """Return the text of a conversation up to the first response token, by the chat template or Llama-3's headers.

    The text has its special tokens: tokenize it with `add_special_tokens=False`.
    """
    messages = [dict(turn) for turn in turns]
    if tokenizer.chat_template:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    missing = [token for token in LLAMA3_HEADERS if token not in tokenizer.get_vocab()]
    if missing:
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template, and no {missing[0]!r} for Llama-3's. Set "
            "`tokenizer.chat_template`, or for `qsft train` --chat_template_path FILE.jinja (or a model that has one). "
            "To evaluate, use a prompt without turns (--prompt plain-boxed)."
        )
    start, end, stop = LLAMA3_HEADERS
    text = "".join(f"{start}{turn['role']}{end}\n\n{turn['content'].strip()}{stop}" for turn in messages)
    return f"{tokenizer.bos_token or ''}{text}{start}assistant{end}\n\n"


def response_ids(tokenizer: PreTrainedTokenizerBase, response: str) -> list[int]:
    """Return the token ids of a response with the end token."""
    return [*tokenizer(response, add_special_tokens=False)["input_ids"], int(tokenizer.eos_token_id)]


def document(prompt: Sequence[int], response: Sequence[int]) -> dict[str, list[int]]:
    """Return input_ids and labels of a prompt and its response; the prompt has no labels."""
    return {"input_ids": [*prompt, *response], "labels": [IGNORED] * len(prompt) + list(response)}
