"""The source for whatever a user names as the teacher."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from qsft.teacher.sources.source import TeacherSource
from qsft.teacher.sources.transformers_source import TransformersSource

TeacherOrSource = str | Path | nn.Module | TeacherSource


def open_source(
    teacher: TeacherOrSource,
    *,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    device: str | torch.device | None = None,
    model_kwargs: dict[str, Any] | None = None,
) -> TeacherSource:
    """Return a source for `teacher`: a model, a directory, a Hub id, or a source, which is returned as it is."""
    if isinstance(teacher, TeacherSource):
        return teacher
    return TransformersSource(teacher, dtype=dtype, revision=revision, device=device, model_kwargs=model_kwargs)
