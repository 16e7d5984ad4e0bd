"""Imitation with something beside it, as registered: inverse RL, intuitive fine-tuning, the bridge to DPO."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.method import find_method
from posttrain.policies import language
from posttrain.policies.load import load_model
from tests.wiring.spies import ROWS, tiny_folder, traced

# ---- scalable IRL


def test_scalable_irl_pulls_logits_towards_the_value_that_follows() -> None:
    trace = traced("scalable-irl-lm", prompts=4, lr=0.02)
    assert [u.optimiser_steps for u in trace.updates] == [1, 1] and not trace.updates[0].reference
    for made in trace.updates:
        (only,) = made.passes
        own_BT, logp_BT, logz_BT = only.batch["mask_BT"], only.batch["logp_BT"], only.batch["logz_BT"]
        assert {row.text for row in made.rows} <= {r["answer"] for r in ROWS}
        delta_BT = torch.zeros_like(own_BT)
        for b, t in own_BT.nonzero().tolist():
            follows = float(logz_BT[b, t + 1]) if t + 1 < own_BT.shape[1] and own_BT[b, t + 1] else 0.0
            delta_BT[b, t] = float(logp_BT[b, t] + logz_BT[b, t]) - follows
        want_BT = (1 - 0.002 * delta_BT) * own_BT / own_BT.sum()
        torch.testing.assert_close(only.pull["logp_BT"], want_BT, rtol=1e-4, atol=1e-6)
        want = ((0.001 * delta_BT**2 - logp_BT) * own_BT).sum() / own_BT.sum()
        assert only.loss == pytest.approx(float(want), rel=1e-4)
        back_BT = torch.cat((torch.zeros_like(delta_BT[:, :1]), delta_BT[:, :-1]), 1)
        torch.testing.assert_close(
            only.pull["logz_BT"], -0.002 * (delta_BT - back_BT * own_BT) / own_BT.sum(), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("limit", [10**9, 1])  # the head at once, and in chunks
def test_scalable_irl_without_a_weight_is_sft_to_the_bit(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(language, "CHUNK", limit)
    assert find_method("scalable-irl-lm").but(terms=()).parts() == find_method("sft").parts()
    plain = traced("sft", prompts=4, lr=0.01).updates
    zero = traced("scalable-irl-lm(terms='td(coef=0)')", prompts=4, lr=0.01).updates
    assert [u.after for u in zero] == [u.after for u in plain]
    other = traced("scalable-irl-lm", prompts=4, lr=0.01).updates
    assert other[-1].after != plain[-1].after


def test_logits_are_what_the_streams_say() -> None:
    trace = traced("scalable-irl-lm", prompts=2, steps=1)
    policy, rows = trace.roles["policy"], trace.updates[0].rows
    with torch.no_grad():
        found = policy.forward(rows, ("logp_BT", "logz_BT"))
        dist = policy.forward(rows, ("dist_BTV",))["dist_BTV"]
        tokens = torch.cat((rows[0].observation.tokens, rows[0].actions)).unsqueeze(0)
        raw_V = policy.model.logits(policy.model.hidden(tokens))[0, len(rows[0].observation.tokens) - 1]
    token = int(rows[0].actions[0])
    assert float(found["logp_BT"][0, 0] + found["logz_BT"][0, 0]) == pytest.approx(float(raw_V[token]), abs=1e-5)
    torch.testing.assert_close(dist[0, 0] + found["logz_BT"][0, 0], raw_V, atol=1e-5, rtol=0)


# ---- intuitive fine-tuning


def mixed_by_hand(policy: Any, row: Any, mix: float) -> torch.Tensor:
    """log pi of the answer's tokens where each is read as (1 - mix) E(token) + mix E(guess), row by row and in plain steps."""
    model, S, T = policy.model, len(row.observation.tokens), len(row)
    tokens = torch.cat((row.observation.tokens, row.actions))
    guess = model.logits(model.hidden(tokens.unsqueeze(0)))[0].argmax(-1)
    table = model.model.embed_tokens.weight
    read = table[tokens].clone()
    for t in range(T):
        read[S + t] = (1 - mix) * table[tokens[S + t]] + mix * table[guess[S + t - 1]]
    logits = model.logits(model.hidden(tokens.unsqueeze(0), embedded=read.unsqueeze(0)))[0]
    return torch.stack([logits[S + t - 1].log_softmax(-1)[tokens[S + t]] for t in range(T)])


def test_ift_reads_its_own_guesses_and_weighs_by_what_follows() -> None:
    rows = [{"question": f"{i}: go", "answer": "123456789"[: 1 + i % 9]} for i in range(24)]
    trace = traced("ift", rows=rows, prompts=4, lr=0.02)
    assert [u.optimiser_steps for u in trace.updates] == [1, 1]
    for made in trace.updates:
        (only,) = made.passes
        own_BT = only.batch["mask_BT"]
        assert len(set(own_BT.sum(-1).tolist())) > 1, "answers of several lengths weigh the same"
        ce_BT = (-only.batch["mixed_logp_BT"] * own_BT).requires_grad_()
        ahead_BT = [
            sum(0.95 ** (k - t) * ce_BT[:, k] for k in range(t, own_BT.shape[1])) for t in range(own_BT.shape[1])
        ]
        c_BT = torch.stack(ahead_BT, 1) * own_BT
        loss = ((c_BT * ce_BT).sum(-1) / c_BT.sum(-1)).mean()
        loss.backward()
        assert only.loss == pytest.approx(float(loss.detach()), rel=1e-4)
        torch.testing.assert_close(only.pull["mixed_logp_BT"], ce_BT.grad * own_BT, rtol=1e-3, atol=1e-5)
        assert "logp_BT" not in only.pull, "the first pass teaches nothing"
    policy = trace.roles["policy"]
    turns = trace.updates[-1].rows
    with torch.no_grad():
        found_BT = policy.forward(turns, ("mixed_logp_BT",))["mixed_logp_BT"]
        for b, row in enumerate(turns):
            torch.testing.assert_close(found_BT[b, : len(row)], mixed_by_hand(policy, row, 0.2), rtol=1e-4, atol=1e-5)
    plain = policy.forward(turns, ("logp_BT",))["logp_BT"].detach()
    assert float((found_BT - plain).abs().max()) > 1e-4, "what is read matters"


def test_ift_never_moves_the_input_embeddings() -> None:
    trace = traced("ift", prompts=4, lr=0.02)
    policy = trace.roles["policy"]
    before = load_model(tiny_folder()).model.state_dict()
    after = policy.model.state_dict()
    assert torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])
    assert not torch.equal(before["lm_head.weight"], after["lm_head.weight"])


def test_ift_without_both_is_sft_with_frozen_input_embeddings() -> None:
    none = find_method("ift").but(rollout="intuition(mix=0)", loss="ift(gamma=0)")
    found = {}
    for name, method in (("ift", none), ("sft", find_method("sft").but(aggregate="sequence_mean"))):
        policy = load_model(tiny_folder())
        policy.model.model.embed_tokens.weight.requires_grad_(False)
        rows = [r | {"answer": r["answer"] * 3} for r in ROWS]
        pt.run(
            model=policy,
            task=rows,
            method=method,
            steps=3,
            prompts=4,
            lr=0.02,
            threads=1,
            eval_problems=0,
            runs=tempfile.mkdtemp(),
        )
        found[name] = policy.model.state_dict()
    for name, x in found["ift"].items():
        torch.testing.assert_close(x, found["sft"][name], rtol=1e-5, atol=1e-6)


def test_a_share_of_more_than_all_is_told() -> None:
    with pytest.raises(pt.UserError, match=r"mix is 2; .* from 0 to 1"):
        traced("ift(rollout='intuition(mix=2)')")


# ---- the bridge to DPO

STORIES = [{"prompt": f"tell {i}", "completion": f"a tale of the {i} men"} for i in range(24)]


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"tell {i}", "chosen": "good", "rejected": "bad"} for i in range(24)]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(file)


def test_the_bridge_imitates_slowly_and_then_prefers(pairs: str) -> None:
    trace = traced(f"implicit-reward-bridge(pairs={pairs!r}, epochs=0.5, dpo_epochs=0.5)", rows=STORIES, lr=0.02)
    assert trace.parts == ["policy->start", "sft", "drift", "dpo"]
    imitated, preferred = trace.of(phase="sft"), trace.of(phase="dpo")
    assert {row.text for u in imitated for row in u.rows} <= {r["completion"] for r in STORIES}
    assert {row.text for u in preferred for row in u.rows} == {"good", "bad"}
    assert preferred[0].reference == preferred[0].before == imitated[-1].after
    rates = [p.loop.learner._base_lr[0] for p in trace.phases]
    assert rates == pytest.approx([0.02 * 0.25, 0.02 * 0.025])
    assert trace.summary["kl_after_sft"] == trace.summary["kl_after_sft"]
    other = traced(f"implicit-reward-bridge(pairs={pairs!r}, beta=0.7, epochs=0.5, dpo_epochs=0.5)", rows=STORIES)
    assert [p.method.loss.params["beta"] for p in other.phases if p.method.name == "dpo"] == [0.7]


@pytest.mark.parametrize("divergence", ["pearson", "hellinger"])
def test_the_bridge_by_another_divergence_is_held_to_the_base(pairs: str, divergence: str) -> None:
    plan = f"implicit-reward-bridge(pairs={pairs!r}, divergence={divergence!r}, sft_rate=1, epochs=0.5, dpo_epochs=0.2)"
    trace = traced(plan, rows=STORIES, lr=0.02)
    made = trace.of(phase="sft")
    assert made[0].reference == made[-1].reference == made[0].before
    sharp = traced(plan.replace("epochs=0.5", "beta=0.7, epochs=0.1"), rows=STORIES)
    assert sharp.phases[0].method.loss.params == {"divergence": divergence, "beta": 0.7}
    (only,) = made[-1].passes
    own_BT = only.batch["mask_BT"]
    x_B = 0.1 * ((only.batch["logp_BT"] - made[-1].batch["ref_logp_BT"]) * own_BT).sum(-1)
    assert float(x_B.min()) > 0.1, "demonstrations have become likelier"
    slope_B = 1 - x_B / 2 if divergence == "pearson" else 1 / (1 + x_B) ** 2
    torch.testing.assert_close(only.pull["logp_BT"], slope_B.unsqueeze(-1) * own_BT / len(x_B), rtol=1e-3, atol=1e-6)


def test_the_bridge_asks_for_pairs() -> None:
    with pytest.raises(pt.UserError, match=r"--plan.pairs pairs.jsonl"):
        traced("implicit-reward-bridge", rows=STORIES)
    with pytest.raises(pt.UserError, match="no divergence named"):
        traced("implicit-reward-bridge(divergence='kl')", rows=STORIES)
    with pytest.raises(pt.UserError, match="all are above 0"):
        traced("implicit-reward-bridge(sft_rate=0)", rows=STORIES)
