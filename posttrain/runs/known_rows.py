"""Which runs know beforehand all rows that they will ask their reference about: those on written preferences, in the order of the data."""

from __future__ import annotations

from collections.abc import Iterator

from posttrain.core.assemble import assemble
from posttrain.core.batch import Batch
from posttrain.core.loop import Loop
from posttrain.core.protocols import RolloutRequest
from posttrain.core.turn import Turn
from posttrain.environments.base import size_of
from posttrain.rollouts.sources import LocalSource
from posttrain.weights.known import Known
from posttrain.weights.parallel import Local
from posttrain.weights.reference import Frozen

_WRITTEN = ("pairs", "lists", "labels")  # rollout parts whose rows are the data's
_MOST = 250_000  # prompts whose numbers are held in memory


def know_reference(loop: Loop) -> None:
    """Let the reference of a run on fixed data say everything once, before the first step, and keep it on the disk."""
    m, source, learner = loop.method, loop.source, loop.learner
    fixed = m.rollout.name in _WRITTEN and m.prompts.name == "uniform" and not m.select and m.rounds == 1
    alone = len(loop.learners) == 1 and type(source) is LocalSource and type(learner.parallel) is Local
    reference = learner.reference
    own = isinstance(reference, Frozen) and not reference._others  # not a mixture of several policies
    if not fixed or not alone or not own or learner.goal.reference.name != "fixed":
        return
    if (
        learner.parallel.ranks.world > 1
        or learner.kept != ["ref_logp_BT"]
        or not 0 < size_of(loop.env, "train") <= _MOST
    ):
        return
    learner.reference.known = Known(lambda: batches(loop), learner.micro_tokens)


def batches(loop: Loop) -> Iterator[tuple[list[Turn], Batch]]:
    """The rows of this run's steps, up to where the data begins anew."""
    source, c = loop.source, loop.config
    assert isinstance(source, LocalSource)
    for step in range(min(c.steps, -(-size_of(loop.env, "train") // c.prompts))):
        prompts = source.curriculum.propose(c.prompts, step, loop.policy)
        asked = RolloutRequest(source.policies, prompts, source.sampling, source.seed, step, source.env)
        groups = [g for g in source.answered(asked) if g.scored and g.rollouts]
        if groups:
            yield assemble(groups)
