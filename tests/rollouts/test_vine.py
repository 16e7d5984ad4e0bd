"""VinePPO: answers from intermediate states, and the credit that follows from what they earn."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.advantages.dense import dense
from posttrain.core.assemble import assemble
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.types import Branch, Group, Prompt, Rollout
from posttrain.policies.language import LanguagePolicy
from posttrain.runs.in_memory import FunctionScorer, fit, numbered, row
from posttrain.systems.policy_gradient.vineppo import vine, vine_values, vineppo
from tests.runs import tiny_run
from tests.wiring.record import said


def answer(T: int, reward: float, parent: int | None = None, fork: int = 0) -> Rollout:
    branch = None if parent is None else Branch(parent, fork)
    told = {} if parent is None else {"vine": True}
    ones = torch.ones(T)
    return Rollout.single(
        row(0), torch.tensor([0]), ones.long(), -ones, ones.bool(), reward=reward, branch=branch, info=told
    )


@pytest.mark.derived("rollout/vine")
def test_every_state_where_a_segment_begins_has_its_vines() -> None:
    p = TabularPolicy(1, 5, 3).randomise(1.0, "vine")
    (g,) = vine(RolloutRequest({"policy": p}, [row(0)], Sampling(), 0, 0), n=2, k=3, tokens=2)
    # two answers of 5 letters, states at 0, 2 and 4, three vines from each
    assert len(g.rollouts) == 2 + 2 * 3 * 3
    for r in g.rollouts[2:]:
        at = r.branch.at
        assert torch.equal(r.actions[:at], g.rollouts[r.branch.parent].actions[:at]) and len(r) == 5
    assert {(r.branch.parent, r.branch.at) for r in g.rollouts[2:]} == {(i, at) for i in (0, 1) for at in (0, 2, 4)}
    with pytest.raises(UserError, match="at least 1"):
        vine(RolloutRequest({"policy": p}, [row(0)], Sampling(), 0, 0), k=0)


@pytest.mark.derived("rollout/vine")
def test_a_segment_is_a_line_of_the_answer() -> None:
    """Three lines of one letter and a new line each: states 0, 2 and 4, nine vines from each unless said otherwise."""
    p = tiny_run.policy()
    with patch.object(LanguagePolicy, "_generate", said(["a\nb\nc"])):
        (g,) = vine(RolloutRequest({"policy": p}, [Prompt.text("p", "write")], Sampling(max_tokens=8)), n=1)
    assert {r.branch.at for r in g.rollouts[1:]} == {0, 2, 4} and len(g.rollouts) == 1 + 3 * 9


@pytest.mark.derived("select/vine-values", "advantage/dense")
def test_credit_of_a_segment_is_the_change_of_worth() -> None:
    # one answer of 3 letters, segments of 2, earned 1; V(0) = (0 + 1)/2, V(2) = (1 + 1 + 0)/3
    # first segment 2/3 - 1/2, last 1 - 2/3
    vines = [answer(3, x, 0, 0) for x in (0.0, 1.0)] + [answer(3, x, 0, 2) for x in (1.0, 1.0, 0.0)]
    (g,) = vine_values([Group(row(0), [answer(3, 1.0), *vines])])
    assert len(g.rollouts) == 1 and g.rollouts[0].reward == 0.0
    _, batch = assemble([g])
    assert dense(batch)[0].tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 3])
    # whitened over the three tokens: mean 2/9, deviations -1/18, -1/18, 1/9, variance 1/162: -.707107, -.707107, 1.414214
    assert dense(batch, whiten=True)[0].tolist() == pytest.approx([-0.707107, -0.707107, 1.414214], abs=1e-4)


def test_what_cannot_be_valued_is_failed() -> None:
    nan = math.nan
    some = vine_values([Group(row(0), [answer(2, 1.0), answer(2, nan, 0, 0)])])
    other = vine_values([Group(row(0), [answer(2, nan), answer(2, 1.0, 0, 0)])])
    lone = vine_values([Group(row(0), [answer(2, 1.0)])])
    assert all(g[0].rollouts[0].failed for g in (some, other, lone))
    part = vine_values([Group(row(0), [answer(2, 1.0), answer(2, nan, 0, 0), answer(2, 0.0, 0, 0)])])
    assert part[0].rollouts[0].stream("reward").tolist() == [1.0, 1.0]  # a failed vine does not count


def test_it_learns() -> None:
    from posttrain.core.config import Config

    p = TabularPolicy(2, 4, 3)
    right = FunctionScorer(lambda rs: torch.tensor([float((r.actions == 1).float().mean()) for r in rs]))
    config = Config(steps=8, prompts=2, lr=0.5, warmup=0, max_norm=100.0)
    rows = fit(p, vineppo.but(rollout=vine.but(n=4, k=2, tokens=2)), numbered(2), config, right)
    assert rows[-1]["reward"] > rows[0]["reward"] + 0.3
