"""What sets constrained RLHF apart, on the registered plan: a critic for each reward, points that are given or searched on a metric."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import posttrain as pt
from tests.wiring.spies import traced


def many(prompt: Any, text: str) -> float:
    return float(len(text))


def even(prompt: Any, text: str) -> float:
    return float(len(text) % 2 == 0)


BOTH = {"many": many, "even": even}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("constrained-rlhf", "give the points, --plan.points"),
        ("constrained-rlhf(points='many, even')", "let it search them on the true metric"),
        ("constrained-rlhf(points='many=3, evn=1')", "did you mean 'even'"),
        ("constrained-rlhf(points='many=3, even')", "give all of them, or none"),
        ("constrained-rlhf(points='many=3, even=1', gold='numeric')", "these are given"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_loaded(asked: str, said: str) -> None:
    with pytest.raises(pt.UserError, match=said):
        traced(asked, reward=BOTH)


def test_points_that_are_given() -> None:
    trace = traced("constrained-rlhf(points='many=100, even=0.5',steps=3,lr=0.01)", reward=BOTH, num_generations=2)
    assert trace.parts == ["policy->start", "constrained"]
    updates = trace.of("policy", "constrained")
    assert len(updates) == 3 and updates[2].reference == updates[0].before, "the KL is to the start"
    first = updates[0].batch
    assert first["old_value_BTK"].shape[-1] == 3, "a critic for each component and one for the KL"
    last = first["mask_BT"].sum(-1).long() - 1
    for k, name in enumerate(BOTH):  # each critic learns the component's own return, which ends at the reward
        ends = first["return_BTK"][range(len(last)), last, k]
        assert ends.tolist() == pytest.approx(first[f"reward:{name}_B"].tolist(), abs=1e-4)
    # multipliers begin at 0, so that the first batch pays the KL alone, which is 0 at the start; then `many` is far below its point
    assert first["adv_BT"].abs().max() < 0.05
    second = updates[1].batch
    ahead = second["adv_BT"][range(len(second["mask_BT"])), second["mask_BT"].sum(-1).long() - 1]
    long = second["reward:many_B"] > second["reward:many_B"].median()
    assert ahead[long].mean() > ahead[~long].mean(), "more of what is below its point is worth more"
    assert trace.summary["proxy_points"] == {"many": 100.0, "even": 0.5}


@pytest.mark.parametrize("kind", ["equal", "least"])
def test_multipliers_weigh_components_by_how_far_they_are_from_their_points(kind: str) -> None:
    # w = tanh mu or sigmoid mu, of which 1 - w^2 and w (1 - w) are the slopes; mu is 0 at first, then 0.01 slope (point - mean)
    name = f"constrained-rlhf(points='many=100, even=0.5',steps=2,lr=0.01,kind={kind!r})"
    mu = torch.zeros(2)
    for made in traced(name, reward=BOTH, num_generations=4).of("policy", "constrained"):
        batch, own_BT = made.batch, made.batch["mask_BT"]
        w = mu.tanh() if kind == "equal" else mu.sigmoid()
        due_BT = torch.zeros_like(own_BT)
        for k, share in enumerate([*w, 2 - w.sum()]):  # the KL's critic has what is left of 2
            adv_BT = batch["return_BTK"][..., k] - batch["old_value_BTK"][..., k]
            own_N = adv_BT[own_BT > 0]
            due_BT += share * (adv_BT - own_N.mean()) / (own_N.var(unbiased=False) + 1e-8).sqrt() * own_BT
        torch.testing.assert_close(batch["adv_BT"], due_BT, rtol=1e-3, atol=1e-3)
        below = torch.stack([100 - batch["reward:many_B"].mean(), 0.5 - batch["reward:even_B"].mean()])
        mu = mu + 0.01 * (1 - w**2 if kind == "equal" else w * (1 - w)) * below


def test_points_that_are_searched_on_a_metric_that_no_update_sees() -> None:
    asked = itertools.count()

    def quality(prompt: Any, text: str) -> float:
        return -float(next(asked))  # the first try is the best

    trace = traced(
        "constrained-rlhf(points='many, even',gold='{file}:quality',steps=1,tries=4,every=1)",
        reward=BOTH | {"quality": quality}, num_generations=2,
    )  # fmt: skip
    assert [p.name for p in trace.phases] == ["try.1", "try.2", "try.3", "try.4", "constrained"]
    falls = [bool(p.loop.learner.decay_over) for p in trace.phases]
    assert falls == [False] * 4 + [True], "the tries are one run: none of them ends its learning rate"
    seen = trace.summary["search"]["seen"]
    assert [p for p, _ in seen[:3]] == trace.summary["search"]["simplex"], "corners of the simplex come first"
    paid = [s.rollouts[0].rewards for s in trace.steps]
    assert [[r["point-many"], r["point-even"]] for r in paid[:4]] == [p for p, _ in seen]
    judged = [c.args[1] for c in trace.calls if c.name == "quality" and not c.phase]
    size = len(judged) // 4
    for i in range(4):  # the true metric reads what the policy of this try says, not what the start does
        made = [d for d in trace.samples if d.weights == trace.of("policy", f"try.{i + 1}")[-1].after]
        assert sorted(judged[i * size : (i + 1) * size]) in [sorted(d.texts) for d in made]
    best = max(seen, key=lambda s: s[1])[0]
    assert best == seen[0][0]
    assert [paid[4]["point-many"], paid[4]["point-even"]] == best, "the last phase has the best points that were tried"
    assert all(u.before != v.before for u, v in zip(trace.of("policy")[:-1], trace.of("policy")[1:], strict=True))
