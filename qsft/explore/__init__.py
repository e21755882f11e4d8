"""Pictures as self-contained HTML: the targets, the tokens of your data, where teacher and student disagree, a run.

The public names are imported on first use.
"""

from importlib import import_module

_HOME = {
    "targets_page": "qsft.explore.targets",
    "curves_figure": "qsft.explore.curves",
    "xray": "qsft.explore.tokens",
    "tokens_page": "qsft.explore.tokens",
    "measure_alignment": "qsft.explore.alignment",
    "in_words": "qsft.explore.sentences",
    "alignment_figure": "qsft.explore.heatmap",
    "pull_figure": "qsft.explore.heatmap",
    "reliability_figure": "qsft.explore.heatmap",
    "alignment_page": "qsft.explore.heatmap",
    "read_run": "qsft.explore.runs",
    "run_figures": "qsft.explore.runs",
    "run_page": "qsft.explore.runs",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'qsft.explore' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)
