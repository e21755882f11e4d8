"""Pictures as self-contained HTML: the targets, the tokens of your data, where teacher and student disagree, a run.

The public names are imported on first use.
"""

from importlib import import_module

_NAMES = {
    "explorer": ("targets_page", "curves_figure"),
    "tokens": ("xray", "tokens_page"),
    "alignment": ("measure_alignment", "in_words"),
    "heatmap": ("alignment_figure", "pull_figure", "reliability_figure", "alignment_page"),
    "runs": ("read_run", "run_figures", "run_page"),
}
_HOME = {name: f"qsft.explore.{module}" for module, names in _NAMES.items() for name in names}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'qsft.explore' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)
