from __future__ import annotations

from dataclasses import replace

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Branch, Group
from posttrain.rollouts.resume import cut, resume
from posttrain.rollouts.sample import sample


@rollout(title="Vines (VinePPO)", paper="arXiv:2410.01679", base="sample")
def vine(ask: RolloutRequest, n: int = 8, fork: tuple[int, int] = (16, 4)
) -> list[Group]:  # fmt: skip
    """Vines (VinePPO): n answers a prompt and, from every state where a segment of one begins, k more to say its worth.

    fork = (tokens of a segment, k). The k answers stand behind the n, say so (`info["vine"]`), and have a `branch`;
    the filter `vine_values` turns what they earn into credit and takes them out. The paper's segments are lines of text.
    """
    segment, k = fork
    if min(n, segment, k) < 1:
        raise UserError(f"got n={n}, fork={fork}; n, the tokens of a segment and the vines are each at least 1")
    groups: list[Group] = sample(ask, n=n)
    places = [(g, i, at) for g in groups for i, r in enumerate(g.rollouts) for at in range(0, len(r), segment)]
    stems = [cut(ask.policy, g.rollouts[i], at) for g, i, at in places]
    keys = [[rng.key(ask.seed, ask.step, g.prompt.id, "vine", i, at, j) for j in range(k)] for g, i, at in places]
    for (g, i, at), made in zip(places, resume(ask.policy, stems, keys, ask.sampling, ask.step), strict=True):
        for r in made:
            told = r.info | {"vine": True}
            g.rollouts.append(replace(r, index=len(g.rollouts), branch=Branch(i, at), info=told))
    return groups
