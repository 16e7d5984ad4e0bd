from __future__ import annotations

from posttrain.core.credit import split_steps, token_ends
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group, Rollout
from posttrain.rollouts.sample import sample


@rollout(title="Anchor states (GiGPO)", paper="arXiv:2505.10978", base="sample", system="gigpo")
def anchored(ask: RolloutRequest, n: int = 8, level: str = "phrase"
) -> list[Group]:  # fmt: skip
    """Anchor states (GiGPO): sample, and say of each token in which state it was written, so that steps can be compared.

    The state is the last whole step of the text (its words, not its place), the prompt itself before the first: answers that
    have just said the same stand in the same state, whatever way they came. level: word, phrase, sentence or line. An
    environment with states of its own tells them instead: `Rollout.info["states"]`, one key an action.
    """
    groups = sample(ask, n=n)
    for r in (r for g in groups for r in g.rollouts):
        if "states" not in r.info:
            r.info["states"] = last_steps(r, token_ends(ask.policy.decode, r.actions), level)
    return groups


def last_steps(r: Rollout, ends: list[int], level: str) -> list[str]:
    """For each token, the last step of the text that was whole before it; "" where there is none."""
    steps = [(end, " ".join(r.text[start:end].lower().split())) for start, end in split_steps(r.text, level)]
    starts = [0, *ends[:-1]]
    return [next((said for end, said in reversed(steps) if end <= start), "") for start in starts]
