"""Every loss and advantage makes a tabular policy better; every term does what it is for."""

from __future__ import annotations

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.registry import find
from posttrain.losses.aggregate import Totals, sequence_mean, token_mean
from posttrain.losses.objective import objective
from tests.package import package_parts
from tests.scan_evidence import declared
from tests.tabular import LENGTH_P, RIGHT_PT, P, Tabular, scored, train

CHANCE = 1 / 6


def credited(advantage: str):
    part = find(advantage, "advantage")

    def prepare(batch: Batch) -> Batch:
        out = part(batch)
        return batch.but(adv_BT=out[0] if isinstance(out, tuple) else out)

    return prepare


def minimise(loss: str, *stages: str, terms=()):
    part = find(loss, *stages)
    return lambda batch: objective(batch, Totals.of(batch), part, token_mean, terms)[0]


WIDER = {"gspo": "gspo(low=0.2, high=0.28)"}  # the paper's 4e-4 suits answers of thousands of tokens, not of three


# those that read a reference need the policy as it was (test_policy_relatives), not the uniform one of here; those that read
# a value need logits that are worths (test_soft_q)
ALONE = [
    p for p in package_parts("policy_loss") if p.name != "raft" and not {"ref_logp_BT", "value_BT"} & set(p.card.reads)
]


@pytest.mark.learns(
    "policy_loss/cispo",
    "policy_loss/dapo",
    "policy_loss/dppo",
    "policy_loss/dual-clip",
    "policy_loss/gmpo",
    "policy_loss/gspo",
    "policy_loss/plain-ratio",
    "policy_loss/kl-cov",
    "policy_loss/ppo",
    "policy_loss/reinforce",
    "policy_loss/sapo",
    "policy_loss/topr",
)
@pytest.mark.parametrize("loss", [WIDER.get(p.name, p.name) for p in ALONE])
def test_policy_losses(loss: str) -> None:
    policy = train(credited("grpo"), minimise(loss, "policy_loss"), steps=25, lr=4.0, epochs=4)
    assert policy.expected_reward() > 0.6


@pytest.mark.learns(
    "advantage/grpo",
    "advantage/dr-grpo",
    "advantage/rloo",
    "advantage/reinforce-pp",
    "advantage/gae",
    "advantage/outcome",
)
@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo", "reinforce_pp", "gae", "outcome"])
def test_advantages(advantage: str) -> None:
    lr = 4.0 if advantage in ("grpo", "reinforce_pp", "gae") else 12.0  # the others are not in units of their spread
    policy = train(credited(advantage), minimise("ppo", "policy_loss"), steps=25, lr=lr)
    assert policy.expected_reward() > 0.5


def test_what_is_declared_is_what_was_run() -> None:
    here = "tests/losses/test_learns.py::test_policy_losses"
    said = {key for key, marks in declared().items() if here in marks["learns"]}
    assert said == {f"policy_loss/{p.name}" for p in ALONE}


def test_the_wrong_sign_would_be_seen() -> None:
    def blamed(batch: Batch) -> Batch:
        batch = credited("grpo")(batch)
        return batch.but(adv_BT=-batch["adv_BT"])

    assert train(blamed, minimise("ppo", "policy_loss"), steps=10, lr=4.0).expected_reward() < CHANCE


def best_rows(batch: Batch) -> Batch:
    """RAFT's choice on tensors: only each prompt's best answer stays live."""
    keep_B = torch.zeros(len(batch.mask_BT))
    for prompt in range(P):
        rows = (batch["group_B"] == prompt).nonzero().flatten()
        keep_B[rows[batch.returns_B[rows].argmax()]] = 1.0
    return batch.but(mask_BT=batch.mask_BT * keep_B.unsqueeze(-1))


@pytest.mark.learns("policy_loss/raft")
def test_raft() -> None:
    assert train(best_rows, minimise("raft", "policy_loss"), steps=25, lr=4.0).expected_reward() > 0.6


def best_and_worst(batch: Batch) -> Batch:
    """Each prompt's best and worst answer as a pair, where they differ."""
    pairs = []
    for prompt in range(P):
        rows = (batch["group_B"] == prompt).nonzero().flatten()
        best, worst = rows[batch.returns_B[rows].argmax()], rows[batch.returns_B[rows].argmin()]
        if batch.returns_B[best] > batch.returns_B[worst]:
            pairs.append(torch.stack([best, worst]))
    pairs_P2 = torch.stack(pairs) if pairs else torch.zeros(0, 2, dtype=torch.long)
    return batch.but(chosen_P=pairs_P2[:, 0], rejected_P=pairs_P2[:, 1])


@pytest.mark.learns("preference_loss/dpo", "preference_loss/ipo", "preference_loss/hinge", "preference_loss/robust-dpo")
@pytest.mark.parametrize(
    ("loss", "lr"),
    [
        ("dpo(beta=0.5)", 3.0),
        ("dpo(beta=0.5, label_smoothing=0.1)", 3.0),
        ("dpo(beta=0.5, length_normalised=True)", 6.0),
        ("ipo(beta=0.1)", 0.1),
        ("hinge(beta=0.3)", 3.0),
        ("robust_dpo(beta=0.5)", 3.0),
    ],
)
def test_preference_losses(loss: str, lr: float) -> None:
    policy = train(best_and_worst, minimise(loss, "preference_loss"), steps=30, lr=lr)
    assert policy.expected_reward() > 0.5


@pytest.mark.learns("supervised_loss/sft")
def test_sft_imitates() -> None:
    policy = Tabular()
    mask_BT = (torch.arange(3) < LENGTH_P.unsqueeze(-1)).float()
    for _ in range(40):
        batch = Batch(logp_BT=policy.logp(torch.arange(P), RIGHT_PT), mask_BT=mask_BT)
        policy.step(minimise("sft", "supervised_loss")(batch), lr=3.0)
    assert policy.expected_reward() > 0.9


@pytest.mark.learns("reward_model_loss/bradley-terry")
def test_bradley_terry_orders_answers_and_centering_pins_the_level() -> None:
    # 6 answers with hidden qualities 0 .. 5; all pairs; the level starts at 10 and only centering brings it down
    chosen_P, rejected_P = torch.tensor([(i, j) for i in range(6) for j in range(i)]).T
    levels = []
    for centering in (0.0, 0.02):
        score_B = torch.full((6,), 10.0)
        for _ in range(60):
            leaf = score_B.clone().requires_grad_()
            batch = Batch(
                logp_BT=torch.zeros(6, 1),
                mask_BT=torch.ones(6, 1),
                score_B=leaf,
                chosen_P=chosen_P,
                rejected_P=rejected_P,
            )
            part = find("bradley_terry", "reward_model_loss").but(centering=centering)
            loss = objective(batch, Totals.of(batch), part, token_mean)[0]
            score_B = score_B - 2.0 * torch.autograd.grad(loss, leaf)[0]
        assert score_B.argsort().tolist() == list(range(6))
        levels.append(float(score_B.mean()))
    assert levels[0] == pytest.approx(10.0, abs=1e-3)
    assert abs(levels[1]) < 1.0


@pytest.mark.learns("term/value-loss")
def test_value_loss_learns_the_mean_return() -> None:
    # one state, returns 0 and 1 with mean .5; the critic starts at 3 and, clipped, moves at most .2 past its old guess
    value = 3.0
    for _ in range(40):
        leaf = torch.full((2, 1), value, requires_grad=True)
        old, returns = torch.full((2, 1), value), torch.tensor([[0.0], [1.0]])
        batch = Batch(
            logp_BT=torch.zeros(2, 1), mask_BT=torch.ones(2, 1), value_BT=leaf, old_value_BT=old, return_BT=returns
        )
        loss = token_mean(find("value_loss", "term")(batch), batch, Totals.of(batch))
        value -= 0.3 * float(torch.autograd.grad(loss, leaf)[0].sum())
    assert value == pytest.approx(0.5, abs=0.01)


@pytest.mark.learns("term/kl")
@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_kl_brings_the_policy_back(kind: str) -> None:
    # a policy far from the uniform reference, no credit: only the term pulls
    policy = Tabular()
    with torch.no_grad():
        policy.logits_PTV[..., 0] = 2.0
    term = find("kl", "term").but(kind=kind, coef=1.0)
    for _ in range(40):
        batch = scored(policy, 16)[2]
        batch = batch.but(adv_BT=torch.zeros_like(batch.mask_BT))
        loss, _ = objective(batch, Totals.of(batch), find("ppo"), sequence_mean, [term])
        policy.step(loss, lr=4.0)
    assert policy.logits_PTV[0, 0].softmax(-1).max() < 0.35  # it was exp(2) / (exp(2) + 5) = .6


@pytest.mark.learns("term/entropy")
def test_the_entropy_bonus_keeps_the_policy_undecided() -> None:
    entropies = []
    for terms in ([], [find("entropy", "term").but(coef=0.3)]):
        policy = train(credited("dr_grpo"), minimise("ppo", "policy_loss", terms=terms), steps=20, lr=8.0)
        entropies.append(policy.entropy(torch.arange(P))[:, :2].mean().item())
    assert entropies[1] > entropies[0] + 0.2
