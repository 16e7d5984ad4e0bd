"""DPA: one policy for every direction of preference. The direction stands in the prompt, and of several answers the best in it is imitated."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.answers import demonstration
from posttrain.core.batch import Batch
from posttrain.core.conditioning import Directions
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Cycle, Do, Phase, Plan, plan
from posttrain.core.protocols import Environment, RolloutRequest
from posttrain.core.registry import rollout, supervised_loss
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.base import size_of
from posttrain.environments.mapped import Mapped
from posttrain.losses.aggregate import sequence_sum
from posttrain.methods.conditioned import keep_conditioning, refuse_conditioned
from posttrain.methods.from_pairs import epochs_of, has_reward
from posttrain.methods.members import EVAL_SEED, looked_at
from posttrain.methods.ratings import Ratings, predicted
from posttrain.methods.settings import asked_rewards, asked_scores, asked_task, written
from posttrain.methods.sft import sft
from posttrain.prompts.uniform import distinct
from posttrain.rewards.runtime.score import is_scorer

PAPER = "arXiv:2402.18571"
SHOWN = (-1.0, 0.0, 1.0)  # directions that are looked at after every round: as wide as they go, and straight ahead

Vector = tuple[float, ...]

# ---- a reward with several numbers


@rollout(name="rated", title="Rated answers (DPA)", paper=PAPER, system="dpa", data="demonstrations")
def rated(ask: RolloutRequest) -> list[Group]:
    """Rated answers (DPA): the answer that comes with the prompt, with its ratings (`info["ratings"]`)."""
    groups = []
    for p in ask.prompts:
        made = ask.policy.written(p, str(demonstration(p)))
        made.reward, made.info = 1.0, {**made.info, "ratings": p.info["ratings"]}
        groups.append(Group(p, [made]))
    return groups


@supervised_loss(
    name="rating_error", title="Rating error (DPA)", paper=PAPER, system="dpa", reads=("rating_BK", "scores_BK")
)
def rating_error(batch: Batch) -> Tensor:
    """Rating error (DPA): every score of the head is to be the rating that people gave; one number for an answer, over its tokens.

    L_t = sum_k (s_k - r_k)^2 / |y|, so that the sum over an answer's tokens is its squared error
    """
    told_BK = torch.where(batch.valid_B.unsqueeze(-1), batch["rating_BK"].to(batch["scores_BK"].dtype), 0.0)
    error_B = ((batch["scores_BK"] - told_BK) ** 2).sum(-1)
    return (error_B / batch.lengths_B.clamp_min(1)).unsqueeze(-1) * (batch.mask_BT > 0)


regression = sft.but(
    name="ratings", title="Ratings", paper=PAPER, rollout=rated, loss=rating_error, aggregate=sequence_sum
)


# ---- directions


def direction(how: Directions, *identity: object) -> Vector:
    """A unit vector whose angle to the first reward is uniform up to the widest, to any side of the others."""
    draw = rng.python("direction", *identity)
    angle = math.radians(how.widest) * draw.random()
    aside = [draw.gauss(0.0, 1.0) for _ in how.names[1:]]
    length = math.sqrt(sum(x * x for x in aside)) or 1.0
    return (math.cos(angle), *(math.sin(angle) * x / length for x in aside))


class Told(Mapped):
    """A task whose held-out prompts are told the first reward alone; its training prompts are what was collected, where something was."""

    def __init__(self, env: Environment, how: Directions, rows: tuple[Prompt, ...]) -> None:
        super().__init__(env, lambda p, split: replace(p, content=how.written(p.content, how.example())))
        self.rows = rows

    def size(self, split: str = "train") -> int:
        return len(self.rows) if split == "train" and self.rows else size_of(self.env, split)

    def prompt(self, index: int, split: str = "train") -> Prompt:
        return self.rows[index % len(self.rows)] if split == "train" and self.rows else super().prompt(index, split)


class Steered:
    """The work of the rounds. It holds options only: what it makes goes into artifacts and notes."""

    def __init__(self, how: Directions, ratings: Ratings | None, prompts: int, n: int) -> None:
        self.how, self.ratings, self.prompts, self.n = how, ratings, prompts, n

    def begin(self, context: Context) -> None:
        keep_conditioning(context, self.how)

    def scored(self, context: Context, groups: list[Group]) -> list[list[Vector | None]]:
        """What each answer earned of every reward; None where it could not be scored."""
        if self.ratings is not None:
            found = iter(predicted(context.role("reward_model"), [r for g in groups for r in g.rollouts]).tolist())
            return [[tuple(next(found)) for _ in g.rollouts] for g in groups]
        asked_scores(context, groups)
        return [[self.parts(r) for r in g.rollouts] for g in groups]

    def parts(self, r: Rollout) -> Vector | None:
        if r.rewards:
            self.named(r.rewards)
        told = tuple(r.rewards.get(name, math.nan) for name in self.how.names)
        return told if all(map(math.isfinite, told)) else None

    def named(self, there: Collection[str]) -> None:
        """A UserError where --reward gives no number of that name."""
        if missing := [name for name in self.how.names if name not in there]:
            raise UserError(
                f'--reward gives {", ".join(there)}, and not {missing[0]}; name what it gives: --plan.rewards "A,B"'
            )

    def collect(self, context: Context) -> None:
        """n answers to new prompts, each prompt told a direction of its own; the best answer in that direction is kept. In the first round the
        policy is asked without: a direction means nothing to it yet."""
        c, env, i = context.config, asked_task(context), int(context.phase.rpartition(".")[2])
        plain = distinct(env, range((i - 1) * self.prompts, i * self.prompts))
        wanted = [direction(self.how, c.seed, i, p.id) for p in plain]
        told = [
            replace(p, id=f"{p.id}-{i}", content=self.how.written(p.content, v))
            for p, v in zip(plain, wanted, strict=True)
        ]
        asked = told if i > 1 else plain
        made = context.role("policy").sample(asked, self.n, c.sampling, rng.key(c.seed, "round", i) & 0x7FFFFFFF)
        groups = [Group(p, some) for p, some in zip(asked, made, strict=True)]
        earned = self.scored(context, groups)
        scale = self.scale(context, [x for some in earned for x in some if x is not None])
        rows = []
        for p, g, v, some in zip(told, groups, wanted, earned, strict=True):
            worth = [-math.inf if x is None else toward(v, x, scale) for x in some]
            best = max(range(len(worth)), key=worth.__getitem__)
            if math.isfinite(worth[best]):
                rows.append(
                    {
                        "id": p.id,
                        "prompt": list(p.content),
                        "direction": v,
                        "response": g.rollouts[best].text,
                    }
                )
        if not rows:
            raise UserError(f"round {i}: none of {self.n} answers to each of {len(told)} prompts could be scored")
        context.run.write_artifact(f"round{i}", rows)

    def scale(self, context: Context, earned: list[Vector]) -> list[list[float]]:
        """Mean and deviation of every reward over the first round's answers: the units in which directions are meant."""
        if "scale" not in context.notes and earned:
            context.notes["scale"] = [[fmean(x), pstdev(x) or 1.0] for x in zip(*earned, strict=True)]
        found: list[list[float]] = context.notes.get("scale", [])
        return found

    def env(self, context: Context) -> Told:
        """What the present round collected; before it, the task."""
        base = asked_task(context)
        i = context.phase.rpartition(".")[2]
        if not i.isdigit() or not context.run.artifact(f"round{i}").exists():
            return Told(base, self.how, ())
        rows = context.run.read_artifact(f"round{i}")
        made = (Prompt(r["id"], tuple(r["prompt"]), None, {"demonstration": r["response"]}) for r in rows)
        return Told(base, self.how, tuple(made))

    def measure(self, context: Context) -> None:
        """What the policy earns when it is told to go as far as it can to either side, and straight ahead."""
        prompts, policy, scale = looked_at(context, asked_task(context)), context.role("policy"), context.notes["scale"]
        angle = math.radians(self.how.widest)
        for k, name in enumerate(self.how.names[1:], 1):
            for side in SHOWN:
                v = tuple(
                    math.cos(side * angle) if j == 0 else math.sin(side * angle) if j == k else 0.0
                    for j in range(len(self.how.names))
                )
                told = [replace(p, content=self.how.written(p.content, v)) for p in prompts]
                made = policy.sample(told, 1, context.config.sampling, EVAL_SEED, -1)
                earned = self.scored(context, [Group(p, some) for p, some in zip(told, made, strict=True)])
                good = [x for some in earned for x in some if x is not None]
                means = [fmean((x[j] - m) / s for x in good) if good else math.nan for j, (m, s) in enumerate(scale)]
                context.notes[f"{name}={v[k]:+.2f}"] = dict(zip(self.how.names, means, strict=True))


def toward(v: Sequence[float], earned: Sequence[float], scale: Sequence[Sequence[float]]) -> float:
    """v . r, each reward in deviations from its mean."""
    return sum(w * (x - mean) / std for w, x, (mean, std) in zip(v, earned, scale, strict=True))


# ---- the plan


@plan(title="DPA", paper=PAPER)
def dpa(
    rewards: str = "helpful,verbose", ratings: str = "", rounds: int = 3, prompts: int = 2000, n: int = 16, epochs: float = 1.0,
    passes: float = 1.0,
) -> Plan:  # fmt: skip
    """DPA: directional preference alignment. One policy that is told in its prompt which mix of rewards is wanted.

    for each prompt x a unit vector v is drawn, at most 45 degrees from the first reward; y = argmax_k v . r(x, y_k) of n answers to (x, v)
    L = -log pi(y | x, v);  as many rounds, each with answers of the policy as it is by then
    The rewards r are numbers of a reward model that the plan trains by squared error on rated answers (--plan.ratings rows.jsonl: a prompt, a response and a column
    for each reward), or the parts of --reward ("mine.py:helpful + mine.py:verbose"). Afterwards `posttrain chat --model RUN --prefer "helpful=0.8,verbose=-0.6"` says which mix is
    wanted, and so do `eval`, `generate` and `serve`: the run keeps the names, and a system message says the weights in hundredths.

    rewards: their names, the one that always counts first; ratings: the file of rated answers; rounds, prompts and n: new prompts of a round, answers to each; epochs: passes
    over a round's best answers; passes: of the reward model over the rated answers.

    Departures: the training code was never released; that the best of several answers in a drawn direction is imitated, in rounds, is the paper's, how many answers, prompts and
    rounds could not be checked (16, 2,000 and 3 here), nor whether a round begins with the last round's policy, as here, or with the first. In the first round answers are those to the prompt alone, since the policy was never told a direction. The paper's rewards lie between 0 and 100; here
    each is counted in deviations over the first round's answers, so that none outweighs the others by its units. Two rewards, integers of v times 100, and 45 degrees are the
    authors'; more than two are this plan's. Their reward model has ten heads, from HelpSteer and UltraFeedback, of which two steer; here those that steer. Their system message begins
    with a sentence on being helpful and harmless that is left away.
    """
    names = tuple(x.strip() for x in rewards.split(",") if x.strip())
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError(f'rewards is {rewards!r}; name two or more, each once, as "helpful,verbose"')
    if rounds < 1 or prompts < 2 or n < 2 or epochs <= 0 or passes <= 0:
        raise UserError(
            f"got rounds={rounds}, prompts={prompts}, n={n}, epochs={epochs:g}, passes={passes:g}; it takes 1 round, 2 prompts and 2 answers at least"
        )
    how, file = Directions(names), Ratings(ratings, names) if ratings else None
    work = Steered(how, file, prompts, n)

    def ready(context: Context) -> None:
        refuse_conditioned(context, "dpa")
        if file is not None:
            file.env(context)
        elif not has_reward(context):
            raise UserError(
                f"dpa steers between rewards, and none is there: give rated answers, --plan.ratings rows.jsonl with the columns {', '.join(names)}, or a sum "
                f'of rewards with these names: --reward "mine.py:{names[0]} + mine.py:{names[1]}"'
            )
        asked_task(context)
        plain = getattr(asked_rewards(context), "rewards", {}) if file is None else {}
        if plain and not any(map(is_scorer, plain.values())):  # a scorer may give several numbers, by names of its own
            work.named(plain)

    learn = Phase("dpa", sft.but(paper=PAPER), epochs_of(work.env, epochs), work.env, rewards=written, measured=True)
    rounds_of = Cycle((Do("collect", work.collect), learn, Do("look", work.measure)), times=rounds)
    return Plan(
        (*_judge(file, passes), Do("directions", work.begin), rounds_of),
        ready=ready,
        uses=("task",) if ratings else None,
    )


def _judge(file: Ratings | None, passes: float) -> tuple[Phase, ...]:
    """The reward model, where there are ratings to learn it from."""
    if file is None:
        return ()
    make: Callable[[Context], Any] = lambda c: c.role("policy").as_reward_model(len(file.names))  # noqa: E731
    return (
        Phase(
            "reward-model",
            regression,
            epochs_of(file.env, passes),
            file.env,
            role="reward_model",
            make=make,
            rewards=written,
            after=file.look,
        ),
    )
