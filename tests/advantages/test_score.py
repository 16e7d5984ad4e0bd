"""SCoRe's payments and credit, worked out by hand.

The claim to come: score-self-correct against the same two attempts with alpha = 0 and no first stage (multi-turn RL), and against GRPO on
single answers, equal answers and updates; gain = accuracy at attempt 2 less that at attempt 1; expected: SCoRe's gain the largest, its first
attempt within 2 points of the base after stage I.
"""

from __future__ import annotations

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.types import Prompt, Rollout
from posttrain.losses.policy.reinforce import reinforce
from posttrain.systems.agents_multiturn.score_self_correct import (
    TwoAttempts,
    corrections,
    improvement,
    kl_by_attempt,
    own_turn,
)


def two_rows() -> Batch:
    """Row 0: two attempts of 2 tokens with an observed token between; r1 = 1, r2 = 0. Row 1: r1 = 0, r2 = 1; row 2 was cut in its first."""
    mask = torch.tensor([[1.0, 1, 0, 1, 1], [1, 1, 0, 1, 0], [1, 1, 1, 0, 0]])
    turn = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    reward = torch.tensor([[0, 1.0, 0, 0, 0], [0, 0, 0, 1.0, 0], [0, 0, 1.0, 0, 0]])
    return Batch(mask_BT=mask, turn_BT=turn, reward_BT=reward, group_B=torch.zeros(3).long())


@pytest.mark.derived("shaping/improvement")
def test_improvement() -> None:
    """alpha = 10: row 0's second attempt gets 0 + 10 (0 - 1) = -10 on its last token, row 1's 1 + 10 (1 - 0) = 11; row 2 has none."""
    batch = two_rows()
    want = torch.tensor([[0, 1.0, 0, 0, -10], [0, 0, 0, 11, 0], [0, 0, 1, 0, 0]])
    torch.testing.assert_close(improvement(batch), want)
    stage_one = torch.tensor([[0.0, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]])
    torch.testing.assert_close(improvement(batch, alpha=0.0, first=0.0), stage_one)
    torch.testing.assert_close(improvement(batch, alpha=0.0), batch["reward_BT"])


@pytest.mark.derived("shaping/kl-by-attempt")
def test_kl_by_attempt() -> None:
    """old - ref = 0.5 at every token, prices 0.2 and 0.04: 0.1 off in the first attempt, 0.02 in the second, nothing where it was observed."""
    batch = two_rows().but(old_logp_BT=torch.full((3, 5), -1.0), ref_logp_BT=torch.full((3, 5), -1.5))
    paid = batch["reward_BT"] - kl_by_attempt(batch, first=0.2, second=0.04)
    want = torch.tensor([[0.1, 0.1, 0, 0.02, 0.02], [0.1, 0.1, 0, 0.02, 0], [0.1, 0.1, 0.1, 0, 0]])
    torch.testing.assert_close(paid, want)


@pytest.mark.derived("advantage/own-turn")
def test_own_turn() -> None:
    """First attempts earned 1, 0, 1: 1 - 1/2, 0 - 1, 1 - 1/2. Second ones -10 and 11 (two answers have one): -21 and 21.

    With REINFORCE the gradient with respect to logp is -A at own tokens, 0 elsewhere.
    """
    batch = two_rows()
    adv = own_turn(batch.but(reward_BT=improvement(batch)))
    want = torch.tensor([[0.5, 0.5, 0, -21, -21], [-1, -1, 0, 21, 0], [0.5, 0.5, 0.5, 0, 0]])
    torch.testing.assert_close(adv, want)
    logp = torch.zeros(3, 5, requires_grad=True)
    (reinforce(batch.but(logp_BT=logp, adv_BT=adv, old_logp_BT=torch.zeros(3, 5))) * batch.mask_BT).sum().backward()
    torch.testing.assert_close(logp.grad, -want)
    alone = batch.rows(torch.tensor([0])).but(reward_BT=torch.ones(1, 5))
    torch.testing.assert_close(own_turn(alone), 2 * alone.mask_BT)  # nobody to compare with: what was earned


def test_corrections_and_the_episode() -> None:
    class Task(TwoAttempts):
        def __init__(self) -> None:
            self.by, self.again = (lambda prompt, text: float(text == prompt.answer)), "again?"

    prompt = Prompt.text("p", "q", "4")
    made = []
    for said in (["3", "4"], ["4", "3"], ["4", "4"], ["3"]):
        episode = Task().open(prompt, 0)
        rollout = Rollout.single(prompt, torch.zeros(1).long(), torch.zeros(1).long(), torch.zeros(1), text=said[0])
        one = rollout.turns[0]
        turns = []
        for text in said:
            turn = type(one)(one.observation, one.actions, one.logp_T, one.mask_T, one.version_T, text)
            step = episode.step(turn)
            turn.reward = step.reward
            turns.append(turn)
            assert (step.messages is None) == (len(turns) == 2)
        rollout.turns = turns
        made.append(rollout)
    found = corrections(made)
    assert found == {"attempt_1": 0.5, "attempt_2": 0.5, "gain": 0.0, "corrected": 0.25, "spoiled": 0.25}
