"""One process of a launched capture: capture_worker.py DATA TEACHER CACHE, a shard per batch."""

import json
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from qsft.processes import exit_process
from qsft.teacher.capture import rendezvous
from qsft.teacher.capture.capture import build_cache

if __name__ == "__main__":
    data, teacher, cache = sys.argv[1:]
    rendezvous.ARRIVAL_SECONDS = 5.0  # a process may be killed before it arrives
    documents = json.loads(Path(data).read_text())
    settings = {"top_k": 8, "batch_tokens": 64, "shard_bytes": 1, "patience": 5.0, "progress": False}
    build_cache(documents, teacher, cache, tokenizer=PreTrainedTokenizerFast.from_pretrained(teacher), **settings)
    exit_process(0)
