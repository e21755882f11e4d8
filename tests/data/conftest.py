"""Rows with the columns of the paper's training sets, hand-written."""

import json

import pytest


def question(i):
    return f"w{i} + w{i + 1} = ?"


def answer(i):
    return " ".join(f"w{j}" for j in range(i % 5 + 1))


ROWS = {
    "numina": lambda i: {"data_source": "x", "extra_info": {"question": question(i), "answer": answer(i), "index": i}},
    "openr1": lambda i: {
        "prompt": [{"role": "system", "content": "w9 w9"}, {"role": "user", "content": question(i)}],
        "target": [{"role": "assistant", "content": answer(i)}] if i % 7 else None,
    },
    "m23k": lambda i: {
        "prompt": question(i),
        "answer_letter": "A",
        "answer_string": "w1",
        "reasoning": "w7 w8",
        "distilled_answer_string": answer(i),
    },
}


@pytest.fixture
def rows_file(tmp_path):
    """Factory: `rows_file("numina", 20)` writes 20 rows with that set's columns as JSON lines; its path."""

    def write(name, count=20, drop=None):
        path = tmp_path / f"{name}.jsonl"
        rows = [{k: v for k, v in ROWS[name](i).items() if k != drop} for i in range(count)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write
