"""What to train on: the settings, and the paper's three training sets with their columns.

A source is one short function from a row to (question, response), or None for a row without a demonstration. A data
set that is not listed here is passed to TRL unchanged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from qsft.data.prompts import CONVERSATIONS
from qsft.files import read_json

Row = Mapping[str, Any]
Demonstration = tuple[str, str]  # question, response
Reader = Callable[[Row, str], Demonstration | None]


def key(default: Any, text: str, **more: Any) -> Any:
    """Return the dataclass field of a key with its help text, and further metadata such as `choices`."""
    return field(default=default, metadata={"help": text, **more})


@dataclass
class DataSettings:
    """What to train on. Every field is a key of a recipe."""

    dataset_name: str | None = key(
        None,
        "One of numina, openr1 and m23k, the Hub id or path of a data set in one of TRL's formats, or module:function. "
        "The function is called with the seed and returns a Dataset.",
    )
    dataset_config: str | None = key(None, "Configuration name of a Hub data set.")
    dataset_train_split: str = key("train", "Split to train on.")
    dataset_revision: str | None = key(None, "Commit, tag or branch of a Hub data set.")
    data_dir: str | None = key(
        None, "Local file or directory to read instead of the Hub, with the columns of `dataset_name`."
    )
    question_column: str | None = key(
        None, "Column of the question in a data set of your own. Requires response_column."
    )
    response_column: str | None = key(
        None, "Column of the response in a data set of your own. Requires question_column."
    )
    prompt: str = key(
        "question",
        "How the question is asked. question: the question alone, in the tokenizer's own template. boxed: a system "
        "turn and the instruction to put the answer within \\boxed{}. qwen-math: the instruction as the system turn.",
        choices=CONVERSATIONS,
    )
    response: str | None = key(
        None, "The response of m23k: distilled (only the final answer's text) or reasoning (with the reasoning)."
    )
    max_row_tokens: int | None = key(
        None, "Keep only rows with fewer tokens than this (default: keep all and truncate)."
    )
    sample_rows: int | None = key(
        None, "Number of rows to train on, from the start of the shuffled data set (default: all)."
    )
    sample_seed: int = key(42, "Seed of the shuffle before `sample_rows` selects rows.")


CURATED_MANIFEST = "manifest.json"  # in a directory that `qsft curate` wrote
DEFAULTS = {item.name: item.default for item in fields(DataSettings)}


def field_of(row: Row, name: str) -> Any:
    """Return a column's value; `a.b` is field b of the struct column a."""
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


@dataclass(frozen=True)
class Source:
    """A training set of the paper: its hub id, the columns it is read from, and how a row becomes a demonstration."""

    name: str
    hub: str
    columns: Mapping[str, tuple[str, ...]]  # per choice of the setting `response`; dotted where a column is a struct
    rows: int  # about, as published: for a plan made before anything is downloaded
    read: Reader
    gold: str | None = None  # where `qsft curate` finds the gold answer: a column, or boxed in the demonstration

    @property
    def default_response(self) -> str:
        return next(iter(self.columns))

    def demonstration(self, row: Row, response: str) -> Demonstration | None:
        """Return (question, response) of one row; None where either is missing or empty."""
        pair = self.read(row, response)
        if pair is None or not all(isinstance(text, str) and text.strip() for text in pair):
            return None
        return pair


def numina(row: Row, response: str) -> Demonstration | None:
    """Competition problems with worked solutions, a subset of NuminaMath-CoT."""
    return row["extra_info"]["question"], row["extra_info"]["answer"]


def openr1(row: Row, response: str) -> Demonstration | None:
    """Long reasoning traces: its system prompt is dropped, the target kept verbatim; some targets are null."""
    questions = [turn["content"] for turn in row["prompt"] or () if turn["role"] == "user"]
    answers = [turn["content"] for turn in row["target"] or () if turn["role"] == "assistant"]
    return (questions[-1], answers[-1]) if questions and answers else None


def m23k(row: Row, response: str) -> Demonstration | None:
    """Medical questions. `distilled`: the final answer's text; `reasoning`: the reasoning, a blank line, that text."""
    answer = row["distilled_answer_string"]
    if response == "distilled":
        return row["prompt"], answer
    return (row["prompt"], f"{row['reasoning']}\n\n{answer}") if row["reasoning"] and answer else None


NUMINA = {"full": ("extra_info.question", "extra_info.answer")}
OPENR1 = {"full": ("prompt", "target")}
M23K = {
    "distilled": ("prompt", "distilled_answer_string"),
    "reasoning": ("prompt", "reasoning", "distilled_answer_string"),
}
SOURCES = {
    "numina": Source("numina", "gaotang/numina-cot-subset-67k", NUMINA, 67_600, numina, gold="boxed"),
    "openr1": Source("openr1", "Elliott/Openr1-Math-46k-8192", OPENR1, 46_000, openr1, gold="boxed"),
    "m23k": Source("m23k", "UCSC-VLAA/m23k-tokenized", M23K, 23_500, m23k, gold="answer_letter"),
}
# Question and response as two text columns: how `qsft curate` writes what it made of a set like those above.
PAIRS = Source("pairs", "", {"full": ("question", "response")}, 0, lambda row, _: (row["question"], row["response"]))


def find_source(where: DataSettings) -> Source | None:
    """Return the user's own two columns, the paper's set, or the pairs in a curated directory.

    None for any other data set, which TRL reads.
    """
    question = where.question_column
    response = where.response_column
    if (question is None) != (response is None):
        raise ValueError("question_column and response_column are given together; one of them is missing.")
    if question is not None and response is not None:

        def read(row: Row, _: str) -> Demonstration:
            return field_of(row, question), field_of(row, response)

        base = SOURCES.get(where.dataset_name or "", PAIRS)
        return replace(base, columns={"full": (question, response)}, read=read)
    if where.dataset_name in SOURCES:
        return SOURCES[where.dataset_name]
    return PAIRS if curated_format(where.dataset_name) == PAIRS.name else None


def curated_format(dataset: str | None) -> str | None:
    """Return the format of the rows in a directory written by `qsft curate`; None for any other data set."""
    manifest = Path(dataset or "", CURATED_MANIFEST)
    if not manifest.is_file():
        return None
    row_format = read_json(manifest, "Curate again, or give another data set.").get("format")
    return row_format if isinstance(row_format, str) else None
