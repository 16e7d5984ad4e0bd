"""The loop. One line a stage, in the order things happen; everything else is a part."""

from __future__ import annotations

from posttrain.core.assemble import answers, assemble, placed, shared
from posttrain.core.loop import Loop
from posttrain.core.types import Batch, Group, Rollout


def train(loop: Loop) -> None:
    """prompts -> rollouts -> rewards -> advantages -> losses -> weights -> evals, until the budget is spent."""
    for step in loop.steps():  # begins where the last good checkpoint ended
        prompts = loop.curriculum.next(loop.env, step, loop.config.prompts, loop.config.seed)
        groups = loop.source.groups(prompts, step)  # may be stale: each rollout carries its version
        report = loop.scorer.score(groups)  # a failed reward is data: masked and counted, never 0
        kept = keep(loop, groups)
        if kept:
            rollouts, batch = assemble(kept)
            batch = loop.learner.annotate(rollouts, batch)  # reference log-probabilities, values
            batch = credit(loop, rollouts, batch)
            seen = loop.learner.update(rollouts, batch, step)
        else:
            seen = {}  # nothing to learn from at this step (every group of equals, say): counted, not an error
        loop.curriculum.observe(groups)  # curricula look at what was learned
        loop.record(step, groups, kept, report, seen)  # metrics, rollouts, checkpoint, evals


def keep(loop: Loop, groups: list[Group]) -> list[Group]:
    """Which groups are worth learning from; one with nothing scored never is."""
    groups = [g for g in groups if g.scored]
    for part in loop.keep:
        groups = part(groups)
    return [g for g in groups if g.rollouts]


def credit(loop: Loop, rollouts: list[Rollout], batch: Batch) -> Batch:
    """Shape the rewards, then say which action deserves how much of them; each rollout keeps its own."""
    judged = answers(batch)
    for part in loop.shaping:
        judged = judged.but(reward_BT=part(judged))
    adv = loop.advantage(judged)
    streams = adv if isinstance(adv, tuple) else (adv,)  # some also say what the critic should learn, or mark tokens
    named = zip(("adv_BT", "return_BT", "mark_BT"), (shared(x, batch) for x in streams), strict=False)
    batch = batch.but(reward_BT=placed(judged.need("reward_BT"), batch), **dict(named))
    for row, rollout in enumerate(rollouts):
        rollout.adv_T = batch.need("adv_BT")[row, : len(rollout)]
    return batch
