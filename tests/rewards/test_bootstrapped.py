"""BRPO by hand: who beats the drawn reference, that the mean is 0, which groups stay, and the step that follows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from posttrain.core.assemble import assemble
from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.core.types import Group, Prompt
from posttrain.losses.aggregate import Totals
from posttrain.losses.objective import objective
from posttrain.rewards.scorers.judging import FunctionJudge
from posttrain.systems.policy_gradient.writing_zero import Bootstrapped, balanced, brpo
from tests.rewards.test_pairwise import group


def longer(prompt: Prompt, a: str, b: str) -> float:
    return 0.5 if len(a) == len(b) else 0.8 if len(a) > len(b) else 0.2


def scored(*texts: str, at: int, judge=longer) -> Group:
    """Answers compared with the one at that place."""
    made, scorer = group(*texts), Bootstrapped(FunctionJudge(judge))
    scorer.drawn = lambda g: at  # type: ignore[method-assign]
    scorer.score([made])
    return made


def test_rewards_are_signs() -> None:
    # beside "bb": "a" is shorter (-1), "ccc" longer (1), "dd" as long, which does not beat it (-1); the reference itself 0
    got = scored("a", "bb", "ccc", "dd", at=1)
    assert [r.reward for r in got.rollouts] == [-1.0, 0.0, 1.0, -1.0]
    assert [r.info["reference"] for r in got.rollouts] == [False, True, False, False]


def test_one_question_an_answer() -> None:
    scorer = Bootstrapped(FunctionJudge(longer))
    scorer.score([group(*["a" * i for i in range(1, 9)])])
    assert scorer.calls == 7


def test_a_drawn_reference_has_mean_zero_and_the_best_one_has_not() -> None:
    # over every place of the reference the signs of all pairs cancel; beside the best all others lose
    texts = ["a", "bb", "ccc", "dddd"]
    every = [sum(r.reward for r in scored(*texts, at=i).rollouts) for i in range(4)]
    assert every == [3.0, 1.0, -1.0, -3.0] and sum(every) == 0
    places = [Bootstrapped(longer, seed=s).drawn(group(*texts, prompt=Prompt.text(str(s), "?"))) for s in range(400)]
    assert all(abs(places.count(i) - 100) < 35 for i in range(4))  # sd 8.7


def test_a_failed_comparison_masks() -> None:
    got = scored("a", "bb", "x", at=1, judge=lambda p, a, b: math.nan if "x" in (a, b) else longer(p, a, b))
    assert got.rollouts[2].failed and got.rollouts[0].reward == -1.0


@pytest.mark.derived("select/balanced")
def test_balanced() -> None:
    # means of the others: 0 of (-1, 1); 1/3 of (-1, 1, 1); -1: the reference was too good, the group goes
    even, most, none = (
        scored("a", "bb", "ccc", at=1),
        scored("a", "bb", "ccc", "dddd", at=1),
        scored("a", "bbb", "c", at=1),
    )
    kept = balanced([even, most, none])
    assert [[r.text for r in g.rollouts] for g in kept] == [["a", "ccc"], ["a", "ccc", "dddd"]]
    assert balanced([most], limit=0.3) == [] and balanced([none], limit=1.0) != []
    alone = replace(none, rollouts=none.rollouts[1:2])
    assert balanced([alone]) == [] and len(even.rollouts) == 3  # nobody but the reference; the input is left alone


def test_the_step_follows_the_sign() -> None:
    # two answers of one token, A = -1 and 1, on policy; the mean over 2 tokens: slopes -A/2 = .5 and -.5
    method = brpo()
    _, batch = assemble(balanced([scored("a", "bb", "ccc", at=1)]))
    leaf = batch["old_logp_BT"].clone().requires_grad_()
    batch = batch.but(adv_BT=method.advantage(batch), logp_BT=leaf)
    loss, _ = objective(batch, Totals.of(batch), method.loss, method.aggregate, method.terms)
    loss.backward()
    torch.testing.assert_close(leaf.grad, torch.tensor([[0.5], [-0.5]]))


def test_the_plan() -> None:
    with pytest.raises(UserError, match="2 others"):
        find("writing-zero(n=2)", "plan")()
    (phase,) = find("writing-zero(limit=0.5)", "plan")().parts
    assert phase.method.select[0].params == {"limit": 0.5}
