"""BARFI: optimise a learned blend of the primary and a heuristic reward; judge the blend by the primary reward alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Cycle, Do, Phase, Plan, plan
from posttrain.core.protocols import Policy, Scorer
from posttrain.core.registry import scorer
from posttrain.core.types import Group, Rollout
from posttrain.methods.rloo import rloo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, aside
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.rewards.shaping.blend import blend
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

# ---- how weights move
# The gradient through a fixed point: what an outer objective gains when the parameters of an inner update change.

Update = Callable[[Tensor, Tensor], Tensor]  # (theta, phi) -> the inner update, 0 at the fixed point


def implicit_gradient(
    outer: Callable[[Tensor], Tensor], update: Update, theta: Tensor, phi: Tensor, rate: float = 0.1, terms: int = 100
) -> Tensor:
    """dJ/dphi at theta(phi), where update(theta, phi) = 0 (implicit function theorem, as in BARFI, arXiv:2310.19007).

    dJ/dphi = -(dJ/dtheta) (dU/dtheta)^-1 (dU/dphi);  with A = -dU/dtheta,  A^-1 g = rate sum_{i < terms} (1 - rate A)^i g
    The Neumann series converges where the update is a contraction (0 < rate A < 2): give it an L2 or KL term.
    """
    theta, phi = (x.detach().clone().requires_grad_() for x in (theta, phi))
    (term,) = torch.autograd.grad(outer(theta), theta)
    moved = update(theta, phi)
    total = torch.zeros_like(term)
    for _ in range(terms):
        total = total + rate * term
        (back,) = torch.autograd.grad(moved, theta, term, retain_graph=True)
        term = term + rate * back  # (1 - rate A)^T term
    (out,) = torch.autograd.grad(moved, phi, total)
    return out


def outer_loop(
    inner: Callable[[Tensor], Tensor], outer: Callable[[Tensor], Tensor], update: Update, phi: Tensor, rounds: int,
    lr: float = 0.3, rate: float = 0.1,
) -> Tensor:  # fmt: skip
    """The bi-level loop: train with phi (inner: phi -> theta), then step phi along the implicit gradient.

    phi is kept at length 1 (a blend's length is only the strength of the inner regulariser), and so is each step.
    """
    phi = phi / phi.norm()
    for _ in range(rounds):
        theta = inner(phi)
        grad = implicit_gradient(outer, update, theta, phi, rate)
        phi = phi + lr * torch.nn.functional.normalize(grad, dim=0)
        phi = phi / phi.norm()
    return phi


# ---- by samples, for a policy of any size


@dataclass
class SampledUpdate:
    """The expected inner update of a policy at its present weights, from answers that it wrote, and products with its derivative.

    S(theta, phi) = mean_i rho_i (sum_k phi_k c_ik - beta (log pi(y_i) - log ref(y_i) - b));  update U = dS/dtheta - l2 theta
    rho = pi / pi_now corrects for answers being those of the present weights; c_ik: reward k of answer i less the mean of its
    siblings'. Products with dU/dtheta are central differences of gradients, so that any model and any kernel will do.
    """

    policy: Policy
    rollouts: Sequence[Rollout]
    credit_NK: Tensor
    ref_N: Tensor
    beta: float
    l2: float = 0.1
    eps: float = 1e-2

    def __post_init__(self) -> None:
        self.params = [p for p in self.policy.parameters() if p.requires_grad]
        if any(p.dtype is not torch.float32 for p in self.params):
            raise UserError(
                "BARFI takes differences of gradients, which half precision cannot show; add --dtype float32"
            )
        with torch.no_grad():
            self.now_N = self.logp()

    def logp(self) -> Tensor:
        """log pi(y_i), the sum over the answer's own tokens."""
        out = []
        for i in range(0, len(self.rollouts), 32):
            some = self.rollouts[i : i + 32]
            mask_BT = torch.nn.utils.rnn.pad_sequence([r.mask_T for r in some], batch_first=True)
            out.append((self.policy.forward(some)["logp_BT"].cpu() * mask_BT).sum(-1))
        return torch.cat(out)

    def gradient(self, phi_K: Tensor, beta: float) -> list[Tensor]:
        """dS/dtheta."""
        logp_N = self.logp()
        rho_N = torch.exp(logp_N - self.now_N)
        paid_N = self.credit_NK @ phi_K - beta * (logp_N - self.ref_N - (self.now_N - self.ref_N).mean())
        found = torch.autograd.grad((rho_N * paid_N).mean(), self.params, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(found, self.params, strict=True)]

    def along(self, vector: list[Tensor], look: Callable[[], Any]) -> tuple[Any, Any, float]:
        """What is seen a little before and after the present weights in this direction, and how far apart the two are."""
        length = float(torch.sqrt(sum((v.double() ** 2).sum() for v in vector)))  # type: ignore[arg-type]
        step = self.eps / max(length, 1e-12)
        kept = [p.detach().clone() for p in self.params]
        seen = []
        for sign in (1.0, -1.0):
            self._place(kept, vector, sign * step)
            seen.append(look())
        self._place(kept, vector, 0.0)  # exactly as they were
        return seen[0], seen[1], 2 * step

    @torch.no_grad()
    def _place(self, kept: list[Tensor], vector: list[Tensor], by: float) -> None:
        for p, x, v in zip(self.params, kept, vector, strict=True):
            p.copy_(x + by * v if by else x)

    def product(self, phi_K: Tensor, vector: list[Tensor]) -> list[Tensor]:
        """(dU/dtheta) vector."""
        after, before, apart = self.along(vector, lambda: self.gradient(phi_K, self.beta))
        return [(a - b) / apart - self.l2 * v for a, b, v in zip(after, before, vector, strict=True)]

    def against(self, vector: list[Tensor]) -> Tensor:
        """vector (dU/dphi): mean_i c_i (d log pi(y_i) along the vector)."""
        with torch.no_grad():
            after_N, before_N, apart = self.along(vector, self.logp)
        found: Tensor = ((after_N - before_N) / apart) @ self.credit_NK / len(self.rollouts)
        return found


def sampled_gradient(
    update: SampledUpdate, outer: SampledUpdate, phi_K: Tensor, rate: float = 0.1, terms: int = 5
) -> Tensor:
    """dJ/dphi = -(dJ/dtheta) (dU/dtheta)^-1 (dU/dphi), all by samples; `outer` holds the primary reward as its first credit.

    With A = -dU/dtheta,  A^-1 g = rate sum_{i < terms} (1 - rate A)^i g  (truncated Neumann series)
    """
    primary_K = torch.zeros(outer.credit_NK.shape[1])
    primary_K[0] = 1.0
    term = outer.gradient(primary_K, 0.0)
    total = [torch.zeros_like(t) for t in term]
    for i in range(terms):
        total = [x + rate * t for x, t in zip(total, term, strict=True)]
        if i + 1 < terms:
            back = update.product(phi_K, term)
            term = [t + rate * b for t, b in zip(term, back, strict=True)]
    return update.against(total)


@scorer(title="Behaviour-alignment reward", paper="arXiv:2310.19007")
class Blended(BaseScorer):
    """Behaviour-alignment reward (BARFI): R = phi_1 r_primary + phi_2 r_aux; both are kept as components."""

    reported = ("primary", "aux")

    def __init__(self, primary: Scorer, aux: Scorer, phi: Sequence[float]) -> None:
        self.primary, self.aux, self.phi = primary, aux, tuple(phi)

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        told = zip(aside(self.primary, groups), aside(self.aux, groups), strict=True)
        return [
            Verdict(
                self.phi[0] * p + self.phi[1] * a if isinstance(p, float) and isinstance(a, float) else float("nan"),
                {"primary": p, "aux": a},
            )
            for p, a in told
        ]


def centred(groups: list[Group]) -> tuple[list[Rollout], Tensor]:
    """Answers whose group has two that were scored, and each of their rewards less the mean of its siblings' (N, 2)."""
    rollouts: list[Rollout] = []
    credit: list[Tensor] = []
    for g in groups:
        some = g.scored
        if len(some) > 1:
            r_G2 = torch.tensor([[r.rewards["primary"], r.rewards["aux"]] for r in some])
            rollouts += some
            credit.append((r_G2 - r_G2.mean(0)) * len(some) / (len(some) - 1))
    if not rollouts:
        raise UserError("no group has two scored answers, so nothing can be said about the blend")
    return rollouts, torch.cat(credit)


# the inner method on a blend that is given, for Python
blended_rloo = rloo.but(
    name="barfi", title="BARFI", paper="arXiv:2310.19007", doc=__doc__, shaping=(blend, kl_in_reward.but(coef=0.1))
)


# ---- the plan


class Outer:
    """The outer loop of the plan: the blend in force is a note, moved along the sampled implicit gradient."""

    def __init__(self, aux: str, beta: float, lr: float) -> None:
        self.aux, self.beta, self.lr = aux, beta, lr

    def scorer(self, context: Context) -> Blended:
        c, env = context.config, asked_task(context)
        heuristic = build_scorer(self.aux, env, c.reward_timeout, c.device)
        return Blended(asked_rewards(context), heuristic, context.notes.get("phi", [0.5**0.5, 0.5**0.5]))

    def drawn(self, context: Context, what: str) -> SampledUpdate:
        """A fresh batch of answers of the policy, scored by both rewards."""
        c, env, policy = context.config, asked_task(context), context.role("policy")
        seed = rng.key(c.seed, context.phase, what) & 0x7FFFFFFF
        curriculum: Any = rloo.prompts.live()
        curriculum.start(env, seed)
        prompts = curriculum.propose(c.prompts, 0)
        n = c.num_generations or rloo.rollout.defaults()["n"]
        groups = [Group(p, made) for p, made in zip(prompts, policy.sample(prompts, n, c.sampling, seed), strict=True)]
        self.scorer(context).score(groups)
        rollouts, credit_NK = centred(groups)
        with torch.no_grad():
            ref_N = SampledUpdate(context.role("start"), rollouts, credit_NK, credit_NK[:, 0], 0.0).now_N
        return SampledUpdate(policy, rollouts, credit_NK, ref_N, self.beta)

    def step(self, context: Context) -> None:
        phi_K = torch.tensor(self.scorer(context).phi)
        update, outer = self.drawn(context, "inner"), self.drawn(context, "outer")
        grad_K = sampled_gradient(update, outer, phi_K)
        phi_K = phi_K + self.lr * torch.nn.functional.normalize(grad_K, dim=0)
        phi_K = phi_K / phi_K.norm()
        context.notes["phi"] = phi_K.tolist()
        context.notes.setdefault("blends", []).append(phi_K.tolist())
        context.notes.setdefault("primary", []).append(_primary(outer.rollouts))


def _primary(rollouts: Sequence[Rollout]) -> float:
    return sum(r.rewards["primary"] for r in rollouts) / len(rollouts)


@plan(paper="arXiv:2310.19007", title="BARFI")
def barfi(aux: str = "", rounds: int = 10, steps: int = 10, beta: float = 0.1, lr: float = 0.3) -> Plan:
    """BARFI: a policy learns from a blend of the primary reward and a heuristic; the blend is moved so that the primary rises.

    R = phi_1 r_primary + phi_2 r_aux - beta KL;  dJ/dphi = -(dJ/dtheta) (dU/dtheta)^-1 (dU/dphi), J the primary reward alone
    primary: --reward, or the task's own grade. aux: the heuristic, named like a reward ("mine.py:close", "format").
    Each of the `rounds`: `steps` of RLOO on the blend, then a step of phi by fresh answers. It begins at the plain sum;
    phi is kept at length 1, since its length is only the strength of the KL. The summary holds every blend.

    Departures: the constant phi of the paper is dropped, since it cancels in the baseline, and so is the learned discount:
    an answer earns at its end. The inner algorithm is RLOO held by a KL to the start, the paper's is an actor-critic held by
    an L2; an L2 of 0.1 is added where the derivative is inverted (5 terms at rate 0.1). Products with the derivative are
    central differences of gradients. Steps of phi have the length 0.3, the paper's are an optimiser's; 10 rounds of 10 steps are
    this package's.
    """
    lacks = "BARFI blends the task's reward with a heuristic one; name the heuristic: --plan.aux mine.py:close"
    if rounds < 1 or steps < 1:
        raise UserError(f"got rounds={rounds}, steps={steps}; it takes 1 of each at least")
    outer = Outer(aux, beta, lr)
    method = rloo.but(shaping=(kl_in_reward.but(coef=beta),))
    learn = Phase("inner", method, steps, asked_task, rewards=outer.scorer, reference="start")
    parts = (Copy("policy", "start"), Cycle((learn, Do("outer", outer.step)), times=rounds))
    return Plan(parts, missing="" if aux else lacks)
