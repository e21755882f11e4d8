"""Pictures as self-contained HTML: the targets, the tokens of your data, where teacher and student disagree, a run.

The public names are imported on first use.
"""

from importlib import import_module

_HOME = {
    "targets_page": "qsft.explore.targets",
    "tokens_page": "qsft.explore.tokens",
    "alignment": "qsft.explore.alignment",
    "alignment_page": "qsft.explore.alignment",
    "run_page": "qsft.explore.runs",
    "probe": "qsft.explore.probe",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'qsft.explore' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)
