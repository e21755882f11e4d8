"""docs/cache_format.md, followed by a reader that uses nothing of qsft."""

import hashlib
import json
import re
import struct
import zlib
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "cache_format.md"


def read_safetensors(path):
    """Metadata and raw bytes of each tensor: the format is eight bytes of length, a JSON header, then the data."""
    raw = path.read_bytes()
    assert hashlib.blake2b(raw, digest_size=16).hexdigest() == path.stem
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    tensors = {
        name: (entry["dtype"], entry["shape"], raw[8 + size :][slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }
    return json.loads(header["__metadata__"]["qsft"]), tensors


def key_of(document):
    ids = document["input_ids"]
    labels = [-100, *document["labels"][1:]]
    content = struct.pack(f"<{2 * len(ids)}i", *ids, *labels)
    return hashlib.blake2b(content, digest_size=16, person=b"qsft document").digest()


class Payload:
    def __init__(self, raw):
        self.raw = raw
        self.at = 0

    def take(self, kind, count):
        size = struct.calcsize(f"<{count}{kind}")
        values = struct.unpack(f"<{count}{kind}", self.raw[self.at : self.at + size])
        self.at += size
        return list(values)


def decode(raw, positions, manifest):
    """[(slots {id: log-prob}, label log-prob, log tail)] of a document."""
    identity = manifest["identity"]
    payload = Payload(raw)
    counts = payload.take("B" if identity["top_k"] < 256 else "H", positions)
    label_logp = payload.take("e", positions)
    log_tail = payload.take("e", positions)
    ids = read_ids(payload, sum(counts), identity["vocab_size"])
    read_logps = {"exact": exact, "compact": compact}[identity["cache_encoding"]]
    logps = read_logps(payload, counts)
    assert payload.at == len(raw)
    made = []
    start = 0
    for count, label, tail in zip(counts, label_logp, log_tail):
        made.append((dict(zip(ids[start : start + count], logps[start : start + count])), label, tail))
        start += count
    return made


def read_ids(payload, slots, vocab_size):
    low, high = divmod(max(1, (vocab_size - 1).bit_length()), 8)
    low_bytes = bytes(payload.take("B", slots * low))
    ids = [int.from_bytes(low_bytes[i * low : (i + 1) * low], "little") for i in range(slots)]
    stream = "".join(f"{byte:08b}" for byte in payload.take("B", -(-slots * high // 8)))
    for i in range(slots):
        for bit in range(high):
            ids[i] |= int(stream[i * high + bit]) << (8 * low + bit)
    return ids


def exact(payload, counts):
    return payload.take("e", sum(counts))


def compact(payload, counts):
    codes = iter(payload.take("H", sum(min(count, 12) for count in counts)))
    steps = payload.take("e", len(counts))
    differences = iter(payload.take("B", sum(max(count - 12, 0) for count in counts)))
    logps = []
    for count, step in zip(counts, steps):
        first = [first_logp(next(codes)) for _ in range(min(count, 12))]
        total = 0
        rest = []
        for _ in range(count - len(first)):
            total += next(differences)
            rest.append(first[-1] - total * step)
        logps += [*first, *rest]
    return logps


def first_logp(code):
    exponent, mantissa = divmod(code, 2048)
    return -(2.0 ** (exponent - 15)) * (1 + mantissa / 2048) if code else 0.0


@pytest.mark.parametrize("encoding", ["exact", "compact"])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.6, "min_k": 2}])
def test_a_reader_that_follows_the_page_reads_what_the_cache_holds(build, documents, encoding, options):
    data = documents(15)
    cache = build(data, cache_encoding=encoding, top_k=16, **options)
    check(cache, data, cache.path)


def check(cache, data, path):
    manifest = json.loads((path / "manifest.json").read_text())
    checksum = manifest.pop("checksum")
    rendered = (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()
    assert hashlib.blake2b(rendered, digest_size=16).hexdigest() == checksum
    found = {}
    for shard in path.glob("*.safetensors"):
        header, tensors = read_safetensors(shard)
        assert header["identity"] == manifest["identity"]
        assert [tensors[name][0] for name in ("keys", "positions", "offsets", "crc", "payload")] == [
            "U8",
            "I32",
            "I64",
            "U32",
            "U8",
        ]
        n = tensors["keys"][1][0]
        keys = [tensors["keys"][2][16 * i : 16 * i + 16] for i in range(n)]
        counts = struct.unpack(f"<{n}i", tensors["positions"][2])
        offsets = struct.unpack(f"<{n + 1}q", tensors["offsets"][2])
        crcs = struct.unpack(f"<{n}I", tensors["crc"][2])
        for i, key in enumerate(keys):
            raw = tensors["payload"][2][offsets[i] : offsets[i + 1]]
            assert zlib.crc32(key + struct.pack("<i", counts[i]) + raw) == crcs[i]
            found[key] = decode(raw, counts[i], manifest)
    for document in data:
        positions = [t for t, label in enumerate(document["labels"]) if t and label != -100]
        if not positions:
            continue
        mine = found[key_of(document)]
        theirs = cache.lookup(document["input_ids"], document["labels"])
        assert len(mine) == len(positions)
        for index, (slots, label, tail) in enumerate(mine):
            live = theirs.live[index]
            assert list(slots) == theirs.ids[index][live].tolist()
            assert list(slots.values()) == pytest.approx(theirs.logps[index][live].tolist(), rel=1e-3)
            assert label == theirs.label_logp[index].item()
            assert tail == theirs.log_tail[index].item()


@pytest.mark.docs
def test_the_page_states_the_true_sizes_and_version():
    from qsft.teacher.format.encoding import bytes_per_label_token
    from qsft.teacher.format.shards import VERSION

    text = PAGE.read_text()
    assert re.findall(r"version (\d+)", text) == [str(VERSION)]
    for encoding in ("exact", "compact"):
        assert f"{bytes_per_label_token(encoding, 64, 151_936):.0f} " in text
