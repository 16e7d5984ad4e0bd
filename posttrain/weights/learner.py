"""The learner: one objective of a method, the parameters it moves, its optimiser and reference, and one update from a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.batch import Batch, pad
from posttrain.core.critic import CriticSettings
from posttrain.core.errors import UserError
from posttrain.core.method import Method, Objective
from posttrain.core.protocols import Policy
from posttrain.core.registry import Part
from posttrain.core.thinking import phases
from posttrain.core.turn import Turn
from posttrain.losses.aggregate import Totals
from posttrain.losses.objective import objective
from posttrain.models.captured import capture
from posttrain.weights.batches import micro_batches, minibatches
from posttrain.weights.beside import asked_of, told, with_live
from posttrain.weights.critic import halves, optimiser_of, values_read, with_critic
from posttrain.weights.minibatch import minibatch, scatter
from posttrain.weights.parallel import Local
from posttrain.weights.schedules import SCHEDULES
from posttrain.weights.settings import check_optimiser
from posttrain.weights.tally import Piece, Tally


@dataclass
class Learner:
    """The policy, its optimiser and reference: everything that an update changes."""

    policy: Policy
    method: Method
    seed: int = 0
    lr: float | None = None
    warmup: int = 0
    max_norm: float = 1.0
    micro_tokens: int = 16384
    decay_over: int = 0  # steps over which the learning rate falls; 0 keeps it constant
    schedule: str = "linear"  # how it falls: a name of weights/schedules.py
    min_lr: float = 0.0  # where it falls to
    objective: Objective | None = None  # the method's first unless given
    critic: CriticSettings | None = None  # how its critic learns; the method's own choice unless given
    parallel: Local = field(default_factory=Local)  # how its passes are divided among processes
    optimiser: torch.optim.Optimizer = field(init=False)
    reference: Any = field(init=False, default=None)
    updates: int = 0  # of the policy; a critic that learns alone at first has more
    critic_updates: int = 0
    skipped: int = 0
    memory: dict[str, float] = field(default_factory=dict)  # what a loss remembers from update to update
    first_gap: tuple[Turn, int, float] | None = field(init=False, default=None)  # row, action, a step's largest gap
    meanwhile: Callable[[], None] | None = field(init=False, default=None)  # what can be done while the device is busy

    def __post_init__(self) -> None:
        o = self.goal = self.objective or self.method.objectives[0]
        self.how = self.critic or self.method.critic
        self._values = values_read(self.reads)
        if self._values:
            with_critic(self.policy, self.how)
        self.kept, self._beside = asked_of(o.reference, self.reads, self.method.rollout)
        if self.kept or self._beside:
            self.reference = o.reference.live()
            self.parallel.check_reference(self.reference)
            self.reference.start(self.policy)
            for network in self.reference.networks:
                self.parallel.wrap(network, learns=False)
        self.parallel.wrap(self.policy)
        part: Part = o.optimiser if self.lr is None else o.optimiser.but(lr=self.lr)
        check_optimiser(part)
        self.parallel.check_optimiser(part.name)
        own = getattr(self.policy, "parameters_of", None)
        named = own(o.role) if own else self.policy.named_parameters()
        self.masters = self.parallel.masters((n, p) for n, p in named if p.requires_grad)
        mine: float = self.how.lr if self.how.lr is not None else part.defaults().get("lr", 0.0) * self.how.pace
        capture(self.policy, bool(self.method.rollout.card.data))
        self._own, self._critic = halves(self.named_parameters()) if self._values else (self.named_parameters(), [])
        if self._critic:
            self.optimiser, self._of_critic = optimiser_of(part, self.named_parameters(), mine)
        else:
            self.optimiser = part(self.named_parameters())
            self._of_critic = [False] * len(self.optimiser.param_groups)
        self._base_lr = [g["lr"] for g in self.optimiser.param_groups]
        self._first_pass = True

    @property
    def reads(self) -> set[str]:
        """Streams that are read: by its own loss and terms, and for the policy's learner the parts before the loss."""
        return self.method.reads if self.objective is None else self.goal.reads

    @property
    def _beta(self) -> float | None:
        """The scale of the implicit rewards of a loss that compares the policy's log-probabilities of pairs."""
        part = self.goal.loss
        compares = part.card.stage == "preference_loss" and "chosen_P" in part.card.reads
        return float(part.defaults().get("beta") or part.defaults().get("alpha") or 1.0) if compares else None

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """What the optimiser moves: float32 masters of half-precision weights, the weights themselves otherwise."""
        return self.masters.named

    @torch.no_grad()
    def annotate(self, rows: list[Turn], batch: Batch) -> Batch:
        """The streams that come from frozen networks (the reference's log-probabilities, the critic's values), and where thoughts are."""
        if "thought_BT" in self.reads:
            T = batch.mask_BT.shape[1]
            batch = batch.but(thought_BT=pad([phases(self.policy.decode, row) for row in rows], T))
        ref = self.kept
        before = [*self._values, *(["entropy_BT"] if "old_entropy_BT" in self.reads else [])]
        old = [f"old_{name}" for name in before]
        if not ref and not old:
            return batch
        cells = list(self._micro(batch, torch.arange(len(rows))))
        made: list[tuple[int, dict[str, Tensor]]] = []
        for i, counts in self.parallel.pieces([self.cost(batch, cell) for cell in cells]):
            some = [rows[k] for k in cells[i].tolist()]
            given = told(self.reference, some, ref)
            live = self.policy.forward(some, before) if old else {}
            if counts:
                made.append((i, given | {f"old_{n}": live[n] for n in before}))
        every = self.parallel.gather(made)  # on the device that made them, where there is one process
        return batch.but(**{name: scatter(cells, [x[name] for x in every], batch) for name in (*ref, *old)})

    def update(self, rows: list[Turn], batch: Batch, step: int) -> dict[str, float]:
        """Every pass and minibatch of a step; returns the metrics, averaged."""
        seen: list[dict[str, float]] = []
        self.first_gap = None
        for epoch in range(self.method.epochs):
            self._first_pass = epoch == 0 and self.objective is None
            for chosen in self._minibatches(batch, step, epoch):
                seen.append(self._one(rows, batch, chosen, step))
        if self.reference is not None:
            self.reference.after_step(self.policy, step)
        if hasattr(self.policy, "after_update"):  # parts that follow others: target networks
            self.policy.after_update(self.goal.role)
        keys = seen[0].keys() if seen else ()
        out = {k: _mean([s[k] for s in seen]) for k in keys}
        out["skipped"] = float(self.skipped)
        if seen and "logp_gap" in seen[0]:  # before any update: later ones differ because the policy moved
            out |= {k: seen[0][k] for k in ("logp_gap", "logp_gap_max")}
        return out

    def after_eval(self, score: float) -> bool:
        """A held-out score: a reference that is renewed by it (ProRL) takes the optimiser's moments with it."""
        renewed = self.reference is not None and self.reference.after_eval(self.policy, score)
        if renewed:
            self.optimiser.state.clear()
        return renewed

    def _one(self, rows: list[Turn], batch: Batch, chosen: Tensor, step: int) -> dict[str, float]:
        mini = minibatch(self, rows, batch, chosen)
        totals, place_B = Totals.of(mini), mini["place_B"]
        cells = list(self._micro(mini, torch.arange(len(place_B))))
        made: list[tuple[int, Piece]] = []
        self.optimiser.zero_grad(set_to_none=True)
        if not getattr(self.policy, "training", False):
            self.policy.train()
        for i, counts in self.parallel.pieces([self.cost(mini, cell) for cell in cells]):
            part, index = mini.rows(cells[i]), place_B[cells[i]]
            some = [rows[k] for k in index.tolist()]
            live = self.policy.forward(some, self._streams())
            part = with_live(part, live, told(self.reference, some, self._beside))
            loss, _ = objective(part, totals, self.goal.loss, self.goal.aggregate, self.goal.terms)
            self.parallel.backward(loss, live.values(), counts)
            self.parallel.after_piece(self.named_parameters())
            if counts:
                made.append((i, Piece.of(index, float(loss.detach()), part, self._first_pass, self._beta)))
        self.parallel.reduce(self.named_parameters())
        seen = self._step(step)
        tally, at = Tally(), None
        for piece in self.parallel.gather(made):
            at = tally.take(piece, rows) or at
        self.first_gap = self.first_gap or at
        return seen | tally.report()

    def _step(self, step: int) -> dict[str, float]:
        """Clip and step; an update that is not finite is skipped and counted, and the weights stay as they were.

        The critic has a norm of its own. While it learns alone the policy's gradients are measured and dropped.
        """
        norm = self.parallel.clip(self._own, self.max_norm)
        critic_norm = self.parallel.clip(self._critic, self.how.max_norm or self.max_norm)
        rates = [self._rate(step, self.updates), self._rate(step, self.critic_updates)]
        alone = bool(self._critic) and step < self.how.warmup and not self.updates  # a longer run does not begin again
        for group, lr, other in zip(self.optimiser.param_groups, self._base_lr, self._of_critic, strict=True):
            group["lr"] = lr * rates[other]
        for _, p in self._own if alone else ():
            p.grad = None
        moved = self.masters.step(self.optimiser, (norm, critic_norm), self.meanwhile)
        self.skipped += not moved
        seen = self._rates(alone) | ({"critic_grad_norm": float(critic_norm)} if self._critic else {})
        if not moved:
            return seen | {"grad_norm": math.nan}
        self.parallel.moved(self.policy)
        self.updates += not alone
        self.critic_updates += 1
        return {"grad_norm": float(norm)} | seen

    def _rates(self, alone: bool) -> dict[str, float]:
        """The learning rates in force."""
        both = {kind: g["lr"] for g, kind in zip(self.optimiser.param_groups, self._of_critic, strict=True)}
        out = {"lr": 0.0 if alone else both.get(False, both.get(True, 0.0))}
        return out | ({"critic_lr": both[True]} if True in both else {})

    def _rate(self, step: int, updates: int) -> float:
        """The share of the learning rate in force: a rise over the first updates, a fall over the steps if asked."""
        rise = min(1.0, (updates + 1) / self.warmup) if self.warmup else 1.0
        return rise * (SCHEDULES[self.schedule](step / self.decay_over, self._floor) if self.decay_over else 1.0)

    @property
    def _floor(self) -> float:
        """The least learning rate as a share of the peak."""
        return self.min_lr / self._base_lr[0] if self.min_lr else 0.0

    def _streams(self) -> set[str]:
        """What the forward pass must give: the log-probabilities, or a reward model's scores, and what the loss reads of the rest."""
        base = {"score_B"} if self.goal.scores else {"logp_BT"}
        return base | (self.goal.reads & self.policy.provides)

    def _minibatches(self, batch: Batch, step: int, epoch: int) -> Iterator[Tensor]:
        return minibatches(batch, self.method.minibatches, rng.torch_generator(self.seed, step, "minibatch", epoch))

    def _micro(self, batch: Batch, rows: Tensor) -> Iterator[Tensor]:
        return micro_batches(batch, rows, self.micro_tokens)

    def cost(self, batch: Batch, rows: Tensor) -> float:
        """Of a piece: its padded actions."""
        return float(batch["length_B"][rows].max()) * rows.numel()

    # ---- what a checkpoint holds

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Weights, optimiser moments and reference, each a flat name -> tensor table; the live tensors, not copies. Where weights are in rows
        over processes, this one's rows."""
        out = {"weights": _unshared(self.parallel.state(self.policy)), "optimiser": {}}
        names = {id(p): n for n, p in self.named_parameters()}
        for p, state in self.optimiser.state.items():
            for k, v in state.items():
                out["optimiser"][f"{names[id(p)]}|{k}"] = torch.as_tensor(v)
        if self.masters.copies:
            out["masters"] = self.masters.tensors()
        if self.reference is not None and self.reference.saved:
            out["reference"] = _unshared(self.parallel.reference_state(self.reference))
        return out

    def rows(self) -> dict[str, list[str]]:
        """By table, the tensors of which every process saves its own rows; the others are whole."""
        return self.parallel.rows(self)

    def state(self) -> dict[str, Any]:
        ruled = {"reference": self.reference.state_dict()} if hasattr(self.reference, "state_dict") else {}
        counts = {"updates": self.updates, "skipped": self.skipped, "critic_updates": self.critic_updates}
        return counts | ruled | ({"memory": dict(self.memory)} if self.memory else {})

    def load(self, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
        if "weights" in tensors:  # learners of one policy save its weights once
            missing, unexpected = self.policy.load_state_dict(tensors["weights"], strict=False)
            saved = _unshared(self.parallel.state(self.policy))
            if unexpected or any(m in saved and m.split(".")[-2:] != ["lm_head", "weight"] for m in missing):
                raise UserError(
                    f"the checkpoint is of another model: missing {missing[:3]}, unexpected {unexpected[:3]}"
                )
        self.masters.load(tensors.get("weights", {}) | tensors.get("masters", {}))  # several processes save no masters
        named = dict(self.named_parameters())
        fused = any(g.get("fused") for g in self.optimiser.param_groups)
        self.optimiser.state.clear()
        for key, value in tensors.get("optimiser", {}).items():
            name, k = key.rsplit("|", 1)
            where = "cpu" if k == "step" and not fused else named[name].device  # torch counts steps on the CPU, mostly
            value = self.parallel.own(named[name], value)
            self.optimiser.state[named[name]][k] = value.to(where, copy=True)
        if self.reference is not None and self.reference.saved:
            self.reference.load(tensors["reference"])
            if "reference" in state:
                self.reference.load_state_dict(state["reference"])
        self.updates, self.skipped = state["updates"], state["skipped"]
        self.critic_updates = state.get("critic_updates", self.updates)
        self.memory = dict(state.get("memory", {}))


def _mean(xs: list[float]) -> float:
    finite = [x for x in xs if math.isfinite(x)]
    return sum(finite) / len(finite) if finite else math.nan


def _unshared(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tied tensors once only: safetensors refuses two names for one storage."""
    seen: set[int] = set()
    out = {}
    for name, x in state.items():
        if x.data_ptr() not in seen or x.numel() == 0:
            seen.add(x.data_ptr())
            out[name] = x.detach()
    return out
