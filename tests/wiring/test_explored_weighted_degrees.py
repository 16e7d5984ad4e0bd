"""WPO, XPO and SPO as registered: how much a pair weighs, whose answers meet, what a head reads beside the preference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

import posttrain as pt
from posttrain.core.method import find_method
from tests.wiring.spies import ROWS, traced
from tests.wiring.test_preference_relatives import PAIRS, check_pull, sums

WORDY = [
    {
        "prompt": r["question"],
        "chosen": f"the small sum is {r['answer']}, a number",
        "rejected": "some red fox or a dog",
    }
    for r in ROWS
]


def longer(prompt: Any, a: str, b: str) -> float:
    return 0.5 if len(a) == len(b) else float(len(a) > len(b))


def test_wpo_weighs_pairs_by_the_policy_as_it_is() -> None:
    trace = traced("wpo", PAIRS, prompts=4, lr=0.02)
    assert not [d for d in trace.samples if d.step >= 0], "nothing is sampled"
    for made in trace.updates:
        (only,) = made.passes
        S, ref = sums(only, "logp_BT").requires_grad_(), sums(only, "ref_logp_BT")
        logits = only.batch["hidden_BTD"] @ only.heads["head_VD"].T
        usual_BT = (2 * logits.log_softmax(-1)).logsumexp(-1)
        own_BT = only.batch["mask_BT"]
        weight_B = ((only.batch["logp_BT"] - usual_BT) * own_BT).sum(-1) / own_BT.sum(-1)
        best, worst = made.batch["chosen_P"], made.batch["rejected_P"]
        weight_P = (weight_B[best] + weight_B[worst]).exp().clamp(max=1)
        assert float(weight_P.min()) < 1, "the answers are not the policy's own"
        margin = (S - ref)[best] - (S - ref)[worst]
        check_pull(only, S, (-weight_P.detach() * logsigmoid(0.01 * margin)).mean())


def test_xpo_pairs_the_policy_with_the_start_and_leaves_the_start() -> None:
    trace = traced("xpo(rounds=2, prompts=8, alpha=0.5)", ROWS, {"prefer": longer}, prompts=8, lr=0.02)
    assert trace.parts[0] == "policy->start"
    first = trace.updates[0]
    for k in (1, 2):
        said = {
            role: [d for d in trace.samples if d.phase == f"collect.{k}" and role in d.roles]
            for role in ("policy", "start")
        }
        policy = said["policy"][0]
        theirs = [d for d in trace.samples if d.phase == f"collect.{k}" and d is not policy]
        assert {d.weights for d in theirs} == {trace.updates[0].before}, (
            "the other answer is the start's in every round"
        )
        assert policy.weights == trace.of(phase=f"xpo.{k}")[0].before and policy.prompts == theirs[0].prompts
        for made in trace.of(phase=f"xpo.{k}"):
            (only,) = made.passes
            assert made.reference == first.reference == first.before
            best, worst = made.batch["chosen_P"].tolist(), made.batch["rejected_P"].tolist()
            explored = made.batch["reward:explored_B"].tolist()
            asked = dict(zip(policy.prompts, zip(policy.texts, theirs[0].texts, strict=True), strict=True))
            for a, b in zip(best, worst, strict=True):
                assert len(made.rows[a].text) >= len(made.rows[b].text), "as the judge says"
                assert explored[a] + explored[b] == 1
                own, other = (b, a) if explored[a] else (a, b)
                assert (made.rows[own].text, made.rows[other].text) in asked.values()
            S, ref = sums(only, "logp_BT").requires_grad_(), sums(only, "ref_logp_BT")
            of_start = S[[a if explored[a] else b for a, b in zip(best, worst, strict=True)]]
            loss = -logsigmoid(0.1 * ((S - ref)[best] - (S - ref)[worst])) + 0.5 * of_start
            check_pull(only, S, loss.mean())
    assert trace.summary["judge_calls"] > 0
    with pytest.raises(pt.UserError, match="xpo learns from comparisons"):
        traced("xpo", ROWS)
    with pytest.raises(pt.UserError, match="alpha of 0 or more"):
        traced("xpo(alpha=-1)", ROWS, {"prefer": longer})


def test_spo_tells_versions_apart_beside_dpo() -> None:
    trace = traced("spo-selfsup-degree", WORDY, prompts=4, lr=0.02)
    (only,) = (first := trace.updates[0]).passes
    assert len(first.batch["chosen_P"]) == 4 and len(first.rows) == 4 * 6, "three versions of both answers"
    degrees, sides = first.batch["reward:degree_B"].tolist(), first.batch["reward:side_B"].tolist()
    for row, degree, side in zip(first.rows, degrees, sides, strict=True):
        assert ("small" in row.text or "number" in row.text or "sum" in row.text) or not side or degree
        assert ("fox" in row.text or "dog" in row.text) or side or degree == 2
    assert sorted(zip(degrees, sides, strict=True)) == sorted([(d, s) for d in (0, 1, 2) for s in (0, 1)] * 4)
    # preference: pairs of whole answers alone, as DPO; at the reference each pair pulls by .1 / 2, for a mean over 4
    best, worst = first.batch["chosen_P"], first.batch["rejected_P"]
    assert {degrees[i] for i in (*best.tolist(), *worst.tolist())} == {0}
    torch.testing.assert_close(only.pull["logp_BT"][best, 0], torch.full((4,), 0.05 / 4), rtol=1e-3, atol=1e-6)
    rest = [i for i, d in enumerate(degrees) if d]
    assert float(only.pull["logp_BT"][rest].abs().max()) == 0
    # a head that begins at zero tells three versions apart by chance: .1 log 3 over all of them, besides log 2
    assert only.loss == pytest.approx(
        0.1 * torch.log(torch.tensor(3.0)).item() + torch.log(torch.tensor(2.0)).item(), rel=1e-4
    )


def test_the_head_learns_faster_than_the_policy() -> None:
    critic = find_method("spo-selfsup-degree").critic
    assert critic is not None and critic.lr == 1e-2


def test_what_the_head_learns_reaches_the_policy() -> None:
    plain = "spo-selfsup-degree(terms='degree(chosen=0, rejected=0)')"
    with_head, without = (traced(name, WORDY, prompts=4, lr=0.02, steps=3) for name in ("spo-selfsup-degree", plain))
    one, other = ([made.passes[0].batch["logp_BT"] for made in t.updates] for t in (with_head, without))
    torch.testing.assert_close(one[0], other[0])
    assert float((one[2] - other[2]).abs().max()) > 1e-4, "once the head is not zero, the network follows it"


def test_spo_wants_answers_of_words() -> None:
    with pytest.raises(pt.UserError, match="no degrees to tell"):
        traced("spo-selfsup-degree", PAIRS, prompts=4)


def test_a_reward_of_xpo_judges_as_sharply_as_k_says() -> None:
    """Lengths in hundredths: with k = 1 a longer answer would win half of the time, with 10^4 always."""
    trace = traced(
        "xpo(rounds=1, prompts=12, k=10000.0, epochs=2)", ROWS, lambda prompt, text: len(text) / 100, prompts=4
    )
    gaps = [
        len(made.rows[a].text) - len(made.rows[b].text)
        for made in trace.updates
        for a, b in zip(made.batch["chosen_P"].tolist(), made.batch["rejected_P"].tolist(), strict=True)
    ]
    assert min(gaps) >= 0 < max(gaps) and len(trace.updates) == round(2 * trace.summary["pairs"]["round 1"] / 4)
