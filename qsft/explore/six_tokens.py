"""A vocabulary of six tokens in which a target can be looked at: a student, a teacher, and what the data say.

The label is token 0. Sliders set its probability under the student and the teacher; the rest keeps its proportions.
The teacher keeps its four likeliest tokens, as a cache keeps 64 of 150,000, so that the tail rules can be seen.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from qsft.targets.view import TopK

TOKENS = ("y", "a", "b", "c", "d", "e")
KEPT = 4
P_GRID = (0.01, *(i / 20 for i in range(1, 20)), 0.99)
T_GRID = (0.01, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.99)
STUDENT_REST = (0.45, 0.25, 0.15, 0.10, 0.05)
TEACHER_REST = (0.20, 0.45, 0.20, 0.10, 0.05)  # its favourite alternative is another one than the student's
DATA = (0.70, 0.12, 0.08, 0.05, 0.03, 0.02)  # how often each token follows this context in the data


def student(p_y: Float[Tensor, " N"]) -> Float[Tensor, "N V"]:
    """The student's distribution with p_y on the label."""
    return _spread(p_y, STUDENT_REST)


def teacher(t_y: Float[Tensor, " N"]) -> Float[Tensor, "N V"]:
    """The teacher's whole distribution with t_y on the label."""
    return _spread(t_y, TEACHER_REST)


def kept(probs: Float[Tensor, "N V"]) -> TopK:
    """What a cache would keep of a teacher; the label is token 0."""
    top = probs.log().topk(KEPT, dim=-1)
    return TopK(top.indices, top.values, probs[:, 0].log())


def _spread(label: Tensor, rest: tuple[float, ...]) -> Tensor:
    return torch.cat([label[:, None], (1.0 - label)[:, None] * label.new_tensor(rest)], dim=-1)
