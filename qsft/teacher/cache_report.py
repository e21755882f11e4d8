"""What `qsft cache` says of a cache: who made it, how large it is, whether it is sound and a given teacher's."""

from collections.abc import Sequence
from pathlib import Path

from qsft.files import shown
from qsft.teacher.identity import teacher_difference
from qsft.teacher.lookup import TeacherCache
from qsft.teacher.source import TeacherSource
from qsft.teacher.verify import CONFIDENCE, compare_with_teacher, sample_documents, verify_cache


def describe(directory: str | Path) -> str:
    """Identity and measured facts."""
    cache = TeacherCache(directory)
    identity, teacher = cache.manifest.identity, cache.manifest.identity.teacher
    rows = [
        ("teacher", f"{teacher.get('name')}{' @ ' + teacher['revision'] if teacher.get('revision') else ''}"),
        ("computed in", identity.dtype),
        ("vocabulary", f"{identity.vocab_size:,} rows, {identity.tokenizer['tokens']:,} tokens"),
        ("encoding", f"{identity.encoding}, k={identity.k}" + (f", top_p={identity.top_p}" if identity.top_p else "")),
        ("documents", f"{len(cache):,} in {len(cache.shards)} shards"),
    ]
    measured = {name: value for name, value in cache.manifest.measured.items() if name != "documents"}
    rows += [(name.replace("_", " "), f"{value:,.6g}") for name, value in measured.items()]
    rows += [(f"made with {name}", version) for name, version in cache.manifest.libraries.items()]
    return "\n".join([f"teacher cache {shown(cache.path)}", *_columns(rows)])


def verify_files(directory: str | Path, *, drop: bool) -> tuple[bool, str]:
    """Whether every file is what was written, and what to say about it; `drop` removes what is not."""
    if not Path(directory).is_dir():
        raise ValueError(f"there is no directory {directory}, so nothing to verify. `qsft cache build` makes one.")
    report = verify_cache(directory)
    if report.ok:
        found = f"{report.documents:,} documents, {report.label_tokens:,} label tokens, {report.bytes / 1e6:,.1f} MB"
        return True, f"{found}: all sound"
    lines = [f"- {why}" for why in report.problems.values()]
    lines.append(f"{len(report.problems)} unsound files in {shown(report.path)}")
    if drop:
        gone = f"removed {len(report.problems) - len(report.kept)}; {report.drop():,} documents are left"
        lines.append(f"{gone}. Build the cache again for the others.")
    return False, "\n".join(lines)


def verify_values(
    directory: str | Path, teacher: str, revision: str | None, sample: int, tolerance: float
) -> tuple[bool, str]:
    """Whether sampled documents are what the teacher says now, at the position they are stored for, and the table."""
    cache = TeacherCache(directory)
    source = TeacherSource(teacher, dtype=cache.manifest.identity.dtype, revision=revision)
    documents = sample_documents(cache, sample)
    check = compare_with_teacher(cache, source.load(), documents)
    difference = teacher_difference(cache.manifest.identity.teacher, source.describe())
    lines = [f"note: the cache holds the distributions of {difference}"] if difference else []
    lines.append(f"\n{len(documents)} documents of {len(cache.shards)} shards computed again with {teacher}:")
    header = ("shift", "KL(cached‖live)", "same top-1", "label tokens")
    rows = ((f"{r.shift:+d}", f"{r.kl:.3g}", f"{r.top1:.1%}", f"{r.label_tokens:,}") for r in check.table)
    lines += _columns([header, *rows])
    aligned = check.is_aligned(tolerance)
    said = (
        f"aligned: shift 0 is the teacher. None of the sample differs, so with {CONFIDENCE:.0%} confidence at most "
        f"{check.undetected_share:.1%} of all documents do (--sample N looks closer)"
        if aligned
        else f"NOT aligned: the cached rows of {check.differing(tolerance)} of {len(documents)} documents are not this "
        "teacher's at shift 0"
    )
    return aligned, "\n".join([*lines, said])


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
