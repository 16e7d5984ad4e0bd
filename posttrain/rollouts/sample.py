from __future__ import annotations

from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group
from posttrain.rollouts.episode import episodes


@rollout()
def sample(ask: RolloutRequest, n: int = 8) -> list[Group]:
    """Sample: n independent answers to each prompt from the policy as it is; where the environment has turns, n episodes."""
    if ask.env.opens:
        return [learned_from(ask, g) for g in episodes(ask, n)]
    hears = {"finished": ask.finished} if ask.finished and getattr(ask.policy, "tells_finished", False) else {}
    made = ask.policy.sample(ask.prompts, n, ask.sampling, ask.seed, ask.step, **hears)
    return [Group(prompt, rollouts) for prompt, rollouts in zip(ask.prompts, made, strict=True)]


def learned_from(ask: RolloutRequest, group: Group) -> Group:
    """Without the rollouts of roles that only play: a user, an opponent who does not learn."""
    silent = {role for role, policy in ask.policies.items() if getattr(policy, "only_plays", False)}
    return group.only([i for i, r in enumerate(group.rollouts) if r.role not in silent]) if silent else group
