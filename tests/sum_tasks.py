"""Tasks small enough to evaluate and curate in seconds: sums, most of which the fixture `learned` knows.

    5 + 7 =            →  so so \\boxed{12}                 with as many `so` as the sum likes

and sums on a clock of five hours:

    1 + 2 ?            →  first 1 + 2 = 3 so \\boxed{3}      or: swap 2 + 1 gives 3 so \\boxed{3}
    1 + 2 ? tip 3      →  the same, whether or not the model knows the sum
    1 + 2 ? again …    →  the same solution in other words

A third of the sums on the clock are trained with wrong results: without a tip the model answers them wrong.
"""

import itertools
import json
import random
from concurrent.futures import Future
from pathlib import Path

HOURS = 5
SUMS = list(itertools.product(range(HOURS), range(HOURS)))
UNKNOWN = frozenset(SUMS[1::3])
HINT = "{question} tip {gold}"
TEMPLATE = "{question} again {response}"
CONTEXT = 64
# Heads of 32: vLLM has no smaller ones on a CPU.
SHAPE = {
    "num_attention_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "initializer_range": 0.06,
}


def solution(a, b, result=None, opener="first", equals="="):
    c = (a + b) % HOURS if result is None else result
    left, right = (a, b) if opener == "first" else (b, a)
    return f"{opener} {left} + {right} {equals} {c} so \\boxed{{{c}}}"


def plain_sum(a, b):
    return f"{a} + {b} =", "so " * ((a * b) % 4) + f"\\boxed{{{a + b}}}"


def question(a, b):
    return f"<|bos|> {a} + {b} ?"


def corpus(copies=12):
    """Documents (prompt, response) of everything the model is to know."""
    rng = random.Random(0)
    documents = [plain_sum(a, b) for a, b in itertools.product(range(10), range(10))]
    for (a, b), copy in itertools.product(SUMS, range(copies)):
        words = {"opener": rng.choice(["first", "swap"]), "equals": rng.choice(["=", "gives"])}
        wrong = (a + b + rng.randrange(1, HOURS)) % HOURS if (a, b) in UNKNOWN else None
        documents.append((question(a, b), solution(a, b, wrong, **words)))
        if copy % 3:
            continue
        documents.append((f"{question(a, b)} tip {(a + b) % HOURS}", solution(a, b, **words)))
        reference = solution(a, b, opener="first", equals="=")
        documents.append((f"{question(a, b)} again {reference}", solution(a, b, opener="swap", equals="gives")))
    return documents


def share_known(model, tokenizer):
    """The share of the sums on the clock that were trained with the right result and are answered right."""
    known = [one for one in SUMS if one not in UNKNOWN]
    prompts = tokenizer([question(*one) for one in known], return_tensors="pt")  # all of one length
    answers = tokenizer.batch_decode(
        model.generate(**prompts, max_new_tokens=14, do_sample=False), skip_special_tokens=True
    )
    return sum(text.endswith(f"\\boxed{{{sum(one) % HOURS}}}") for text, one in zip(answers, known)) / len(known)


def clock_rows(sums=SUMS):
    return [
        {"prompt": question(a, b), "completion": " " + solution(a, b), "answer": str((a + b) % HOURS)} for a, b in sums
    ]


def verify(text, problem):
    """True for a response that ends with the gold answer in a box; as a Future, as the evaluator's judges give it."""
    future = Future()
    future.set_result(text.endswith(f"\\boxed{{{problem.gold}}}"))
    return future


def write_jsonl(path, rows):
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
