"""The tabular policy: what it says of an answer is what counting every answer says."""

from __future__ import annotations

import math

import pytest
import torch

from claims.worlds.exact import all_answers, answer_entropy, answer_kl, answer_logp, expected, tilted
from claims.worlds.tabular import TabularPolicy
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.runs.in_memory import numbered, repeated, row


def two_letters() -> TabularPolicy:
    """One prompt, answers of two letters out of a and b: P(a) = 3/4 first; then P(a | a) = 1/2, P(a | b) = 1/5."""
    policy = TabularPolicy(1, 2, 2)
    with torch.no_grad():
        policy.table[0, 0, 2] = torch.tensor([3.0, 1.0]).log()  # row 2: nothing before
        policy.table[0, 1, 0] = torch.tensor([1.0, 1.0]).log()
        policy.table[0, 1, 1] = torch.tensor([1.0, 4.0]).log()
    return policy


BY_HAND = {"aa": 3 / 8, "ab": 3 / 8, "ba": 1 / 20, "bb": 4 / 20}


def test_log_probabilities_by_hand() -> None:
    policy = two_letters()
    made = [policy.written(row(0), text) for text in BY_HAND]
    logp_B = policy.forward(made)["logp_BT"].sum(-1)
    assert logp_B.exp().tolist() == pytest.approx(list(BY_HAND.values()))
    assert answer_logp(policy)[0].exp().tolist() == pytest.approx(list(BY_HAND.values()))  # aa, ab, ba, bb in order


def test_entropy_by_hand() -> None:
    """H(first) = H(3/4); after b: H(1/5)."""
    out = two_letters().forward([two_letters().written(row(0), "bb")], ("logp_BT", "entropy_BT"))["entropy_BT"][0]
    h = [-(p * math.log(p) + (1 - p) * math.log(1 - p)) for p in (0.75, 0.2)]
    assert out.tolist() == pytest.approx(h)
    total = -sum(p * math.log(p) for p in BY_HAND.values())
    assert float(answer_entropy(two_letters())) == pytest.approx(total)


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("end", [None, 2])
def test_every_answer_once_and_their_probabilities_sum_to_1(memory: bool, end: int | None) -> None:
    """With an end among 3 letters: 1 + 2 answers end early, 2^2 x 3 have three letters (the last may be the end)."""
    policy = TabularPolicy(2, 3, 3, memory=memory, end=end).randomise(1.0, "sum", memory)
    tokens_NT, real_NT = all_answers(policy)
    assert len(tokens_NT) == (27 if end is None else 15)
    assert answer_logp(policy).exp().sum(-1).tolist() == pytest.approx([1.0, 1.0])
    made = [[policy.written(row(p), policy.decode(t[keep])) for t, keep in zip(tokens_NT, real_NT)] for p in (0, 1)]
    logp_PN = torch.stack([policy.forward(rollouts)["logp_BT"].sum(-1) for rollouts in made]).detach()
    assert torch.allclose(logp_PN, answer_logp(policy), atol=1e-5)


def test_kl_by_hand_and_by_states() -> None:
    """Against the uniform policy KL = log 4 - H; and the chain rule over states gives the same as all answers."""
    policy, uniform = two_letters(), TabularPolicy(1, 2, 2)
    assert float(answer_kl(policy, uniform)) == pytest.approx(math.log(4) - float(answer_entropy(policy)))
    assert float(answer_kl(policy, policy)) == pytest.approx(0.0, abs=1e-6)
    at = [p * (math.log(p) - math.log(0.5)) + (1 - p) * (math.log(1 - p) - math.log(0.5)) for p in (0.75, 0.5, 0.2)]
    assert float(answer_kl(policy, uniform)) == pytest.approx(at[0] + 0.75 * at[1] + 0.25 * at[2])


def test_expected_worth_and_the_best_policy() -> None:
    """FunctionScorer 1 for aa only: E = 3/8. The tilt by beta = 1/log 3 triples its odds: 9/8 to 5/8, so 9/14."""
    worth_PN = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    assert float(expected(two_letters(), worth_PN)) == pytest.approx(3 / 8)
    best_PN = tilted(answer_logp(two_letters()), worth_PN, 1 / math.log(3))
    assert float(best_PN[0, 0].exp()) == pytest.approx(9 / 14)


def test_samples_come_as_often_as_they_should() -> None:
    made = [r for g in two_letters().sample(repeated(1, 500).prompts, 8, Sampling(), seed=3) for r in g]
    for text, p in BY_HAND.items():
        share = sum(r.text == text for r in made) / len(made)
        assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 4000))


def test_the_sampler_is_the_trainer_and_knows_no_batch() -> None:
    policy = TabularPolicy(3, 4, 5, end=0).randomise(1.0, "same")
    prompts = numbered(3).prompts
    made = policy.sample(prompts, 6, Sampling(), seed=1, step=2)
    flat = [r for g in made for r in g]
    logp_BT = policy.forward(flat)["logp_BT"].detach()
    for r, logp_T in zip(flat, logp_BT, strict=True):
        assert torch.allclose(logp_T[: len(r)], r.logp_T, atol=1e-6)
        assert (not r.truncated) == (0 in r.actions.tolist()) and (r.actions[:-1] != 0).all()
    alone = policy.sample(prompts[1:2], 6, Sampling(), seed=1, step=2)[0]
    assert [r.text for r in alone] == [r.text for r in made[1]]
    assert len({len(r) for r in flat}) > 1  # answers of several lengths were looked at


def test_critic_reward_table_and_copies() -> None:
    policy = two_letters().with_critic()
    with torch.no_grad():
        policy.critic[0, 0, 2], policy.critic[0, 1, 1] = 0.5, -1.0
    made = [policy.written(row(0), "ba")]
    assert policy.forward(made, ("value_BT",))["value_BT"].tolist() == [[0.5, -1.0]]  # before b, and after it
    judge = policy.as_reward_model()
    with torch.no_grad():
        judge.score[0, 0, 2, 1], judge.score[0, 1, 1, 0], judge.score[0, 1, 0, 0] = 2.0, 3.0, 50.0
    assert judge.forward(made, ("score_B",))["score_B"].tolist() == [5.0]
    assert judge.critic is None and policy.score is None
    copy = policy.clone()
    with torch.no_grad():
        copy.table += 1.0
    assert not torch.equal(copy.table, policy.table)


def test_shared_features_let_prompts_teach_one_another() -> None:
    """Two prompts with the one feature they share: a step on the first moves the second by as much."""
    policy = TabularPolicy(2, 1, 2, features_PF=torch.ones(2, 1))
    policy.forward([policy.written(row(0), "a")])["logp_BT"].sum().backward()
    with torch.no_grad():
        policy.table += policy.table.grad
    p_PN = answer_logp(policy).exp()
    assert torch.equal(p_PN[0], p_PN[1]) and p_PN[0, 0] > 0.6


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="at most 64 letters"):
        TabularPolicy(1, 1, 65)
    with pytest.raises(UserError, match="'abc' is no answer of 1 to 2 letters out of 'ab'"):
        two_letters().written(row(0), "abc")
    with pytest.raises(UserError, match="no critic"):
        two_letters().forward([two_letters().written(row(0), "ab")], ("value_BT",))
    with pytest.raises(UserError, match="too many"):
        all_answers(TabularPolicy(1, 20, 4))
