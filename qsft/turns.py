"""How a conversation is written: one place for training and evaluation, so that they cannot differ.

The base models of the paper come with a chat template (Qwen) or without one (Llama); the latter get the header
format of their instruct siblings, so that student and teacher read the same prompt.
"""

from transformers import PreTrainedTokenizerBase

SYSTEM = "You are a helpful assistant."
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
LLAMA3_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


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
            "Llama-3's header format with. Set `tokenizer.chat_template`, use a model whose tokenizer has one, or, to "
            "evaluate, a prompt without turns (--prompt plain-boxed)."
        )
