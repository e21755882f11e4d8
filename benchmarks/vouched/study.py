"""One run of the study: the demo's world in a lean loop on the product's own targets and reference loss."""

import copy
import math
from dataclasses import dataclass, replace
from random import Random

import torch
from rich.console import Console
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from qsft.demo.foundation import make_models
from qsft.demo.measure import LONGEST, knowledge
from qsft.demo.scenario import Phases, Scenario, load
from qsft.demo.world import MODULUS, PROMPT_LENGTH, TIMES, WORDS, Writer, chains, encode, given_answer
from qsft.losses.reference import target_loss
from qsft.targets.residual import SelfPrior
from qsft.targets.target import Target
from qsft.targets.view import TokenView, TopK
from qsft.targets.zoo import make_target

SAMPLES = 8
START, PRIOR = 0.5, 10.0
BINS = 5
RATES = {"dft": 1e-3}
RIVALS = ("target", "beyond_log")
CANDIDATES = ("vouched", "vouched_bins")
NO_TEACHER = ("sft", "dft", "beyond_log")
ROWS = {
    "sft": make_target("sft"),
    "dft": make_target("dft"),
    "beyond_log": make_target("beyond_log", alpha=0.5),
    "kd": make_target("kd"),
    "kd_sharpened": make_target("kd", temperature=0.5),
    "target": make_target("target", eta=0.5),
    "target_0.2": make_target("target", eta=0.2),
    "target_1.0": make_target("target", eta=1.0),
}
METHODS = (*RIVALS, *CANDIDATES, *(name for name in ROWS if name not in RIVALS), "vouched_running")


@dataclass(frozen=True)
class SharingWriter(Writer):
    """A demonstrator whose slips at products are often the wrong teacher's own error."""

    shared: float = 0.4

    def result(self, operation: str, operand: int, random: Random) -> int:
        result = super().result(operation, operand, random)
        right = super(SharingWriter, replace(self, slips=0.0)).result(operation, operand, Random(0))
        shares = random.random() < self.shared
        return (right + 1) % MODULUS if result != right and operation[0] == TIMES and shares else result


WORLDS = {
    "right": Scenario(),
    "wrong": Scenario(teacher="wrong"),
    "half": Scenario(teacher="half"),
    "clean": Scenario(noise=0.0),
    "shared": Scenario(teacher="wrong"),
    "noise50": Scenario(noise=0.5),
}


def teacherless(run: tuple[int, str, str]) -> tuple[int, str, str]:
    """The run that stands for this one: without a teacher, worlds with the same demonstrations are one."""
    seed, world, method = run
    return (seed, "right", method) if method in NO_TEACHER and world in ("wrong", "half") else run


class Vouched:
    """γ = max(√p_y, r_y·T_y), with r by token, or by token and claim."""

    needs = frozenset({"teacher"})

    def __init__(self, reliability: "Reliability") -> None:
        self.reliability = reliability

    def __call__(self, view: TokenView) -> Tensor:
        self.reliability.see(view)
        assert isinstance(view.teacher, TopK)
        assert view.teacher.label_logp is not None
        claim = view.teacher.label_logp.exp()
        r = self.reliability.of(view.labels, claim)
        return torch.maximum((0.5 * view.label_logp).exp(), r * claim).clamp(max=1.0)


class Reliability:
    """r_a = (½·10 + Σ w·1[y=a]) / (10 + Σ w·T_a), by token a and (with bins > 1) by the claim T_a."""

    def __init__(self, bins: int = 1, running: bool = False) -> None:
        self.bins, self.running = bins, running
        self.borne_out = torch.full((len(WORDS), bins), START * PRIOR)
        self.claimed = torch.full((len(WORDS), bins), PRIOR)

    def see(self, view: TokenView) -> None:
        """The running form counts what the student does not know yet."""
        if self.running:
            assert isinstance(view.teacher, TopK)
            first, claim = view.teacher.ids[:, 0], view.teacher.logps[:, 0].exp()
            own = view.logp_at(view.teacher.ids[:, :1])[:, 0].exp()
            self.add(first, claim, view.labels, (claim - own).clamp(min=0.0))

    def add(self, first: Tensor, claim: Tensor, labels: Tensor, weight: Tensor) -> None:
        at = (first, self._bin(claim))
        self.borne_out.index_put_(at, weight * (labels == first), accumulate=True)
        self.claimed.index_put_(at, weight * claim, accumulate=True)

    def of(self, tokens: Tensor, claim: Tensor) -> Tensor:
        return (self.borne_out / self.claimed).clamp(0.0, 1.0)[tokens, self._bin(claim)]

    def _bin(self, claim: Tensor) -> Tensor:
        return (claim * self.bins).long().clamp(0, self.bins - 1)


class Bench:
    """A seed of a world: base, demonstrations, the teacher's top-16 on them, and problems to measure on."""

    def __init__(self, seed: int, world: str, console: Console) -> None:
        self.seed, self.world, self.samples = seed, world, SAMPLES
        self.scenario = scenario = replace(WORLDS[world], seed=seed)
        models = make_models(scenario, Phases(console))
        writer = scenario.demonstrator
        if world == "shared":
            writer = SharingWriter(slips=writer.slips, preferred=writer.preferred)
        held_out = frozenset(scenario.evaluation)
        documents = chains(writer, scenario.fine_tuning.documents, seed, without=held_out)
        self.base = load(models.base)
        self.ids = torch.tensor([encode(document) for document in documents])
        self.labels = self.ids[:, PROMPT_LENGTH:]
        self.teacher = self._ask(load(models.teacher).eval())

    @torch.no_grad()
    def _ask(self, teacher: PreTrainedModel) -> TopK:
        """The teacher's rows, [documents · label tokens, 16]."""
        pieces = []
        for ids, labels in zip(self.ids.split(512), self.labels.split(512)):
            logps = teacher(ids).logits[:, PROMPT_LENGTH - 1 : -1].log_softmax(dim=-1)
            top = logps.topk(self.scenario.top_k, dim=-1)
            pieces.append((top.indices, top.values, logps.gather(-1, labels[..., None])[..., 0]))
        ids, logps, label = (torch.cat(column).flatten(0, 1) for column in zip(*pieces))
        return TopK(ids, logps, label)

    def target(self, method: str) -> Target:
        """A row of the table, or the candidate in one of its forms."""
        if method in ROWS:
            return ROWS[method]
        reliability = Reliability(bins=BINS if method == "vouched_bins" else 1, running=method == "vouched_running")
        if not reliability.running:
            claim = self.teacher.logps[:, 0].exp()
            reliability.add(self.teacher.ids[:, 0], claim, self.labels.flatten(), claim)
        return Target(Vouched(reliability), SelfPrior())

    def run(self, method: str) -> tuple[list[int], dict[str, float]]:
        """Right samples of each problem after training with a method, and the facts the student then knows."""
        model = copy.deepcopy(self.base)
        self._train(model, self.target(method), RATES.get(method, self.scenario.fine_tuning.learning_rate))
        return self._measure(model), {kind: round(share, 3) for kind, share in knowledge(model).items()}

    def _train(self, model: PreTrainedModel, target: Target, rate: float) -> None:
        phase, width = self.scenario.fine_tuning, self.labels.shape[1]
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
        order = torch.randperm(len(self.ids), generator=torch.Generator().manual_seed(self.seed))
        model.train()
        for step in range(phase.steps):
            optimizer.param_groups[0]["lr"] = rate * _schedule(step, phase.steps)
            rows = order[step * phase.batch : (step + 1) * phase.batch]
            logits = model(self.ids[rows]).logits[:, PROMPT_LENGTH - 1 : -1].flatten(0, 1)
            teacher = None
            if "teacher" in target.needs:
                teacher = self.teacher[(rows[:, None] * width + torch.arange(width)).flatten()]
            loss = target_loss(logits, self.labels[rows].flatten(), target, teacher) / len(logits)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _measure(self, model: PreTrainedModel) -> list[int]:
        problems = self.scenario.evaluation
        asked = torch.tensor([encode(p.prompt) for p in problems]).repeat_interleave(SAMPLES, dim=0)
        generator, cache, out, ids = torch.Generator().manual_seed(self.seed), DynamicCache(), [], asked
        model.eval()
        for _ in range(LONGEST):
            p = model(ids, past_key_values=cache).logits[:, -1].softmax(dim=-1)
            ids = torch.multinomial(p, 1, generator=generator)
            out.append(ids)
        words = [[WORDS[i] for i in row] for row in torch.cat(out, dim=1).tolist()]
        right = [given_answer(row) == problems[n // SAMPLES].answer for n, row in enumerate(words)]
        return [sum(right[n : n + SAMPLES]) for n in range(0, len(right), SAMPLES)]


def _schedule(step: int, steps: int) -> float:
    """A tenth of warm-up, then a cosine to zero."""
    warmup = max(1, steps // 10)
    if step < warmup:
        return step / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
