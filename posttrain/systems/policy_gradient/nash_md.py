"""Nash-MD: learn to beat, as a judge of pairs sees it, a mixture of oneself and the reference, and pay for leaving the latter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.advantages.baseline import baseline
from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Phase, Plan, plan
from posttrain.core.protocols import Policy
from posttrain.core.registry import reference
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group
from posttrain.methods.reinforce import reinforce
from posttrain.methods.settings import asked_judge, asked_task, needs_judge
from posttrain.models.rows import own_parameters
from posttrain.policies.language import LanguagePolicy
from posttrain.rewards.scorers.pairwise import WinRate
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample
from posttrain.weights.reference import Frozen

# ---- what answers are worth
# Whom answers are compared with: m answers of a mixture between the policy as it is and a reference.


class Opponent:
    """Answers from the geometric mixture pi^(1 - beta) ref^beta / Z, for `WinRate(judge, others=Opponent(...))`.

    Of language models it is the paper's: at every token the logits of both are mixed, (1 - beta) l + beta l_ref (`Mixed`). Of
    other policies the weights are, which for logits linear in the weights (a table) is the same. beta = 0 is the policy itself, 1
    the reference.
    """

    def __init__(
        self, policy: Policy, reference: Policy, how: Sampling, beta: float = 0.125, m: int = 1, seed: int = 0
    ) -> None:
        if not 0 <= beta <= 1 or m < 1:
            raise UserError(f"got beta={beta}, m={m}; beta is a share between 0 and 1, and m at least 1")
        self.policy, self.reference, self.how, self.beta, self.m, self.seed = policy, reference, how, beta, m, seed
        self.mixed = None if isinstance(policy, LanguagePolicy) else reference.clone()

    def __call__(self, groups: list[Group]) -> list[list[str]]:
        """m texts for each group, by the identity of its prompt and step."""
        mixed = self.mixture()
        step = max((r.version for g in groups for r in g.rollouts), default=0)
        seed = rng.key(self.seed, "opponent") & 0x7FFFFFFF  # other draws than the policy's own
        made = mixed.sample([g.prompt for g in groups], self.m, self.how, seed, step)
        return [[r.text for r in rollouts] for rollouts in made]

    @torch.no_grad()
    def mixture(self) -> Any:
        """The mixture as it is now."""
        one, two = self.policy, self.reference
        if self.beta == 1:
            return two
        if isinstance(one, LanguagePolicy) and isinstance(two, LanguagePolicy):
            made = LanguagePolicy(Mixed(one.model, two.model, self.beta), one.tokenizer, "mixture", one.stops)
            made.temperature, made.layout = one.temperature, one.layout
            return made.eval()
        assert self.mixed is not None
        live, ref = dict(one.named_parameters()), dict(two.named_parameters())
        for name, p in self.mixed.named_parameters():
            p.copy_(torch.lerp(live[name].detach().to(ref[name]), ref[name].detach(), self.beta))
        return self.mixed


class Mixed(nn.Module):
    """Two models that write one text: each reads it with a cache of its own, and their logits are mixed at every token."""

    def __init__(self, one: Any, two: Any, beta: float) -> None:
        super().__init__()
        self.one, self.two, self.beta, self.config = one, two, beta, one.config
        self.stop_ids = list(getattr(one, "stop_ids", ()))

    def prefill(self, tokens_BT: Tensor, lengths_B: Tensor, slots: int, **seen: Any) -> tuple[Tensor, Caches]:
        h_BD, cache = self.one.prefill(tokens_BT, lengths_B, slots, **seen)
        other_BD, beside = self.two.prefill(tokens_BT, lengths_B, slots, **seen)
        return torch.cat([h_BD, other_BD], -1), Caches(cache, beside)

    def step(self, tokens_B: Tensor, cache: Caches) -> Tensor:
        return torch.cat([self.one.step(tokens_B, cache.one), self.two.step(tokens_B, cache.two)], -1)

    def logits(self, h: Tensor) -> Tensor:
        """Of hidden states side by side: softmax((1 - beta) l + beta l_ref) is the geometric mixture of the two distributions."""
        h_one, h_two = h.split([self.one.width, self.two.width], -1)
        return torch.lerp(self.one.logits(h_one).float(), self.two.logits(h_two).float(), self.beta)


@dataclass
class Caches:
    """The caches of both."""

    one: Any
    two: Any

    def select(self, rows: Tensor) -> None:
        self.one.select(rows)
        self.two.select(rows)


# ---- whom Nash-EMA plays


@reference(title="An average beside it (Nash-EMA)", paper="arXiv:2312.00886", base="fixed")
class beside(Frozen):
    """An average beside it (Nash-EMA): the policy the phase began with, and an exponential moving average of the policy for others to play.

    avg <- decay avg + (1 - decay) policy, after every step;  the reference itself stays fixed. shown: a list that holds the average.
    """

    def __init__(self, decay: float = 0.9, shown: list[Policy] | None = None) -> None:
        if not 0 <= decay < 1:
            raise UserError(f"beside got decay={decay}; it is 0 or more and less than 1")
        self.decay, self.shown = decay, [] if shown is None else shown

    def start(self, policy: Policy) -> None:
        super().start(policy)
        self.shown[:] = [policy.clone().eval().requires_grad_(False)]

    @torch.no_grad()
    def after_step(self, policy: Policy, step: int) -> None:
        live = own_parameters(policy)
        for name, p in own_parameters(self.shown[0]).items():
            p.lerp_(live[name].to(p.dtype), 1 - self.decay)

    def tensors(self) -> dict[str, Tensor]:
        kept = self.shown[0].state_dict() if self.shown else {}
        return super().tensors() | {f"average|{name}": x for name, x in kept.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        super().load({name: x for name, x in tensors.items() if not name.startswith("average|")})
        kept = {name.removeprefix("average|"): x for name, x in tensors.items() if name.startswith("average|")}
        self.shown[0].load_state_dict(kept, strict=False)  # tied tensors are saved once


# ---- the plans


def against_mixture(tau: float = 0.008, n: int = 8) -> Method:
    """The paper's gradient: d log pi(y) (P(y > y') - 1/2 - tau log(pi(y) / ref(y)))."""
    return reinforce.but(
        name="nash-md", title="Nash-MD", paper="arXiv:2312.00886", doc=__doc__,
        rollout=sample.but(n=n), shaping=kl_in_reward.but(coef=tau), advantage=baseline.but(c=0.5),
    )  # fmt: skip


@plan(paper="arXiv:2312.00886", title="Nash-MD")
def nash_md(
    steps: int = 60, beta: float = 0.125, tau: float = 0.008, n: int = 8, m: int = 1, k: float = 1.0
) -> Plan:  # fmt: skip
    """Nash-MD: towards the equilibrium of P(pi > pi') - tau KL(pi || ref) + tau KL(pi' || ref); the last policy, not an average.

    R = 1/m sum_j P(y > y'_j) - tau log(pi(y) / ref(y));  A = R - 1/2;  y'_j from pi^(1 - beta) ref^beta / Z (`Opponent`)
    beta: 0 is self-play, 1 the best answer to the reference.

    Departures: its judge is a learned model of pairs, which must be given: `--reward FILE.py:FUNCTION` of (prompt, a, b), or a
    reward r (`runs/NAME`), which judges by sigmoid(k (r_a - r_b)); without one it ends with a sentence before anything is loaded. The paper trains T5
    models for 10,000 steps; here 60 (`--plan.steps`). 8 answers per prompt against one of the opponent's are this package's
    (`--plan.n`, `--plan.m`). The mixture of logits at each token, beta 0.125 (of the paper's 0.125 to 0.375) and tau 0.008 are
    the paper's.
    """
    if steps < 1 or n < 1 or m < 1:
        raise UserError(f"got steps={steps}, n={n}, m={m}; it takes 1 of each at least")

    def rewards(context: Context) -> WinRate:
        c = context.config
        other = Opponent(context.role("policy"), context.role("start"), c.sampling, beta, m, c.seed)
        return WinRate(asked_judge(context, k), other)

    learn = Phase("nash-md", against_mixture(tau, n), steps, asked_task, rewards=rewards, reference="start")
    return Plan((Copy("policy", "start"), learn), ready=needs_judge("nash-md", k))


@plan(paper="arXiv:2312.00886", title="Nash-EMA")
def nash_ema(
    steps: int = 60, decay: float = 0.9, tau: float = 0.008, n: int = 8, m: int = 1, k: float = 1.0
) -> Plan:  # fmt: skip
    """Nash-EMA: as Nash-MD, but the opponent is a moving average of one's own past weights, not a mixture with the reference.

    R = 1/m sum_j P(y > y'_j) - tau log(pi(y) / ref(y));  A = R - 1/2;  y'_j from the policy with weights avg <- decay avg + (1 - decay) theta
    decay: 0 is self-play. Weights are averaged after every step, beginning with the start.

    Departures: the decay of the paper could not be checked; 0.9 here. Its judge is a learned model of pairs, which must be given: `--reward FILE.py:FUNCTION` of
    (prompt, a, b), or a reward r (`runs/NAME`), which judges by sigmoid(k (r_a - r_b)); without one it ends with a sentence before anything is loaded. The
    paper trains T5 models for 10,000 steps; here 60 (`--plan.steps`), with 8 answers per prompt against one of the opponent's. tau 0.008 is the paper's.
    """
    if steps < 1 or n < 1 or m < 1:
        raise UserError(f"got steps={steps}, n={n}, m={m}; it takes 1 of each at least")
    shown: list[Policy] = []

    def past(groups: list[Group], context: Context) -> list[list[str]]:
        c = context.config
        return Opponent(context.role("policy"), shown[0], c.sampling, 1.0, m, c.seed)(groups)

    def rewards(context: Context) -> WinRate:
        return WinRate(asked_judge(context, k), lambda groups: past(groups, context))

    method = against_mixture(tau, n).but(
        name="nash-ema",
        title="Nash-EMA",
        reference=beside.but(decay=decay, shown=shown),  # type: ignore[attr-defined]
    )
    learn = Phase("nash-ema", method, steps, asked_task, rewards=rewards, reference="start")
    return Plan((Copy("policy", "start"), learn), ready=needs_judge("nash-ema", k))
