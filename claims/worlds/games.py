"""Preference games: who beats whom among a few answers to each prompt, in circles if need be; all of it known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import posttrain
from claims.worlds.exact import answer_logp
from claims.worlds.tabular import LETTERS, TabularPolicy
from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.runs.in_memory import numbered

_TINY = 1e-9


@dataclass(frozen=True)
class Game:
    """win_PNN[p, a, b] = P(answer a beats b | prompt p), with win + win^T = 1. An answer is one letter."""

    win_PNN: Tensor

    def __post_init__(self) -> None:
        if not torch.allclose(self.win_PNN + self.win_PNN.mT, torch.ones_like(self.win_PNN)):
            raise UserError("P(a beats b) and P(b beats a) do not add up to 1 in this preference matrix")

    @property
    def P(self) -> int:
        return self.win_PNN.shape[0]

    @property
    def N(self) -> int:
        return self.win_PNN.shape[-1]

    def start(self, scale: float = 0.0, *identity: object) -> TabularPolicy:
        """A policy of one letter; uniform unless a scale is given."""
        return TabularPolicy(self.P, 1, self.N, memory=False).randomise(scale, "game", *identity)

    # ---- judges

    def judge(self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> list[float]:
        """P(a wins), exactly."""
        row_M, first_M, second_M = (torch.tensor(x) for x in self._places(prompts, a, b))
        return self.win_PNN[row_M, first_M, second_M].tolist()

    def labels(self, seed: int) -> Labels:
        """A judge that only says who won, by a fresh draw each time: noisy where P is near 1/2."""
        return Labels(self, seed)

    @staticmethod
    def _places(prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> tuple[list[int], ...]:
        return [p.info["row"] for p in prompts], [LETTERS.index(x) for x in a], [LETTERS.index(x) for x in b]

    # ---- exact quantities

    def wins(self, pi_PN: Tensor) -> Tensor:
        """How often each answer beats one of the policy's (P, N)."""
        return torch.einsum("pab,pb->pa", self.win_PNN, pi_PN.to(self.win_PNN))

    def exploitability(self, pi_PN: Tensor) -> float:
        """By how much the best answer to the policy beats it: max_a P(a > pi) - 1/2, mean of the prompts; 0 at Nash."""
        return float(self.wins(pi_PN).max(-1).values.mean()) - 0.5

    def nash(self) -> Tensor:
        """The minimax winner of each prompt (P, N): nobody beats it more often than not."""
        return torch.stack([_nash(win_NN - 0.5) for win_NN in self.win_PNN])

    def regularised_nash(self, ref_PN: Tensor, tau: float, steps: int = 4000) -> Tensor:
        """pi with pi = ref exp(P(. > pi) / tau) / Z: Nash of P(pi > pi') - tau KL(pi || ref) + tau KL(pi' || ref).

        Found by mirror descent: small steps from log pi towards the right-hand side.
        """
        eta, ref_PN = min(0.5, tau), ref_PN.double()
        log_PN = ref_PN.log()
        for _ in range(steps):
            pull_PN = tau * (ref_PN.log() - log_PN) + self.wins(log_PN.exp())
            log_PN = torch.log_softmax(log_PN + eta * pull_PN, -1)
        return log_PN.exp()

    def prox(self, ref_PN: Tensor, last_PN: Tensor, rival_PN: Tensor, beta: float, eta: float) -> Tensor:
        """argmax_pi P(pi > rival) - beta KL(pi || ref) - beta/eta KL(pi || last), exactly: a proximal step of Nash mirror prox."""
        near_PN = (eta * ref_PN.double().log() + last_PN.double().log()) / (1 + eta)
        return torch.softmax(near_PN + eta / ((1 + eta) * beta) * self.wins(rival_PN), -1)


class Labels:
    """Who won, 1 or 0, drawn from the game; the n-th question of a match has a draw of its own."""

    def __init__(self, game: Game, seed: int) -> None:
        self.game, self.seed, self.asked = game, seed, 0

    def __call__(self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> list[float]:
        self.asked += 1
        draws_M = torch.rand(len(a), generator=rng.torch_generator("labels", self.seed, self.asked))
        return (draws_M < torch.tensor(self.game.judge(prompts, a, b))).float().tolist()


def chances(policy: TabularPolicy) -> Tensor:
    """The probability of each answer (P, N), exactly."""
    return answer_logp(policy).exp().double()


def circles(P: int, seed: int, good: int = 3, bad: int = 2, low: float = 0.6, high: float = 0.95) -> Game:
    """`good` answers (an odd number) that beat one another in a circle, unevenly, and `bad` ones that lose to them all.

    Each margin is drawn from [low, high]; among the bad ones it is even. Letters are shuffled for each prompt.
    """
    draw, N = rng.torch_generator("circles", seed), good + bad
    win_PNN = torch.full((P, N, N), 0.5, dtype=torch.float64)
    margin_PNN = low + (high - low) * torch.rand(P, N, N, generator=draw, dtype=torch.float64)
    for a, b in combinations(range(N), 2):
        if a >= good:
            continue
        up, down = (a, b) if b >= good or (b - a) % 2 else (b, a)  # in a circle of 3: 0 > 1 > 2 > 0
        win_PNN[:, up, down], win_PNN[:, down, up] = margin_PNN[:, up, down], 1 - margin_PNN[:, up, down]
    order_PN = torch.rand(P, N, generator=draw).argsort(-1)
    return Game(torch.stack([win_NN[o_N][:, o_N] for win_NN, o_N in zip(win_PNN, order_PN, strict=True)]))


def ladder(P: int, N: int, seed: int, scale: float = 1.0) -> Game:
    """No circle: P(a beats b) = sigmoid(u_a - u_b) with a worth u of each answer, normal of that scale."""
    u_PN = scale * torch.randn(P, N, generator=rng.torch_generator("ladder", seed), dtype=torch.float64)
    return Game(torch.sigmoid(u_PN.unsqueeze(-1) - u_PN.unsqueeze(-2)))


def _nash(edge_NN: Tensor) -> Tensor:
    """By going through the supports: x > 0 on S, S x = 0 there, sum 1, and nobody outside beats it."""
    N = len(edge_NN)
    for support in chain.from_iterable(combinations(range(N), n) for n in range(1, N + 1)):
        s = torch.tensor(support)
        system = torch.cat([edge_NN[s][:, s], torch.ones(1, len(s), dtype=edge_NN.dtype)])
        right = torch.zeros(len(s) + 1, 1, dtype=edge_NN.dtype)
        right[-1] = 1.0
        x_S = torch.linalg.lstsq(system, right, driver="gelsd").solution.squeeze(-1)
        x_N = torch.zeros(N, dtype=edge_NN.dtype).index_put((s,), x_S.clamp_min(0))
        x_N = x_N / x_N.sum().clamp_min(_TINY)
        if float(x_S.min()) >= -_TINY and float((edge_NN @ x_N).max()) <= _TINY:
            return x_N
    raise UserError("no equilibrium was found for this preference matrix; are its entries finite?")


def bradley_terry(game: Game, pi_PN: Tensor, steps: int = 500) -> Tensor:
    """The scores s_PN that a reward model would give after endless pairs of the policy's answers: the best fit of
    sigmoid(s_a - s_b) to P(a beats b), each pair as often as the policy gives it."""
    score_PN = torch.zeros_like(game.win_PNN[..., 0])
    for _ in range(steps):
        gap_PNN = game.win_PNN - torch.sigmoid(score_PN.unsqueeze(-1) - score_PN.unsqueeze(-2))
        score_PN = score_PN + torch.einsum("pab,pb->pa", gap_PNN, pi_PN.to(gap_PNN))  # natural gradient: no pi_a
    return score_PN - score_PN.mean(-1, keepdim=True)


# ---- registered plans that play them

_JUDGE = """LETTERS = {letters!r}
WIN = {win}
SCORE = {score}


def prefer(prompt, a, b):
    return WIN[prompt.info["row"]][LETTERS.index(a)][LETTERS.index(b)]


def score(prompt, text):
    return SCORE[prompt.info["row"]][LETTERS.index(text)]
"""


class _Seen:
    """A callback that keeps the policy's chances after every step."""

    def __init__(self) -> None:
        self.chances: list[Tensor] = []

    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        if loop.role == "policy":  # not whom it plays against
            self.chances.append(chances(loop.policy))


def played(game: Game, start: TabularPolicy, plan: str, seed: int, lr: float, by_score: bool = False) -> list[Tensor]:
    """The chances after each step of a registered plan that starts there, with a file as its judge, as a user would give one.

    by_score: the judge is a reward model of endless labels of the start's answers, by the difference of its scores.
    """
    seen, policy = _Seen(), start.clone()
    with TemporaryDirectory(prefix="posttrain-game-") as folder:
        file = Path(folder) / f"{Path(folder).name.replace('-', '_')}.py"  # a module of its own
        score_PN = bradley_terry(game, chances(start))
        file.write_text(_JUDGE.format(letters=LETTERS, win=game.win_PNN.tolist(), score=score_PN.tolist()))
        posttrain.run(
            model=policy, env=numbered(game.P), method=plan, reward=f"{file}:{'score' if by_score else 'prefer'}", seed=seed, lr=lr,
            prompts=game.P, warmup=0, max_norm=100.0, threads=1, eval_problems=0, log_rollouts=0, name="game", runs=folder,
            callbacks=(seen,),
        )  # fmt: skip
    return seen.chances
