# The public names for editors and type checkers, which do not run __getattr__ of __init__.py.
from qsft.evals.evaluate import evaluate as evaluate
from qsft.evals.grading.pool import grade as grade
from qsft.losses.fused import fused_target_loss as fused_target_loss
from qsft.losses.reference import target_loss as target_loss
from qsft.targets.fixed_point import fixed_point as fixed_point
from qsft.targets.registry import TARGETS as TARGETS
from qsft.targets.registry import make_target as make_target
from qsft.targets.target import LossTarget as LossTarget
from qsft.targets.target import Target as Target
from qsft.targets.target import induced_target as induced_target
from qsft.targets.view import SideInputs as SideInputs
from qsft.targets.view import TokenView as TokenView
from qsft.targets.view import TopK as TopK
from qsft.teacher.cache import TeacherCache as TeacherCache
from qsft.teacher.capture.capture import build_cache as build_cache
from qsft.train.collator import TeacherCollator as TeacherCollator
from qsft.train.config import TargetSFTConfig as TargetSFTConfig
from qsft.train.trainer import TargetSFTTrainer as TargetSFTTrainer

__version__: str
__all__: list[str]
