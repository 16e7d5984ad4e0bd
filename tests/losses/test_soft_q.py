"""Soft Q-learning by hand, and what RLPrompt feeds it: z-scores, the piecewise reward, the prompt writer."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt
from posttrain.policies.prompt_writer import PromptWriter
from posttrain.systems.policy_gradient.rlprompt import (
    Prompted,
    gap,
    label_reader,
    piecewise,
    soft_q,
    soft_q_slow,
    with_prompt,
    zscore,
)
from tests.advantages.test_advantages import outcomes
from tests.losses.table import batch_of, inside, slopes, value_and_gradient
from tests.models.tiny import policy as tiny_policy


def close(got, expected, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got.double(), torch.tensor(expected).double(), rtol=0, atol=atol)


# one answer of two actions, the reward 3 on the last; gamma = 1
#   A = (-1, -2)   V = (4, 5)   target: A' = (-.5, -1)   V' = (2, 1)
# one step     t = 0: Q - r - V'_1 = (-1 + 4) - 0 - 1 = 2          t = 1: (-2 + 5) - 3 - 0 = 0
# reversed     t = 0: Q' - r - V_1 = (-.5 + 2) - 5 = -3.5          t = 1: (-1 + 1) - 3 = -3
# whole path   G = (3 + 1 + 2, 3 + 2) = (6, 5); G - V' = (4, 4)
# reversed     G' = (3 + .5 + 1, 3 + 1) = (4.5, 4); G' - V = (.5, -1)
# L = sum of squares / 8: t = 0: (4 + 12.25 + 16 + .25) / 8 = 4.0625;  t = 1: (0 + 9 + 16 + 1) / 8 = 3.25
A, V, A_OLD, V_OLD, REWARD = [[-1.0, -2.0]], [[4.0, 5.0]], [[-0.5, -1.0]], [[2.0, 1.0]], [[0.0, 3.0]]


def example(**but) -> Batch:
    return batch_of(A, value=V, old_logp=A_OLD, old_value=V_OLD, reward=REWARD).but(**but)


@pytest.mark.derived("policy_loss/soft-q")
def test_values_and_gradients_by_hand() -> None:
    # by A_0: one step 2 / 4, path -(G_0 - V'_0) / 4 = -4 / 4                        -> -.5
    # by A_1: one step 0, paths -(4 + 4) / 4 (both begin before it)                  -> -2
    # by V_0: one step 2 / 4, reversed path -(.5) / 4                                -> .375
    # by V_1: one step 0, reversed one step of t = 0: 3.5 / 4, reversed path 1 / 4   -> 1.125
    batch = example()
    loss_BT, by_logp = value_and_gradient(soft_q, batch)
    _, by_value = value_and_gradient(soft_q, batch, by="value_BT")
    torch.testing.assert_close(inside(loss_BT, batch), [[4.0625, 3.25]], rtol=0, atol=1e-12)
    torch.testing.assert_close(inside(by_logp, batch), [[-0.5, -2.0]], rtol=0, atol=1e-12)
    torch.testing.assert_close(inside(by_value, batch), [[0.375, 1.125]], rtol=0, atol=1e-12)


def plain(A, V, A_old, V_old, r, gamma: float) -> float:
    """The four squares in plain floats, one row after another, for rows without environment tokens."""
    total = 0.0
    for a, v, ao, vo, rs in zip(A, V, A_old, V_old, r, strict=True):
        T = len(a)
        for t in range(T):
            after, after_old = (v[t + 1], vo[t + 1]) if t + 1 < T else (0.0, 0.0)
            path = sum(gamma ** (k - t) * (rs[k] - a[k]) for k in range(t, T))
            path_old = sum(gamma ** (k - t) * (rs[k] - ao[k]) for k in range(t, T))
            gaps = (a[t] + v[t] - rs[t] - gamma * after_old, ao[t] + vo[t] - rs[t] - gamma * after)
            gaps += (path - vo[t], path_old - v[t])
            total += sum(g * g for g in gaps) / 8
    return total


@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_against_plain_floats(gamma: float) -> None:
    logp, value = [[-0.3, -2.0, -1.1], [-1.0]], [[1.0, 2.0, -1.0], [0.4]]
    old, old_value, reward = [[-0.9, -1.1, -1.0], [-3.2]], [[0.5, 1.5, 0.2], [-0.6]], [[0.0, 0.5, 2.0], [-1.0]]
    batch = batch_of(logp, value=value, old_logp=old, old_value=old_value)
    batch = batch.but(reward_BT=torch.tensor([[0.0, 0.5, 2.0], [-1.0, 0.0, 0.0]], dtype=torch.float64))
    _, by_logp = value_and_gradient(soft_q, batch, gamma=gamma)
    _, by_value = value_and_gradient(soft_q, batch, by="value_BT", gamma=gamma)
    got = inside(by_logp, batch), inside(by_value, batch)
    expected = slopes(lambda x: plain(x, value, old, old_value, reward, gamma), logp)
    torch.testing.assert_close(got[0], expected, rtol=0, atol=1e-8)
    expected = slopes(lambda x: plain(logp, x, old, old_value, reward, gamma), value)
    torch.testing.assert_close(got[1], expected, rtol=0, atol=1e-8)


def test_a_consistent_table_has_no_loss_and_is_the_softmax_of_the_rewards() -> None:
    # one action, Q = r: V = log sum exp r, A = r - V, so Q - r = 0 and (r - A) - V = 0 for every action
    r = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    A_31, V_31 = (r - r.logsumexp(0)).unsqueeze(-1), r.logsumexp(0).expand(3, 1)
    batch = Batch(
        logp_BT=A_31,
        mask_BT=torch.ones(3, 1).double(),
        old_logp_BT=A_31,
        value_BT=V_31,
        old_value_BT=V_31,
        reward_BT=r.view(3, 1),
    )
    torch.testing.assert_close(soft_q(batch), torch.zeros(3, 1).double(), rtol=0, atol=1e-12)
    assert float(soft_q(batch.but(reward_BT=-batch["reward_BT"])).sum()) > 1  # the sign of the reward matters


def test_an_observation_between_two_actions_changes_nothing_but_its_reward_counts() -> None:
    # action, observation with reward 1, action: as two actions with the rewards 1 and 3
    mask = torch.tensor([[1.0, 0.0, 1.0]]).double()
    wide = {"logp_BT": [[-1.0, 9.0, -2.0]], "value_BT": [[4.0, 9.0, 5.0]], "reward_BT": [[0.0, 1.0, 3.0]]}
    wide |= {"old_logp_BT": [[-0.5, 9.0, -1.0]], "old_value_BT": [[2.0, 9.0, 1.0]]}
    got = soft_q(Batch(mask_BT=mask, **{k: torch.tensor(v).double() for k, v in wide.items()}))
    expected = soft_q(example(reward_BT=torch.tensor([[1.0, 3.0]]).double()))
    torch.testing.assert_close(got[:, [0, 2]], expected)
    assert float(got[0, 1]) == 0


# ---- rewards


@pytest.mark.derived("shaping/zscore")
def test_zscore_by_hand() -> None:
    # input 0: rewards 1, 3 -> mean 2, unbiased std sqrt(2): -1/sqrt(2), 1/sqrt(2); input 1 the same though 100 times larger
    batch = outcomes([1.0, 3.0, 100.0, 300.0], [0, 0, 1, 1])
    half = 1 / math.sqrt(2)
    close(zscore(batch, eps=0.0).sum(-1), [-half, half, -half, half])
    close(zscore(batch, scale=5.0, eps=0.0).sum(-1), [-5 * half, 5 * half, -5 * half, 5 * half])


def test_the_piecewise_reward_by_hand() -> None:
    # p = (.5, .3, .2): label 0 -> gap .2, right, 200 * .2 = 40; label 1 -> .3 - .5 = -.2, 180 * -.2 = -36
    p_BK = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])
    gap_B = gap(p_BK, torch.tensor([0, 1]))
    close(gap_B, [0.2, -0.2])
    close(piecewise(gap_B), [40.0, -36.0], 1e-4)


def test_the_scorer_asks_the_frozen_model_with_the_prompt_behind_the_input() -> None:
    seen = []

    def read(prompts, texts):
        seen.extend(with_prompt(p, z).last for p, z in zip(prompts, texts, strict=True))
        return torch.tensor([[0.9, 0.1], [0.2, 0.8]])

    question = Prompt.text("q", "Is it so?", "yes")
    writer = PromptWriter.of(tiny_policy())
    made = writer.sample([question], 2, Sampling(max_tokens=2))
    made[0][0].turns[-1].text, made[0][1].turns[-1].text = " Say ", ""
    Prompted(read, ["yes", "no"]).score([Group(question, made[0])])
    assert seen == ["Is it so? Say", "Is it so?"]
    close(torch.tensor([r.reward for r in made[0]]), [200 * 0.8, 180 * -0.6], 1e-4)
    assert [r.rewards["right"] for r in made[0]] == [1.0, 0.0]
    with pytest.raises(UserError, match="at least two labels"):
        Prompted(read, ["yes"])


def test_label_probabilities_are_those_of_the_labels_as_answers() -> None:
    policy = tiny_policy()
    question = Prompt.text("q", "1 or 2?", "1")
    p_1K = label_reader(policy, ["1", "2"])([question], ["so"])
    asked = with_prompt(question, "so")
    with torch.no_grad():
        logp = [float(policy.forward([policy.written(asked, k)])["logp_BT"].sum()) for k in ("1", "2")]
    close(p_1K[0], torch.tensor(logp).softmax(0).tolist(), 1e-5)


# ---- the writer


def test_a_writer_on_a_model_in_half_precision() -> None:
    policy = tiny_policy()
    policy.model.to(torch.bfloat16)
    writer = PromptWriter.of(policy)
    rollouts = writer.sample([Prompt.text("a", "one")], 2, Sampling(max_tokens=3))[0]
    out = writer.forward(rollouts, {"logp_BT", "value_BT"})
    assert all(torch.isfinite(x).all() for x in out.values()) and len(rollouts[0].text) > 0


def test_only_the_mlp_learns_and_the_value_is_the_log_sum_of_its_logits() -> None:
    writer = PromptWriter.of(tiny_policy())
    assert {n.split(".")[1] for n, p in writer.named_parameters() if p.requires_grad} == {"mlp"}
    a, b = Prompt.text("a", "one"), Prompt.text("b", "another")
    assert torch.equal(writer.encode(a), writer.encode(b))  # the input is not seen
    rollouts = [r for some in writer.sample([a, b], 2, Sampling(max_tokens=3)) for r in some]
    out = writer.forward(rollouts, {"logp_BT", "value_BT"})
    for row, r in enumerate(rollouts):
        tokens = torch.cat([r.context, r.actions]).unsqueeze(0)
        logits_TV = writer.model.logits(writer.model.hidden(tokens))[0, len(r.context) - 1 : -1]
        close(out["value_BT"][row, : len(r)], logits_TV.logsumexp(-1).tolist(), 1e-4)
        close(out["logp_BT"][row, : len(r)], r.logp_T.tolist(), 1e-4)


@pytest.mark.derived("policy_loss/soft-q-slow")
def test_the_slow_target_is_the_reference() -> None:
    """One action: reward 1, Q = logp + V = -1 + 2 = 1; the reference has V' = 3 and logp' = -2, so Q' = 1. Four gaps: Q - r = 0, Q' - r = 0,
    (r - logp) - V' = 2 - 3 = -1, (r - logp') - V = 3 - 2 = 1: L = (0 + 0 + 1 + 1) / 8."""
    one = torch.ones(1, 1)
    batch = Batch(
        logp_BT=-one, mask_BT=one, value_BT=2 * one, reward_BT=one, ref_logp_BT=-2 * one, ref_value_BT=3 * one
    )
    close(soft_q_slow(batch), [[0.25]])
    same = batch.but(old_logp_BT=-2 * one, old_value_BT=3 * one)
    close(soft_q(same), [[0.25]])
