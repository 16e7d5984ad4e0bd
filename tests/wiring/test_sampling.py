"""What sets the sampling methods apart, seen in the registered methods as they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from tests.wiring.formulas import clipped, k3, ratio
from tests.wiring.spies import ROWS, traced


def even(prompt: Any, text: str) -> float:
    """Answers to half of the prompts are all worth the same."""
    return float(len(text)) if "0+" in prompt.last or "2+" in prompt.last or "4+" in prompt.last else 1.0


def length(prompt: Any, text: str) -> float:
    return float(len(text))


def test_dapo_refills_pays_for_length_and_takes_its_updates() -> None:
    trace = traced("dapo", reward=even, prompts=4, steps=2, num_generations=4)
    for step in (0, 1):
        rounds = [s for s in trace.steps if s.step == step]
        asked = [g.prompt.id for s in rounds for g in s.groups]
        assert len(rounds) > 1 and len(set(asked)) == len(asked)  # new prompts in every round
    for made in trace.updates:
        assert len(set(made.batch["group_B"].tolist())) == 4  # a whole batch, each group with a spread
        assert made.optimiser_steps == 4
        assert not made.reference
    made = trace.updates[0]
    first = made.passes[0]  # on policy: every token of the minibatch weighs alike
    own_BT = torch.zeros_like(made.batch["mask_BT"])
    own_BT[first.rows] = made.batch["mask_BT"][first.rows]
    torch.testing.assert_close(first.pull["logp_BT"], made.batch["adv_BT"] * own_BT / own_BT.sum())
    kept = [g for s in trace.steps if s.step == 0 for g in s.kept][:4]
    lengths, rewards = made.batch["mask_BT"].sum(-1), torch.tensor([r.reward for g in kept for r in g.rollouts])
    due = ((6 - 1.2 - lengths) / 1.2).clamp(-1, 0)  # max_tokens 6, a fifth of it
    torch.testing.assert_close(made.batch["reward_BT"].sum(-1), rewards + due)
    assert float(due.min()) == pytest.approx(-1.0) and due.max() == 0
    assert find_method("dapo").rollout.defaults()["n"] == 16
    for name in ("dapo", "cispo", "treepo"):  # of 16 prompts an update sees 4: of one alone the embedded model unlearns
        assert find_method(name).minibatches == 4


def test_prorl_has_its_temperature_its_kl_and_renews_when_scores_stall() -> None:
    trace = traced("prorl", reward=length, prompts=2, steps=3, num_generations=4, eval_every=1, rows=ROWS)
    assert {d.how.temperature for d in trace.samples if d.phase == "train"} == {1.2}
    assert trace.phases[0].loop.learner.reference.needs_eval
    first, second, third = trace.updates[:3]
    assert (
        first.reference == second.reference == first.before
    )  # two scores of 0: the second is the first without a rise
    assert first.passes[0].batch["ref_logp_BT"].abs().sum() > 0 and not any(s.kept == [] for s in trace.steps)
    assert third.reference == first.before
    later = traced("prorl(reference='stalled(patience=1)')", reward=length, steps=3, num_generations=4, eval_every=1)
    starts = [u.before for u in later.updates]
    assert later.updates[2].reference == starts[2] != starts[0]  # the policy after two steps, where the score stalled
    assert not later.phases[0].loop.learner.optimiser.state, "the last score stalled too: the optimiser begins anew"
    with pytest.raises(UserError, match="--eval-every"):
        traced("prorl", reward=length, eval_every=0)


@pytest.mark.parametrize(("name", "high", "coef"), [("prorl", 0.4, 1e-3), ("dapo", 0.28, 0.0)])
def test_a_token_grows_by_as_much_as_the_paper_lets_it(name: str, high: float, coef: float) -> None:
    trace = traced(name, reward=length, prompts=4, steps=1, num_generations=8, eval_every=1, lr=0.03)
    (made,), held, free = trace.updates, 0, 0
    for p in made.passes:
        own_BT, A, r = p.batch["mask_BT"], p.batch["adv_BT"], ratio(p)
        due = (clipped(r, A, 0.2, high) + (k3(coef, p) if coef else 0)) * own_BT / own_BT.sum()
        torch.testing.assert_close(p.pull["logp_BT"], due, rtol=1e-4, atol=1e-7)
        held += int(((A > 0) & (r > 1 + high) & (own_BT > 0)).sum())
        free += int(((A > 0) & (r > high + 0.88) & (r < 1 + high) & (own_BT > 0)).sum())
    assert held and free, "some grow beyond it, some only beyond the limit of DAPO, or of PPO"


def test_treepo_samples_trees_and_counts_unfinished_answers() -> None:
    trace = traced("treepo", reward=length, steps=1, sampling={"max_tokens": 28})
    for g in trace.steps[0].groups:
        assert len(g.rollouts) == 16 and all(r.branch is not None and r.branch.at % 2 == 0 for r in g.rollouts[1:])
    made = trace.updates[0]
    assert bool((made.batch["mask_BT"].sum(-1) > 0).all())  # nobody is masked, however long
    (shaped,) = trace.phases[0].loop.shaping
    assert shaped.defaults() | {"longest": 28, "cache": 1 / 14, "price": 1.0} == shaped.defaults()
    own = made.batch["adv_BT"][made.batch["mask_BT"] > 0]
    assert float(own.mean()) == pytest.approx(0.0, abs=1e-4) and float(own.std()) == pytest.approx(1.0, abs=0.05)


def test_dr_grpo_divides_by_the_runs_limit() -> None:
    made = traced("dr-grpo", reward=length, steps=1, sampling={"max_tokens": 5}).updates[0]
    (only,) = made.passes
    credit = made.batch["adv_BT"] * made.batch["mask_BT"] / (len(made.rows) * 5)
    torch.testing.assert_close(only.pull["logp_BT"], credit)


def test_limits_and_modes_are_the_authors() -> None:
    assert find_method("luspo").loss.defaults() | {"low": 2e-3, "high": 2.5e-3} == find_method("luspo").loss.defaults()
    assert find_method("cispo").loss.defaults()["high"] == 4.0 and find_method("cispo").rounds == 10
    decoupled = find_method("decoupled-ppo")
    decay = decoupled.reference.defaults()[
        "decay"
    ]  # its average is as old as the paper's: decay / (1 - decay) = 8 updates
    assert decay / (1 - decay) * decoupled.minibatches == pytest.approx(8)
    gigpo = find_method("gigpo")
    assert gigpo.advantage.defaults()["std"] and gigpo.advantage.defaults()["gamma"] == 0.95
    assert gigpo.terms[0].defaults()["coef"] == 0.01


def test_cispo_bounds_the_weight_of_a_token_and_silences_none() -> None:
    trace = traced("cispo", reward=even, prompts=4, steps=2, num_generations=4, lr=0.03)
    passes = [p for made in trace.updates for p in made.passes]
    assert len(passes) == 2 * 4 and not any(made.reference for made in trace.updates)
    for p in passes:  # pull = min(r, 5) A / tokens
        own_BT, A = p.batch["mask_BT"], p.batch["adv_BT"]
        torch.testing.assert_close(p.pull["logp_BT"], ratio(p).clamp(max=5) * A * own_BT / own_BT.sum())
    assert any(((p.batch["adv_BT"] > 0) & (ratio(p) > 1.28)).any() for p in passes), "DAPO would silence these"


def test_luspo_weighs_an_answer_by_its_length() -> None:
    made = traced("luspo", reward=length, steps=1, prompts=4).updates[0]
    first = made.passes[0]
    own_BT = torch.zeros_like(made.batch["mask_BT"])
    own_BT[first.rows] = made.batch["mask_BT"][first.rows]
    torch.testing.assert_close(first.pull["logp_BT"], made.batch["adv_BT"] * own_BT / len(first.rows))
    assert made.optimiser_steps == 4


def test_gigpo_compares_steps_from_the_same_state() -> None:
    trace = traced("gigpo", reward=length, steps=1, says=["a. b", "a. bb", "c. b", "c. bbb"], num_generations=4)
    made = trace.updates[0]
    texts = [r.text for r in trace.steps[0].rollouts]
    state_BT = made.batch["state_BT"]
    same, other = texts.index("a. b"), texts.index("c. b")
    assert state_BT[same, 0] == state_BT[other, 0] and state_BT[same, 3] != state_BT[other, 3]


@pytest.mark.parametrize(("name", "loss"), [("clip-cov", "ppo"), ("kl-cov", "kl-cov")])
def test_a_token_whose_likelihood_and_credit_rise_together_is_held_back(name: str, loss: str) -> None:
    trace = traced(name, reward=length, steps=1, prompts=4)
    made, method = trace.updates[0], trace.phases[0].method
    assert method.loss.name == loss and method.aggregate.name == "token-mean" and not made.reference
    assert made.optimiser_steps == 4
    own_BT, adv_BT, logp_BT = made.batch["mask_BT"] > 0, made.batch["adv_BT"], made.batch["old_logp_BT"]
    credit_B1 = torch.where(
        adv_BT.abs().max(-1, keepdim=True).values > adv_BT.max(-1, keepdim=True).values,
        adv_BT.min(-1, keepdim=True).values,
        adv_BT.max(-1, keepdim=True).values,
    )
    whole_BT = credit_B1.expand_as(adv_BT)
    cov_BT = (logp_BT - logp_BT[own_BT].mean()) * (whole_BT - whole_BT[own_BT].mean())
    if name == "kl-cov":
        held_BT = made.batch["mark_BT"] > 0
        assert held_BT.sum() == max(1, int(2e-3 * own_BT.sum())) and cov_BT[held_BT].min() == cov_BT[own_BT].max()
    else:
        inside_BT = own_BT & (cov_BT >= 1) & (cov_BT <= 5)
        held_BT = own_BT & (adv_BT == 0) & (credit_B1 != 0)
        assert held_BT.sum() == 1 and inside_BT[held_BT].all() and cov_BT[held_BT].max() == cov_BT[inside_BT].max()


def test_a_process_reward_model_learns_the_odds_of_every_step() -> None:
    rows = [{"prompt": f"{i}?", "completions": ["a\n", "b"], "labels": [True, bool(i % 2)]} for i in range(20)]
    trace = traced("process-reward-model", rows=rows, steps=1, prompts=4)
    made = trace.updates[0]
    labels_B = made.batch["reward_BT"].sum(-1)
    assert set(labels_B.tolist()) == {0.0, 1.0} and len(made.rows) == 8  # two steps of each
    torch.testing.assert_close(made.passes[0].pull["score_B"], (labels_B - 0.5) / 8)  # the head begins at 0


def test_ipo_aims_at_a_margin_of_means_over_tokens() -> None:
    made = traced("ipo", steps=1).updates[0]
    (only,) = made.passes
    chosen, rejected = made.batch["chosen_P"], made.batch["rejected_P"]
    # at the start u = 0, target 1 / (2 beta) = 5: the pull on a chosen token is 2 * 5 / (its answer's length * pairs)
    mask_BT = made.batch["mask_BT"]
    per_B = 10 / (mask_BT.sum(-1) * len(chosen))
    pull_BT = only.pull["logp_BT"]
    torch.testing.assert_close(pull_BT[chosen], (per_B.unsqueeze(-1) * mask_BT)[chosen], atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(pull_BT[rejected], -(per_B.unsqueeze(-1) * mask_BT)[rejected], atol=1e-4, rtol=1e-3)
