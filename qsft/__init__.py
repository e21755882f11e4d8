"""qsft: supervised fine-tuning as target distribution design.

Every SFT variant is a choice of target Q = γ·δ_y + (1−γ)·π̃ that the model should match.
The public names below are imported on first use, so `import qsft` costs nothing.
"""

from importlib import import_module

__version__ = "0.2.0"

_MODULES = {
    "Target": "qsft.targets.target",
    "TARGETS": "qsft.targets.registry",
    "make_target": "qsft.targets.registry",
    "TokenView": "qsft.targets.view",
    "TopK": "qsft.targets.view",
    "SideInputs": "qsft.targets.view",
    "induced_target": "qsft.targets.target",
    "LossTarget": "qsft.targets.target",
    "fixed_point": "qsft.targets.fixed_point",
    "target_loss": "qsft.losses.reference",
    "fused_target_loss": "qsft.losses.fused",
    "TeacherCache": "qsft.teacher.cache",
    "build_cache": "qsft.teacher.capture.capture",
    "TargetSFTConfig": "qsft.train.config",
    "TeacherCollator": "qsft.train.collator",
    "TargetSFTTrainer": "qsft.train.trainer",
    "evaluate": "qsft.evals.evaluate",
    "grade": "qsft.evals.grading.pool",
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'qsft' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
