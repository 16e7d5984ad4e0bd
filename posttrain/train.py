"""The loop. One line per stage, in the order things happen; everything else is a part."""

from __future__ import annotations

from posttrain.core.assemble import answers, assemble, by_role, credits, keep_credit, placed
from posttrain.core.batch import Batch
from posttrain.core.loop import Loop
from posttrain.core.turn import Turn
from posttrain.core.types import Group


def train(loop: Loop) -> None:
    """prompts -> rollouts -> rewards -> advantages -> losses -> weights -> evals, until the budget is spent."""
    for step in loop.steps():  # begins where the last good checkpoint ended
        groups, kept, report = loop.gather(step, select)  # prompts, rollouts, rewards, filters; made here or elsewhere
        loop.tell("on_rollouts", step, groups)
        seen: dict[str, float] = {}
        for role, mine in by_role(kept, loop.shared).items():  # one unless several policies play
            rows, batch = assemble(mine)
            batch = credit(loop, role, mine, rows, batch)
            seen |= update(loop, role, rows, batch, step)
        loop.source.publish(step + 1)  # the weights changed; curricula see the groups
        seen |= loop.evaluate(step)
        loop.record(step, groups, kept, report, seen)  # metrics, rollouts, checkpoint


def select(loop: Loop, groups: list[Group]) -> list[Group]:
    """The groups to train on; those without a scored rollout are dropped."""
    groups = [g for g in groups if g.scored]
    for part in loop.select:
        groups = part(groups)
    return [g for g in groups if g.rollouts]


def credit(loop: Loop, role: str, groups: list[Group], rows: list[Turn], batch: Batch) -> Batch:
    """Shape the rewards, then compute advantages; each rollout keeps its own."""
    for learner in loop.learners_of(role):
        batch = learner.annotate(rows, batch)  # reference log-probabilities, values
    judged = answers(batch)
    for part in loop.shaping:
        judged = judged.but(reward_BT=part(judged))
    adv = loop.advantage(judged)
    batch = batch.but(reward_BT=placed(judged["reward_BT"], batch), **credits(adv, batch))
    keep_credit(groups, batch)
    return batch


def update(loop: Loop, role: str, rows: list[Turn], batch: Batch, step: int) -> dict[str, float]:
    """One update of every learner that learns from this role's rows; metrics of all but the first have the learner's name in front."""
    seen: dict[str, float] = {}
    for learner in loop.learners_of(role):
        if step % learner.goal.every == 0:
            found = learner.update(rows, batch, step)
            seen |= found if learner is loop.learner else {f"{learner.goal.role}/{k}": x for k, x in found.items()}
    return seen
