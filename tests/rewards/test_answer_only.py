"""RLMT by hand: the reward reads what follows the thought, and the thought is credited with it."""

from __future__ import annotations

import math

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.assemble import assemble
from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.core.types import Group, Prompt
from posttrain.losses.aggregate import Totals
from posttrain.losses.objective import objective
from posttrain.runs.in_memory import numbered
from posttrain.systems.policy_gradient.rlmt import AnswerOnly, thinking
from tests.rewards.test_pairwise import group


def test_the_thought_is_not_read() -> None:
    seen: list[str] = []

    def reward(prompts: list[Prompt], texts: list[str]) -> list[float]:
        seen.extend(texts)
        return [float(len(t)) for t in texts]

    made = group("<think>a very long thought</think>yes", "no thought", "<think>x</think> <think>y</think>\nok")
    AnswerOnly(reward).score([made])
    assert seen == ["yes", "no thought", "ok"]
    assert [r.reward for r in made.rollouts] == [3.0, 10.0, 2.0]


def test_an_unclosed_thought_is_judged_whole_or_as_null_and_a_failure_is_masked() -> None:
    texts = ("<think>a</think>yes", "<think>never closed", "<think>b</think>bad")

    def reward(prompts: list[Prompt], texts: list[str]) -> list[float]:
        return [math.nan if t == "bad" else float(len(t)) for t in texts]

    for strict, earned in ((False, 19.0), (True, 6.0)):  # all of "<think>never closed", or "[NULL]"
        made = group(*texts)
        report = AnswerOnly(reward, strict=strict).score([made])
        assert [r.reward for r in made.rollouts[:2]] == [3.0, earned]
        assert made.rollouts[2].failed and report.masked == 1
        assert [r.rewards["answered"] for r in made.rollouts] == [1.0, 0.0, 1.0]


def test_thought_and_answer_get_the_same_credit() -> None:
    # answers "a" and "b" after a thought of two letters earn 1 and 0: (R - .5) / (.7071 + 1e-4) = +-.7070; at the
    # reference the KL is flat, so that each of 3 tokens has the slope -A / (2 * 3)
    policy, method = TabularPolicy(1, 3, 3), thinking(n=2)
    (p,) = numbered(1).prompts
    made = Group(p, [policy.written(p, "cca"), policy.written(p, "cbb")])
    AnswerOnly(lambda prompts, texts: [float(t == "a") for t in texts], lambda text: text[2:]).score([made])
    rollouts, batch = assemble([made])
    leaf = policy.forward(rollouts)["logp_BT"].detach().requires_grad_()
    batch = batch.but(
        logp_BT=leaf, old_logp_BT=leaf.detach(), ref_logp_BT=leaf.detach(), entropy_BT=torch.zeros_like(leaf)
    )
    batch = batch.but(adv_BT=method.advantage(batch))
    loss, _ = objective(batch, Totals.of(batch), method.loss, method.aggregate, method.terms)
    loss.backward()
    credit = 0.5 / (0.5**0.5 + 1e-4)
    expected = torch.tensor([[-credit / 6] * 3, [credit / 6] * 3])
    torch.testing.assert_close(leaf.grad, expected, atol=1e-6, rtol=0)


def test_the_plan() -> None:
    with pytest.raises(UserError, match="2 answers"):
        find("rlmt(n=1)", "plan")()
    assert [p.name for p in find("rlmt()", "plan")().parts] == ["rlmt"]
    assert [p.name for p in find("rlmt(warmup=3)", "plan")().parts] == ["sft", "rlmt"]
