"""The tokenizers and models of all tests: one vocabulary, one random model, one that was trained for seconds.

They are small enough to be made in every process; what takes seconds is made once for a session and all its workers
(the fixture `made_once`).
"""

from pathlib import Path

SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>", "<|unk|>")
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
EVIL = ("<script>window.hacked=1</script>", "<img/src=x/onerror=window.hacked=1>", "</script>")
ANSWER_WORDS = ("first", "swap", "gives", "so", "tip", "again", *(f"\\boxed{{{i}}}" for i in range(19)))
VOCAB_SIZE = 320
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|> ' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + ' ' + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{{ ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"
)


def vocabulary(size=VOCAB_SIZE):
    """Special and role tokens, single digits and signs, hostile HTML, words of a solution, then w0, w1, ..."""
    words = [*SPECIAL, *ROLES, *"0123456789", *"+-*/=().,:?!", *EVIL, *ANSWER_WORDS]
    return words + [f"w{i}" for i in range(size - len(words))]


def make_tokenizer(size=VOCAB_SIZE, chat_template=CHAT_TEMPLATE):
    """One word, one token; the chat template marks the assistant's tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(vocabulary(size))}
    backend = Tokenizer(models.WordLevel(words, unk_token="<|unk|>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = ("pad_token", "bos_token", "eos_token", "unk_token")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, additional_special_tokens=list(ROLES), **dict(zip(names, SPECIAL))
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def make_model(seed=0, architecture="qwen2", **overrides):
    """A random model of two layers and hidden size 64; `overrides` are fields of its configuration.

    AutoTokenizer makes a BPE of what was saved beside a Qwen2; beside a Llama or an Olmo2 it loads it as it was.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {"vocab_size": VOCAB_SIZE, "num_key_value_heads": 2, "max_position_embeddings": 512}
    style = {"tie_word_embeddings": False, "initializer_range": 0.1}
    config = AutoConfig.for_model(architecture, **{**shape, **ends, **sizes, **style, **overrides})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config)


def save(directory, model, tokenizer):
    """`directory`, with a model and its tokenizer in it."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return Path(directory)


def train(model, tokenizer, documents, steps=250, rows=96, lr=3e-3):
    """The model after some seconds on (prompt, response) documents; an end token is put behind each response."""
    import torch

    texts = [f"{prompt} {response} <|eos|>" for prompt, response in documents]
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    starts = torch.tensor([len(tokenizer(prompt)["input_ids"]) for prompt, _ in documents])
    labels[torch.arange(labels.shape[1]) < starts[:, None]] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(len(texts), (rows,), generator=order)
        inputs = {name: batch[name][chosen] for name in ("input_ids", "attention_mask")}
        model(**inputs, labels=labels[chosen]).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()
