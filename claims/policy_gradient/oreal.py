"""OREAL: blame reshaped by leave-one-out adds to imitation of right answers, and tokens are weighed by a learned model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Self

import torch
from torch import Tensor, nn

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.tabular import TabularPolicy
from posttrain.advantages.baseline import baseline
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.method import Method
from posttrain.core.turn import Turn
from posttrain.core.types import Rollout
from posttrain.runs.in_memory import FunctionScorer, fit, numbered
from posttrain.select.zero_variance import zero_variance
from posttrain.systems.policy_gradient.oreal import oreal
from posttrain.systems.policy_gradient.oreal import token_weighted as weighted

P, T, V, F, PLACES = 32, 24, 3, 2, 2  # two of 24 letters decide, others in each prompt; prompts share two features
STEPS, WARMUP = 40, 10
PACE = 0.2  # the reward model's learning rate


class Writer(TabularPolicy):
    """Writes from what prompts share; its token-level reward model is a table of its own, by prompt and letter just written."""

    @property
    def provides(self) -> frozenset[str]:
        return super().provides | {"value_after_BT"}

    def with_critic(self) -> Self:
        if self.critic is None:
            self.critic = nn.Parameter(torch.zeros(self.P, self.T, self.V))
        return self

    def forward(self, rows: Sequence[Turn | Rollout], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        needs, turns = set(needs), [r.row for r in rows]
        out = super().forward(rows, needs - {"value_after_BT"})
        if "value_after_BT" in needs:
            assert self.critic is not None
            row_B, told_BT = torch.cat([t.context for t in turns]), torch.stack([t.actions for t in turns])
            out["value_after_BT"] = self.critic[row_B.unsqueeze(-1), torch.arange(told_BT.shape[1]), told_BT]
        return out


@lru_cache(maxsize=1)
def world(seed: int) -> tuple[Writer, Tensor, Tensor]:
    """The start, and for each prompt which places decide (P, T) and which letter is right there (P, T), by its features."""
    draws = rng.torch_generator("oreal", seed)
    place_PT = torch.stack([torch.randperm(T - 1, generator=draws)[:PLACES] for _ in range(P)])
    place_PT = nn.functional.one_hot(place_PT, T).sum(1).bool()
    features_PF = torch.randn(P, F, generator=draws) / F**0.5
    key_PT = torch.einsum("pf,ftv->ptv", features_PF, torch.randn(F, T, V, generator=draws)).argmax(-1)
    start = Writer(P, T, V, memory=False, features_PF=features_PF)
    start.randomise(0.3, "oreal start", seed)
    return start, place_PT, key_PT


def accuracy(policy: Writer, place_PT: Tensor, key_PT: Tensor) -> float:
    """How often every place that decides has its letter, exactly: letters are independent."""
    logp_PTV = torch.einsum("pf,ftv->ptv", policy.features_PF, policy.table.detach()[:, :, 0]).log_softmax(-1)
    logp_PT = logp_PTV.gather(-1, key_PT.unsqueeze(-1)).squeeze(-1)
    return float(torch.where(place_PT, logp_PT, 0.0).sum(-1).exp().mean())


def found(critic_PTV: Tensor, place_PT: Tensor, key_PT: Tensor) -> float:
    """How often the token model rates a wrong letter that decides below a letter that does not matter (AUC)."""
    wrong_PTV = place_PT.unsqueeze(-1) & (torch.arange(V) != key_PT.unsqueeze(-1))
    bad_N, idle_M = critic_PTV[wrong_PTV], critic_PTV[~place_PT].flatten()
    gap_NM = idle_M - bad_N.unsqueeze(1)
    return float(((gap_NM > 0) + 0.5 * (gap_NM == 0)).mean())


def train(seed: int, method: Method, lr: float, warmup: int = 0) -> dict[str, float]:
    """40 steps of 16 answers to each of 32 prompts; in the first `warmup` only the token-level reward model learns."""
    start, place_PT, key_PT = world(seed)
    policy = start.clone()
    assert isinstance(policy, Writer)
    auc = [0.5]

    def graded(rollouts: list[Rollout]) -> Tensor:
        row_B, told_BT = torch.cat([r.context for r in rollouts]), torch.stack([r.actions for r in rollouts])
        return ((told_BT == key_PT[row_B]) | ~place_PT[row_B]).all(-1).float()

    @torch.no_grad()
    def look(step: int) -> None:
        if step == STEPS - 1 and policy.critic is not None:
            auc.append(found(policy.critic, place_PT, key_PT))

    config = Config(
        seed=seed, steps=STEPS, prompts=P, lr=lr, warmup=0, max_norm=100.0, critic_lr=PACE, critic_warmup=warmup
    )
    fit(policy, method, numbered(P), config, FunctionScorer(graded), look)
    return {"accuracy": accuracy(policy, place_PT, key_PT), "auc": auc[-1]}


OREAL = oreal.but(prompts="uniform")  # every prompt at every step, for all arms
PLAIN = OREAL.but(terms=oreal.terms[1:], advantage=weighted.but(weigh=False))  # no token-level reward model to train
claim(
    Claim(
        id="oreal",
        title="OREAL",
        paper="arXiv:2502.06781",
        family="policy-gradient",
        says="Blame of wrong answers, reshaped by leave-one-out, adds to imitating right ones; weights of tokens from a reward model "
        "that learned from outcomes alone add to both; the whole beats REINFORCE at equal samples.",
        experiment="Answers of 24 letters of which 2 decide, others in each of 32 prompts; prompts share features, so that noise on idle "
        "letters hurts elsewhere. 40 steps of 512 answers; OREAL keeps one right and one wrong answer a prompt, and in the first 10 "
        "steps only its token-level reward model learns, a table of its own. Exact accuracy; each arm at its own best learning rate. "
        "auc: wrong letters that decide are rated below idle ones.",
        arms={
            "REINFORCE": partial(train, method=PLAIN.but(advantage=baseline, select=()), lr=1.0),
            "right answers only": partial(
                train, method=PLAIN.but(advantage=weighted.but(negative=0.0, weigh=False)), lr=0.85
            ),
            "with reshaped blame": partial(train, method=PLAIN, lr=0.8),
            "with reshaped blame, all answers": partial(train, method=PLAIN.but(select=zero_variance), lr=0.6),
            "OREAL": partial(train, method=OREAL, lr=1.5, warmup=WARMUP),
        },
        checks=(
            Check(
                "reshaped blame adds to imitation", "accuracy", "with reshaped blame", "right answers only", margin=0.0
            ),
            Check("outcomes teach which tokens matter", "auc", "OREAL", 0.5, margin=0.3),
            Check("and weights of tokens add to it", "accuracy", "OREAL", "with reshaped blame", margin=0.02),
            Check("though others keep all", "accuracy", "OREAL", "with reshaped blame, all answers", margin=0.0),
            Check("the whole beats REINFORCE", "accuracy", "OREAL", "REINFORCE", margin=0.02),
        ),
        seeds=tuple(range(320, 330)),
        tried="Attempt 3 runs the method as it is since: the reward model at its own rate and alone at first by the method's settings, the worth of a token read "
        "after it, no word of its own for the last; nothing else was changed or tried. A first record (8 letters, 8 prompts, one rate for all, seeds 0-5) had the wrong sign for the weights of tokens: -0.156 "
        "[-0.189, -0.126]. It trained the reward model on all answers: where most are wrong every token speaks against, and right "
        "answers get no weight. The paper keeps one right and one wrong answer a prompt; so does the method now. What else it takes "
        "(seeds 100-131 and 200-205, partly in a bare simulation of the same formulas): the paper's warm-up (without it 0.81, with it "
        "0.89), a reward model with a learning rate and a table of its own (on the policy's features its AUC was below 0.75 and "
        "weights did not add), and a world where noise on idle letters hurts: with a table of each prompt's own, even an oracle's "
        "weights gain nothing once rates are tuned. The authors' code weighs by the mean of w up to a token: that loses here (0.60). "
        "Rates 0.3 to 1.8, each arm at its best: OREAL 0.89-0.92, reshaped blame 0.80-0.82 (of all answers 0.86), right answers only "
        "0.72-0.75, REINFORCE 0.77. That imitation alone beats REINFORCE (shown before, at one small rate for both) does not hold at "
        "their best rates; the paper says it suffices, not that it is better, so it is no check now. A table cannot start the reward "
        "model from the policy, as the paper does: it starts at 0.",
    ),
    __file__,
)
