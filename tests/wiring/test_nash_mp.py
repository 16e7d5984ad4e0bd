"""Nash mirror prox, Nash Prox and Nash-EMA on the registered plans: who plays whom, from where, and what holds them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import posttrain as pt
from claims.worlds.games import circles
from claims.worlds.tabular import TabularPolicy
from posttrain.systems.policy_gradient.nash_md import beside
from posttrain.systems.policy_gradient.nash_mp import held_to, proximal
from tests.wiring.spies import traced


def size(text: str) -> int:
    return sum(map(ord, text)) % 7


def prefer(prompt: Any, a: str, b: str) -> float:
    return 0.5 + (size(a) > size(b)) * 0.4 - (size(a) < size(b)) * 0.4


def pulled(made: Any, wins: list[float], coef: float) -> None:
    """The pull on every token is the credit of its answer: win rate less the price, less the mean of its siblings."""
    own, old, ref = made.batch["mask_BT"], made.batch["old_logp_BT"], made.batch["ref_logp_BT"]
    worth = torch.tensor(wins) - coef * ((old - ref) * own).sum(-1)
    worth_GN = worth.view(-1, 2)
    credit = (worth_GN - worth_GN.flip(-1)).flatten()  # of two answers, the other one is the baseline
    (only,) = made.passes
    torch.testing.assert_close(only.pull["logp_BT"], credit[:, None] * own / len(made.rows), rtol=1e-3, atol=1e-5)


def blended(trace: Any, made: Any, eta: float) -> None:
    """log ref = eta / (1 + eta) log start + 1 / (1 + eta) log previous."""
    with torch.no_grad():
        start, last = (trace.roles[r].forward(made.rows, ("logp_BT",))["logp_BT"] for r in ("start", "previous"))
    want = eta / (1 + eta) * start + 1 / (1 + eta) * last
    mask = made.batch["mask_BT"] > 0
    torch.testing.assert_close(made.batch["ref_logp_BT"][mask], want[mask], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(start[mask], last[mask], atol=1e-4)


@pytest.mark.derived("plan/nash-mp", "plan/nash-prox")
def test_a_proximal_step_has_one_price_for_both_references() -> None:
    # beta = .1, eta = .25: price .1 (1 + 4) = .5, of which 1/5 for the start (.1) and 4/5 for the last policy (.4 = beta / eta)
    assert proximal(0.1, 0.25).shaping[0].params["coef"] == pytest.approx(0.5)
    assert held_to(0.25) == pytest.approx({"start": 0.2, "previous": 0.8})


def distances(beta: float, eta: float, ahead: bool, questions: int = 200) -> list[float]:
    """KL from the regularised equilibrium after each step, by the closed form, on a game in a circle; ahead: two questions a step."""
    game, ref_PN = circles(1, 0, good=3, bad=1), torch.full((1, 4), 0.25, dtype=torch.float64)
    target_PN = game.regularised_nash(ref_PN, beta, steps=20000)
    pi_PN, far = torch.tensor([[0.7, 0.1, 0.1, 0.1]], dtype=torch.float64), []
    for _ in range(questions // 2 if ahead else questions):
        rival_PN = game.prox(ref_PN, pi_PN, pi_PN, beta, eta) if ahead else pi_PN
        pi_PN = game.prox(ref_PN, pi_PN, rival_PN, beta, eta)
        far.append(float((target_PN * (target_PN / pi_PN).log()).sum()))
    return far


@pytest.mark.derived("plan/nash-mp")
def test_exact_steps_converge_at_the_rate_of_the_paper_and_large_ones_do_not_circle() -> None:
    # (1 + 2 beta)^(-N/2) after N questions: a factor of 1 / 1.1 in each iteration of two
    far = distances(0.05, 0.05, ahead=True)
    assert all(b <= a / 1.1 for a, b in zip(far[:-1], far[1:], strict=True) if a > 1e-8) and far[-1] < 1e-5
    # with four times the step and beta 0.02, as many questions: mirror prox is there, self-play circles
    assert distances(0.02, 0.08, ahead=True)[-1] < 1e-6 < 0.1 < distances(0.02, 0.08, ahead=False)[-1]


def test_nash_mp_takes_both_steps_from_the_same_policy() -> None:
    trace = traced("nash-mp(iterations=2, inner=1, eta=0.5, n=2)", None, prefer, steps=None, lr=0.02)
    assert trace.parts == ["policy->start", *["policy->previous", "policy->half", "half.1", "next.1"], *["policy->previous", "policy->half", "half.2", "next.2"]]  # fmt: skip
    assert [(u.role, u.phase) for u in trace.updates] == [
        ("half", "half.1"), ("policy", "next.1"), ("half", "half.2"), ("policy", "next.2"),
    ]  # fmt: skip
    one, two, three, four = trace.updates
    assert one.before == two.before and three.before == four.before == two.after
    for step, made in zip(trace.steps, trace.updates, strict=True):
        sampled = [d for d in trace.samples if d.phase == step.phase and d.step >= 0]
        rival = next(d for d in sampled if d.texts != [r.text for r in step.rollouts])
        assert rival.weights == (made.before if made.role == "half" else one.after if made is two else three.after)
        wins = [prefer(None, r.text, t) for g, t in zip(step.groups, rival.texts, strict=True) for r in g.rollouts]
        assert [r.reward for r in step.rollouts] == pytest.approx(wins)
        pulled(made, wins, 0.1 * 3)
    blended(trace, three, 0.5)
    blended(trace, four, 0.5)


def test_nash_mp_meets_so_many_answers_of_its_rival() -> None:
    trace = traced("nash-mp(iterations=1, inner=1, n=2, m=3)", None, prefer, steps=None)
    for step in trace.steps:
        drawn = [d for d in trace.samples if d.phase == step.phase and d.step >= 0]
        (rival,) = (d for d in drawn if d.texts != [r.text for r in step.rollouts])
        met = [rival.texts[3 * k : 3 * k + 3] for k in range(len(step.groups))]
        wins = [
            sum(prefer(None, r.text, t) for t in some) / 3
            for g, some in zip(step.groups, met, strict=True)
            for r in g.rollouts
        ]
        assert len(rival.texts) == 3 * len(step.groups) and [r.reward for r in step.rollouts] == pytest.approx(wins)


def test_nash_prox_plays_itself_and_is_held_to_where_the_iteration_began() -> None:
    trace = traced("nash-prox(iterations=2, inner=2, n=2)", None, prefer, steps=None, lr=0.02)
    assert trace.parts == ["policy->start", "policy->previous", "prox.1", "policy->previous", "prox.2"]
    for step, made in zip(trace.steps, trace.updates, strict=True):
        wins = [prefer(None, r.text, g.rollouts[1 - i].text) for g in step.groups for i, r in enumerate(g.rollouts)]
        assert [r.reward for r in step.rollouts] == pytest.approx(wins)
        pulled(made, wins, 0.2)
    blended(trace, trace.updates[-1], 1.0)
    assert trace.updates[-1].before != trace.updates[-2].before


@pytest.mark.derived("plan/nash-ema", "reference/beside")
def test_nash_ema_plays_the_average_of_its_past() -> None:
    trace = traced("nash-ema(steps=3, decay=0.75, n=2)", None, prefer, steps=None, lr=0.02)
    assert trace.parts == ["policy->start", "nash-ema"]
    rivals = []
    for at, (step, made) in enumerate(zip(trace.steps, trace.updates, strict=True)):
        other = next(d for d in trace.samples if d.step == at and d.texts != [r.text for r in step.rollouts])
        rivals.append(other.weights)
        wins = [prefer(None, r.text, t) for g, t in zip(step.groups, other.texts, strict=True) for r in g.rollouts]
        assert [r.reward for r in step.rollouts] == pytest.approx(wins)
        assert made.reference == trace.updates[0].before, "the price is for leaving the start"
        own, old, ref = made.batch["mask_BT"], made.batch["old_logp_BT"], made.batch["ref_logp_BT"]
        credit = torch.tensor(wins) - 0.5 - 0.008 * ((old - ref) * own).sum(-1)
        torch.testing.assert_close(
            made.passes[0].pull["logp_BT"], credit[:, None] * own / len(made.rows), rtol=1e-3, atol=1e-5
        )
    assert rivals[0] == trace.updates[0].before and len(set(rivals)) == 3
    assert not set(rivals[1:]) & {u.before for u in trace.updates}, "neither the start nor the policy as it is"


@pytest.mark.derived("reference/beside")
def test_the_average_by_hand_and_after_a_restart() -> None:
    # 0 -> policy 4: .75 * 0 + .25 * 4 = 1; policy 4 again: .75 * 1 + 1 = 1.75; the reference stays 0
    policy, shown = TabularPolicy(1, 1, 2, memory=False), []
    kept = beside.fn(decay=0.75, shown=shown)
    kept.start(policy)
    with torch.no_grad():
        policy.table.fill_(4.0)
    kept.after_step(policy, 0)
    assert set(shown[0].table.flatten().tolist()) == {1.0}
    kept.after_step(policy, 1)
    assert set(shown[0].table.flatten().tolist()) == {1.75} and set(kept.policy.table.flatten().tolist()) == {0.0}
    again: list[TabularPolicy] = []
    other = beside.fn(decay=0.75, shown=again)
    other.start(policy)
    other.load(kept.tensors())
    assert set(again[0].table.flatten().tolist()) == {1.75} and set(other.policy.table.flatten().tolist()) == {0.0}


@pytest.mark.parametrize("name", ["nash-mp", "nash-prox"])
def test_what_cannot_be_played_is_a_sentence(name: str) -> None:
    with pytest.raises(pt.UserError, match="nobody here compares"):
        pt.run(method=name, model="no/such/folder", task="arithmetic")
    with pytest.raises(pt.UserError, match="both are above 0"):
        traced(f"{name}(eta=0)", None, prefer, steps=None)
    with pytest.raises(pt.UserError, match="2 answers to a prompt"):
        traced(f"{name}(n=1)", None, prefer, steps=None)
