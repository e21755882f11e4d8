"""From a question to the prompt's text: which turns there are, and how the tokenizer's family writes them.

The base models of the paper come with a chat template (Qwen) or without one (Llama); the latter get the header
format of their instruct siblings, so that student and teacher read the same prompt.
"""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
LLAMA3_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


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
    "boxed": Prompt(system="You are a helpful assistant.", suffix="\n" + BOXED),
}


def render_prompt(tokenizer: PreTrainedTokenizerBase, question: str, prompt: Prompt) -> str:
    """The prompt's text up to the first response token, with exactly the special tokens it needs (one BOS at most).

    Tokenise it with `add_special_tokens=False`.
    """
    return render_turns(tokenizer, prompt.turns(question))


def render_turns(tokenizer: PreTrainedTokenizerBase, turns: list[dict[str, str]]) -> str:
    """The text of a conversation up to the first response token, by the tokenizer's template or Llama-3's headers."""
    if tokenizer.chat_template:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    require_llama3(tokenizer)
    return llama3(turns, tokenizer.bos_token or "")


def llama3(turns: list[dict[str, str]], bos: str) -> str:
    """The turns in Llama-3's header format, ending with the assistant's header."""
    written = "".join(
        f"<|start_header_id|>{turn['role']}<|end_header_id|>\n\n{turn['content'].strip()}<|eot_id|>" for turn in turns
    )
    return f"{bos}{written}<|start_header_id|>assistant<|end_header_id|>\n\n"


def require_llama3(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that has neither a chat template nor Llama-3's header tokens."""
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in LLAMA3_HEADERS if token not in vocabulary]
    if missing:
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template, and no {missing[0]!r} token to write "
            "Llama-3's header format with. Set `tokenizer.chat_template`, or use a model whose tokenizer has one."
        )
