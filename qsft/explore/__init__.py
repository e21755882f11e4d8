"""Self-contained HTML pages: the targets, the tokens of a data set, teacher and student compared, training curves.

The public names are imported on first use.
"""

from importlib import import_module

_NAMES_BY_MODULE = {
    "target_explorer": ("targets_page", "curves_figure"),
    "token_xray": ("xray", "tokens_page"),
    "alignment": ("measure_alignment",),
    "alignment_summary": ("in_words",),
    "alignment_report": ("alignment_figure", "pull_figure", "reliability_figure", "alignment_page"),
    "training_curves": ("read_run", "run_figures", "run_page"),
}
_MODULES = {name: f"qsft.explore.{module}" for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'qsft.explore' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(_MODULES[name]), name)
