"""`loss` in the log and `eval_loss` are the published loss of the target, for every named target."""

from types import SimpleNamespace

import pytest
import torch
from published_losses import published

from qsft.targets.registry import TARGETS
from qsft.targets.view import SideInputs, TopK

K = 16
SETTINGS = {"profit": {"tau": 0.003}}  # the model is untrained: it finds nothing likely


@pytest.mark.parametrize("name", TARGETS)
def test_the_log_shows_the_published_loss(trainer, data, tiny_model, logged, name):
    student = tiny_model()
    teacher = tiny_model(seed=5)
    hparams = {**TARGETS[name].hyper_parameters, **SETTINGS.get(name, {})}
    rows = data.tokens(8)
    rows = rows.add_column("critical", [[place % 2 for place in range(len(ids))] for ids in rows["input_ids"]])
    made = trainer(
        rows if name == "cft" else rows.remove_columns("critical"),
        model=student,
        target=name,
        target_kwargs=SETTINGS.get(name),
        teacher=teacher,
        teacher_top_k=K,
        teacher_live=True,
        eval_dataset=rows if name == "cft" else rows.remove_columns("critical"),
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=len(rows),
        max_steps=1,
        learning_rate=0.0,
    )
    made.train()
    batch = dense_batch(made.data_collator(list(made.train_dataset)), student.eval(), teacher.eval())
    tokens = int((batch.labels != -100).sum())
    expected = float(published(name, batch, hparams)) / tokens
    assert logged(made) == pytest.approx([expected], rel=1e-5)
    # psft has no old policy in evaluation, and reports the negative log-likelihood.
    evaluated = expected if name != "psft" else float(published("sft", batch, {})) / tokens
    assert made.evaluate()["eval_loss"] == pytest.approx(evaluated, rel=1e-5)


def dense_batch(inputs, student, teacher):
    """Full logits of a batch, flattened, with the labels that they predict and what targets read beside them."""
    labels = inputs["labels"][:, 1:]
    predicted = {}
    for name, model in (("student", student), ("teacher", teacher)):
        with torch.no_grad():
            logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        predicted[name] = logits[:, :-1].flatten(0, 1).double()
    index = labels.flatten().clamp(min=0)[:, None]
    student_logps = predicted["student"].log_softmax(dim=-1)
    teacher_logps = predicted["teacher"].log_softmax(dim=-1)
    logps, ids = teacher_logps.topk(K)
    label_logp = teacher_logps.gather(-1, index)[:, 0]
    log_tail = torch.log(-torch.expm1(logps.logsumexp(dim=-1)))
    side = SideInputs(
        ref_logp=label_logp,
        old_logp=student_logps.gather(-1, index)[:, 0],
        critical=inputs["critical"][:, 1:].flatten() if "critical" in inputs else None,
        document=torch.arange(len(labels)).repeat_interleave(labels.shape[1]),
    )
    teacher_topk = TopK(ids, logps, label_logp, log_tail)
    return SimpleNamespace(labels=labels.flatten(), logits=predicted["student"], side=side, teacher=teacher_topk)
