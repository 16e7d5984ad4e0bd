"""ArCHer: a critic over whole turns, learned off policy from all episodes so far, teaches a policy that writes tokens."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.advantages.ones import ones
from posttrain.advantages.outcome import outcome
from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Cycle, Do, NotYet, Phase, Plan, plan
from posttrain.core.protocols import Environment, Policy, RolloutRequest
from posttrain.core.registry import Card, Part, rollout, scorer
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Group, Origin, Prompt, Rollout
from posttrain.losses.aggregate import sequence_mean
from posttrain.methods.reinforce import reinforce
from posttrain.methods.settings import asked_task
from posttrain.models.layout import Rows, hidden_states
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.window import check_rows
from posttrain.prompts.uniform import distinct
from posttrain.rewards.runtime.scorer import BaseScorer, Prescored, Verdict, answers_of
from posttrain.rollouts.sample import sample
from posttrain.weights.reference import ema

PAPER = "arXiv:2402.19446"
TAU = 0.1  # how far the slow copies follow
TWINS = ("turn_q_BTK", "turn_v_BTK", "turn_next_BTK")  # K = 2: each has its own target
CAPACITY = 100_000  # turns that are remembered

# ---- the critic of turns


class TurnCritic(LanguagePolicy):
    """Twin values of states and of turns: a network like the policy's reads the conversation, and four small ones judge it.

    A row is a state (its context), a turn (its own actions), and what was seen after it. Streams, the same at every action of a row:
    turn_v_BTK of the state, turn_q_BTK of the turn in it, turn_next_BTK: the v of the state after all of the row.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, name: str = "", stops: Iterable[int] = ()) -> None:
        super().__init__(model, tokenizer, name, stops)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            widths = {"q1": 2 * self.width, "q2": 2 * self.width, "v1": self.width, "v2": self.width}
            self.heads = nn.ModuleDict({k: judge(w, self.width) for k, w in widths.items()}).to(self.device)

    @staticmethod
    def of(policy: LanguagePolicy) -> TurnCritic:
        """A critic that begins with the policy's own reading."""
        twin = policy.clone()
        return TurnCritic(twin.model, twin.tokenizer, twin.name, twin.stops)

    def clone(self) -> TurnCritic:
        other = super().clone()
        assert isinstance(other, TurnCritic)
        other.heads = copy.deepcopy(self.heads)
        return other

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"logp_BT", *TWINS})

    def forward(self, rows: Sequence[Turn | Rollout], needs: Iterable[str] = TWINS) -> dict[str, Tensor]:
        turns = [r.row for r in rows]
        check_rows(turns, self.window)
        before_BTD, last_BD = hidden_states(self.model, laid := Rows.of(turns, self.device), self.layout)
        own_B = torch.tensor([int(t.mask_T.sum()) for t in turns], device=last_BD.device)
        padded_BSD = torch.cat([before_BTD, torch.zeros_like(before_BTD[:, :1])], 1)
        whole_B = own_B == torch.tensor([len(t) for t in turns], device=last_BD.device)
        after_BD = padded_BSD[torch.arange(len(turns), device=last_BD.device), own_B]
        after_BD = torch.where(whole_B.unsqueeze(-1), last_BD, after_BD)
        state_BD, both_BD = before_BTD[:, 0], torch.cat([before_BTD[:, 0], after_BD], -1)
        found = {"turn_q_BTK": self._twins("q", both_BD), "turn_v_BTK": self._twins("v", state_BD)}
        found["turn_next_BTK"] = self._twins("v", last_BD)
        out = {k: x_BK.unsqueeze(1).expand(-1, laid.real_BT.shape[1], -1) for k, x_BK in found.items()}
        return {**out, "logp_BT": torch.zeros(laid.real_BT.shape, device=last_BD.device)}  # it says nothing itself

    def _twins(self, kind: str, h_BD: Tensor) -> Tensor:
        weight = next(self.heads.parameters())
        return torch.cat([self.heads[f"{kind}{i}"](h_BD.to(weight.dtype)) for i in (1, 2)], -1).float()


def judge(width: int, inner: int) -> nn.Sequential:
    """Three layers that end in one number."""
    return nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, 1))


def turn_td(batch: Batch, gamma: float = 0.95) -> Tensor:
    """ArCHer's critic: TD over turns. Each twin has the target that its own slow copy gives.

    stored turn: (Q_i(s, a) - r - gamma (1 - done) Vslow_i(s'))^2;  fresh turn: (V_i(s) - Qslow_i(s, a'))^2, a' of the policy now
    Every remembered turn makes two rows, the stored one and a fresh one in the same state; so each is counted twice over the mean.
    """
    stored_B1, done_B1 = (batch[f"reward:{k}_B"].to(batch.mask_BT).unsqueeze(-1) for k in ("stored", "done"))
    next_BK, aim_BK = batch["ref_turn_next_BTK"][:, 0], batch["ref_turn_q_BTK"][:, 0]
    goal_BK = batch.returns_B.unsqueeze(-1) + gamma * (1 - done_B1) * next_BK
    q_B = ((batch["turn_q_BTK"][:, 0] - goal_BK) ** 2).sum(-1)
    v_B = ((batch["turn_v_BTK"][:, 0] - aim_BK) ** 2).sum(-1)
    loss_B1 = 2 * torch.where(stored_B1 > 0, q_B.unsqueeze(-1), v_B.unsqueeze(-1))
    return loss_B1.expand_as(batch.mask_BT)


# not registered: only this system's critic gives the streams that it reads
turn_td_loss = Part(
    turn_td,
    Card(
        "archer-critic", "policy_loss", "ArCHer: critic", PAPER, file="posttrain/systems/agents_multiturn/archer.py", doc=turn_td.__doc__ or "",
        reads=("turn_q_BTK", "turn_v_BTK", "ref_turn_q_BTK", "ref_turn_next_BTK", "reward_BT"),
    ),
)  # fmt: skip


@scorer(title="Advantage of a turn (ArCHer)", paper=PAPER)
class TurnAdvantage(BaseScorer):
    """Advantage of a turn (ArCHer): R = min(Q1, Q2)(s, a) - min(V1, V2)(s), as the critic of turns says."""

    def __init__(self, critic: TurnCritic) -> None:
        self.critic = critic

    @torch.no_grad()
    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        out: list[Verdict] = []
        for r in answers_of(groups):
            said = self.critic.forward([r])
            q, v = (float(said[k][0, 0].min()) for k in ("turn_q_BTK", "turn_v_BTK"))
            out.append(Verdict(q - v, {"q": q, "v": v}))
        return out


# ---- what is remembered


def turns_of(r: Rollout) -> list[dict[str, Any]]:
    """The turns of an episode: the state before each, its tokens, what was seen next, the reward, whether it was the last."""
    out, state = [], list[int]()
    for k, turn in enumerate(r.turns):
        if k and not turn.continues:
            raise UserError(
                "archer reads a conversation as it grows, and this environment begins a new context between turns"
            )
        state = [*state, *turn.observation.tokens.tolist()]
        after = r.turns[k + 1].observation.tokens.tolist() if k + 1 < len(r.turns) else []
        worth = float(turn.reward or 0.0) + (float(r.reward or 0.0) if k + 1 == len(r.turns) else 0.0)
        row = {"state": state, "action": turn.actions.tolist(), "after": after, "reward": worth, "done": not after}
        out += [row] if len(turn) else []
        state = [*state, *turn.actions.tolist()]
    return out


class Memory(Environment):
    """Remembered turns as prompts, drawn uniformly; actor: who writes fresh turns where the one that learns is the critic."""

    name = "remembered turns"

    def __init__(self, rows: Sequence[dict[str, Any]], actor: Policy | None = None) -> None:
        self.rows, self.actor = rows[-CAPACITY:], actor

    def prompt(self, index: int, split: str = "train") -> Prompt:
        row = self.rows[rng.python("remembered", index).randrange(len(self.rows))]
        return Prompt.text(f"turn-{index}", "a remembered state", remembered=row)


def fresh_turns(policy: Policy, ask: RolloutRequest) -> list[Rollout]:
    """A turn of this policy, as it is now, in the state of each prompt."""
    seen = [Observation(torch.tensor(p.info["remembered"]["state"])) for p in ask.prompts]
    keys = [[rng.key(ask.seed, ask.step, p.id, "fresh")] for p in ask.prompts]
    made = policy.act([[Turn.empty(s)] for s in seen], keys, ask.sampling, ask.step)
    return [Rollout(p, [turn], reward=0.0) for p, (turn,) in zip(ask.prompts, made, strict=True)]


@rollout(name="archer", title="Fresh turns (ArCHer)", paper=PAPER, system="archer")
def fresh(ask: RolloutRequest, n: int = 1) -> list[Group]:
    """Fresh turns (ArCHer): the policy's own turn, as it is now, in states that are remembered; elsewhere whole episodes."""
    if not isinstance(ask.env, Memory):
        return list(sample(ask, n=n))
    return [Group(r.prompt, [r]) for r in fresh_turns(ask.policy, ask)]


@rollout(name="archer_pairs", title="Stored and fresh turns (ArCHer)", paper=PAPER, system="archer")
def stored_and_fresh(ask: RolloutRequest) -> list[Group]:
    """Stored and fresh turns (ArCHer): each remembered turn with what it led to, and beside it one that the policy writes now."""
    assert isinstance(ask.env, Memory) and ask.env.actor is not None
    groups = []
    for p, new in zip(ask.prompts, fresh_turns(ask.env.actor, ask), strict=True):
        row = p.info["remembered"]
        acted, after = torch.tensor(row["action"]), torch.tensor(row["after"], dtype=torch.long)
        old = Rollout.single(
            p, torch.tensor(row["state"]), torch.cat([acted, after]), torch.zeros(len(acted) + len(after))
        )
        old.turns[0].mask_T[len(acted) :] = False
        new.turns[0].logp_T = torch.zeros(len(new.turns[0]))  # the critic says nothing, so it has none to compare with
        for r, stored in ((old, 1.0), (new, 0.0)):
            r.origin, r.reward = Origin.REPLAYED, row["reward"] if stored else 0.0
            r.rewards = {"stored": stored, "done": float(row["done"])}
        groups.append(Group(p, [old, new]))
    return groups


# ---- the plan


def remembered(context: Context) -> list[dict[str, Any]]:
    """All turns that were played so far, those of the warm-up first."""
    names = context.notes.get("played")
    if not names:
        raise NotYet("nothing has been played yet")
    for name in names:
        if ("turns", name) not in context.made:
            context.made["turns", name] = context.run.read_artifact(name)
    return [row for name in names for row in context.made["turns", name]]


def played(episodes: int) -> Any:
    """Play so many episodes with the policy as it is, and remember their turns."""

    def work(context: Context) -> None:
        c, env, policy = context.config, asked_task(context), context.role("policy")
        at = len(context.notes.get("played", ()))
        prompts = distinct(env, range(at * episodes, (at + 1) * episodes))
        seed = rng.key(c.seed, context.phase) & 0x7FFFFFFF
        made = answers_of(sample(RolloutRequest({"policy": policy}, prompts, c.sampling, seed, 0, env), n=1))
        good = [r for r in made if not r.failed and r.reward is not None]
        name = f"turns-{at}"
        context.run.write_artifact(name, [row for r in good for row in turns_of(r)])
        context.notes["played"] = [*context.notes.get("played", ()), name]
        context.notes.setdefault("returns", []).append(sum(r.total for r in good) / max(len(good), 1))

    return work


@plan(paper=PAPER, title="ArCHer", uses=("task",))
def archer(
    iterations: int = 20, warmup: int = 20, episodes: int = 128, critic: int = 50, actor: int = 3, gamma: float = 0.95, rate: float = 0.5
) -> Plan:  # fmt: skip
    """ArCHer: play, learn values of turns from everything that was played, then make turns likelier that these values favour.

    critic: Q_i(s, a) -> r + gamma (1 - done) Vslow_i(s'),  V_i(s) -> Qslow_i(s, a'), a' ~ pi now;  slow <- 0.9 slow + 0.1 critic
    actor:  -A sum_t log pi(a_t | s, a_<t),  A = min(Q1, Q2)(s, a) - min(V1, V2)(s);  s remembered, a written now; no ratio, clip or KL
    An iteration plays `episodes`, then takes `critic` updates of the critic and `actor` of the policy, each on `--prompts` turns drawn from
    the last 100,000; in the first `warmup` iterations the critic learns alone. rate: the policy's learning rate in the critic's, which is the
    run's. Task: an environment with turns (`--task mine.py:Game`). The summary has the mean return of every iteration.

    Departures: the critic reads with a copy of the policy's network, a turn after its state, where the paper's RoBERTa-base reads both apart.
    Slow copies and the optimisers' moments begin anew at each iteration. An episode that was cut by a limit counts as ended. The optional
    baseline over tokens and the offline variant (IQL, AWR) are not here. 128 episodes, 50 and 3 updates, a warm-up of 20, gamma 0.95, tau 0.1,
    half of the critic's rate (1e-5 and 2e-5; 1e-6 for twenty questions), the memory and three layers per head are the authors'.
    """
    if min(iterations, episodes, critic, actor) < 1 or warmup < 0 or not 0 <= gamma <= 1 or rate <= 0:
        raise UserError(
            f"got iterations={iterations}, warmup={warmup}, episodes={episodes}, critic={critic}, actor={actor}, gamma={gamma}, rate={rate}; "
            "counts are at least 1 (warmup 0), gamma is between 0 and 1, rate above 0"
        )
    about: dict[str, Any] = {"title": "ArCHer", "paper": PAPER, "doc": __doc__}
    judged = reinforce.but(
        **about, name="archer-critic", rollout=stored_and_fresh, advantage=ones, loss=turn_td_loss.but(gamma=gamma), aggregate=sequence_mean,
        reference=ema.but(decay=1 - TAU),  # type: ignore[attr-defined]
    )  # fmt: skip
    acts = reinforce.but(**about, name="archer", rollout=fresh, advantage=outcome)

    def memory(context: Context) -> Memory:
        return Memory(remembered(context), context.role("policy"))

    def ready(context: Context) -> None:
        if not (env := asked_task(context)).opens:
            raise UserError(f"archer plays episodes, and {env.name} has single answers; give an environment with turns: --task mine.py:Game")  # fmt: skip

    even = {"schedule": "constant", "warmup": 0}
    told: dict[str, Any] = {"env": memory, "rewards": lambda context: Prescored(), "role": "critic", "changes": even}
    told["make"] = lambda context: TurnCritic.of(context.role("policy"))
    alone = (Do("warm-play", played(episodes)), Phase("warm-critic", judged, critic, **told))
    learn = Phase(
        "actor", acts, actor, memory, rewards=lambda c: TurnAdvantage(c.role("critic")), changes=even, pace=rate
    )
    both = (Do("play", played(episodes)), Phase("critic", judged, critic, **told), learn)
    return Plan((*((Cycle(alone, warmup),) if warmup else ()), Cycle(both, iterations)), ready=ready)
