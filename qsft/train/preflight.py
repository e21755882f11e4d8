"""Before the first step every document is looked up: what is missing is said now, not in the third hour."""

from transformers.utils import logging

from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import Documents
from qsft.train.collator import WHY_MISSING

logger = logging.get_logger(__name__)


def refuse_missing(cache: TeacherCache, documents: Documents, missing: str) -> None:
    """Raise when the cache lacks documents; with missing="self" say how many will train without a teacher."""
    absent = cache.missing(documents, check=False)
    if not absent:
        return
    count = f"{len(absent)} of {len(documents)} documents are not in the teacher cache {cache.path}"
    if missing == "self":
        logger.warning(f"{count}; they train with the student's own distribution as the residual (fallback_tokens).")
        return
    first = documents[absent[0]]["input_ids"]
    raise ValueError(
        f"{count} ({len(cache)} documents). The first has {len(first)} tokens and starts {first[:12].tolist()}. "
        f"{WHY_MISSING} `qsft cache build RECIPE` adds what is missing, as does teacher_model_name_or_path=NAME here; "
        "teacher_missing='self' trains those documents without a teacher."
    )
