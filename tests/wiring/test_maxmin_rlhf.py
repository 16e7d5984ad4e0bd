"""MaxMin-RLHF on the registered plan: who is in which group, who learns from whom, who pays."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.systems.preference.maxmin_rlhf import assigned, weights
from tests.wiring.spies import traced

# ann and bea want "good", cid and dan the opposite
PAIRS = [
    {"prompt": f"tell {i}", "chosen": a, "rejected": b, "annotator": who}
    for i in range(6)
    for who, a, b in (("ann", "good", "bad"), ("bea", "good", "bad"), ("cid", "bad", "good"), ("dan", "bad", "good"))
]


@pytest.mark.derived("plan/maxmin-rlhf")
def test_annotators_go_where_their_pairs_are_likeliest_and_no_group_is_empty() -> None:
    assert assigned(torch.tensor([[-1.0, -2.0], [-3.0, -1.0], [-5.0, -6.0]])) == [0, 1, 0]
    # all prefer group 0; the third fits worst there (-5), and goes
    assert assigned(torch.tensor([[-1.0, -2.0], [-3.0, -4.0], [-5.0, -6.0]])) == [0, 0, 1]
    # groups 1 and 2 are empty: -5 goes to 1; alone there, he stays, and -3 goes to 2
    assert assigned(torch.tensor([[-1.0, -2.0, -9.0], [-3.0, -4.0, -9.0], [-5.0, -6.0, -9.0]])) == [0, 2, 1]


@pytest.mark.derived("plan/maxmin-rlhf")
def test_weights_of_groups() -> None:
    mean_K = torch.tensor([0.0, -0.693147])
    assert weights(mean_K).tolist() == [0.0, 1.0]
    # exp(0) : exp(ln 2) = 1 : 2;  with eta 2 it is 1 : 4
    torch.testing.assert_close(weights(mean_K, "soft"), torch.tensor([1 / 3, 2 / 3]))
    torch.testing.assert_close(weights(mean_K, "soft", eta=2.0), torch.tensor([0.2, 0.8]))
    assert weights(mean_K, "mean").tolist() == [0.5, 0.5]


def whose(trace: Any, phase: str) -> set[str]:
    return {r.prompt.info["annotator"] for s in trace.steps if s.phase == phase for r in s.rollouts}


def paid(trace: Any) -> list[list[Any]]:
    return [s.rollouts for s in trace.steps if s.phase == "ppo"]


def test_groups_are_found_and_the_worst_served_one_pays() -> None:
    trace = traced(
        "maxmin-rlhf(rounds=3, passes=2, steps=2)", rows=PAIRS, num_generations=2, prompts=4, lr=0.02, seed=1
    )
    em = [x for i in (1, 2, 3) for x in (f"group-0.{i}", f"group-1.{i}", f"assign.{i}")]
    assert trace.parts == ["policy->start", "groups", *em, "judged", "units", "ppo", "measured"]
    taught = [{p: whose(trace, f"{p}.{i}") for p in ("group-0", "group-1")} for i in (1, 2, 3)]
    for told in taught:
        assert (
            told["group-0"] | told["group-1"] == {"ann", "bea", "cid", "dan"} and not told["group-0"] & told["group-1"]
        )
    assert {frozenset(x) for x in taught[0].values()} == {frozenset({"ann", "dan"}), frozenset({"bea", "cid"})}, (
        "by lot"
    )
    assert {frozenset(x) for x in taught[2].values()} == {frozenset({"ann", "bea"}), frozenset({"cid", "dan"})}
    assert trace.of("group-0", "group-0.2")[0].before == trace.of("group-0", "group-0.1")[-1].after, "models go on"
    for rollouts in paid(trace):
        worst = min(("group0", "group1"), key=lambda g: fmean(r.rewards[g] for r in rollouts))
        assert [r.reward for r in rollouts] == pytest.approx([r.rewards[worst] for r in rollouts])
    ppo = trace.of("policy", "ppo")
    assert {u.reference for u in ppo} == {ppo[0].before} and trace.phases[-1].method.shaping[0].params["coef"] == 0.05
    found = {role: trace.summary[f"group_rewards_of_{role}"] for role in ("start", "policy")}
    assert found["start"]["worst"] == min(found["start"]["group 0"], found["start"]["group 1"])
    assert found["policy"] != found["start"] and trace.summary["annotators"] == {"group 0": 2, "group 1": 2}


def test_each_group_begins_with_a_head_of_its_own() -> None:
    trace = traced("maxmin-rlhf(rounds=1, steps=1)", rows=PAIRS, num_generations=2, prompts=4, lr=1e-12)
    one, other = (trace.roles[f"group-{k}"].score.out.weight for k in (0, 1))
    assert float((one - other).detach().abs().max()) > 0.01


def test_the_average_and_a_single_reward_are_arms_of_the_same_plan() -> None:
    trace = traced("maxmin-rlhf(rounds=1, steps=1, how='mean')", rows=PAIRS, num_generations=2, prompts=4)
    for r in paid(trace)[0]:
        assert r.reward == pytest.approx((r.rewards["group0"] + r.rewards["group1"]) / 2, abs=1e-5)
    soft = traced("maxmin-rlhf(rounds=1, steps=1, how='soft', eta=5)", rows=PAIRS, num_generations=2, prompts=4)
    (rollouts,) = paid(soft)
    z = torch.tensor([[r.rewards[f"group{k}"] for r in rollouts] for k in (0, 1)])
    want = (torch.exp(-5 * z.mean(1)) / torch.exp(-5 * z.mean(1)).sum()) @ z
    assert [r.reward for r in rollouts] == pytest.approx(want.tolist(), abs=1e-4)
    plain = [{k: v for k, v in row.items() if k != "annotator"} for row in PAIRS[::4]]
    one = traced("maxmin-rlhf(groups=1, rounds=1, steps=1)", rows=plain, num_generations=2, prompts=4)
    assert {p.role for p in one.phases} == {"group-0", "policy"}


@pytest.mark.parametrize(
    ("options", "rows", "told"),
    [
        (
            "",
            [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4,
            "do not say who compared them; give each row an annotator",
        ),
        ("groups=5", PAIRS, "4 annotators cannot be 5 groups"),
        ("how='worst'", PAIRS, "min"),
        ("rounds=0", PAIRS, "1 group, round and step at least"),
    ],
)
def test_what_is_missing_is_a_sentence(options: str, rows: Any, told: str) -> None:
    with pytest.raises(pt.UserError, match=told):
        traced(f"maxmin-rlhf({options})", rows=rows)
