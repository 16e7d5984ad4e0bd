"""Clip-Cov and KL-Cov as registered: GRPO on all tokens but the few whose likelihood and credit rise together most."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.wiring import formulas as f
from tests.wiring.spies import traced
from tests.wiring.trace import Trace


def trained(name: str) -> Trace:
    return traced(name, None, f.worth, prompts=4, lr=0.02)


def covariance(rows: f.Rows, A_BT: Tensor) -> Tensor:
    """(logp - mean)(A - mean) of every token of the step; -inf outside."""
    own_BT = rows.mask_BT > 0
    centred = [x_BT - x_BT[own_BT].mean() for x_BT in (rows.old_BT, A_BT)]
    return torch.where(own_BT, centred[0] * centred[1], -torch.inf)


def test_clip_cov_silences_one_token_in_five_thousand_within_its_bounds() -> None:
    method = trained("clip-cov").phases[0].method
    assert method.advantage.defaults()["ratio"] == 2e-4 and not method.terms
    assert (method.advantage.defaults()["low"], method.advantage.defaults()["high"]) == (1.0, 5.0)
    trace = trained("clip-cov(advantage='clip_cov(low=0.0)')")  # no token of so small a model reaches 1
    for step, made in zip(trace.steps, trace.updates, strict=True):
        rows = f.Rows(step, made)
        A_BT = f.whitened(rows)[:, None] * rows.mask_BT
        cov_BT = covariance(rows, A_BT)
        silent_BT = cov_BT == cov_BT.max()
        assert made.optimiser_steps == 4 and not made.reference and float(cov_BT.max()) > 0
        for p in made.passes:
            inside_B1 = torch.zeros(len(made.rows), 1).index_fill(0, p.rows, 1.0)
            want_BT = f.ppo(p, torch.where(silent_BT, 0.0, A_BT)) * inside_B1 * f.mean("tokens", p)
            torch.testing.assert_close(p.pull["logp_BT"], want_BT, rtol=2e-3, atol=2e-6)


def test_kl_cov_holds_back_two_tokens_in_a_thousand_and_clips_none() -> None:
    method = trained("kl-cov").phases[0].method
    assert method.advantage.defaults()["ratio"] == 2e-3 and method.loss.defaults()["coef"] == 1.0 and not method.terms
    trace = trained("kl-cov(advantage='kl_cov(ratio=0.05)')")
    held = 0.0
    for step, made in zip(trace.steps, trace.updates, strict=True):
        rows = f.Rows(step, made)
        A_BT = f.whitened(rows)[:, None] * rows.mask_BT
        cov_BT, count = covariance(rows, A_BT), int(0.05 * float(rows.mask_BT.sum()))
        mark_BT = (cov_BT >= cov_BT.flatten().topk(count).values[-1]).float()
        assert made.optimiser_steps == 4 and not made.reference and count >= 1
        for p in made.passes:
            inside_B1 = torch.zeros(len(made.rows), 1).index_fill(0, p.rows, 1.0)
            back_BT = mark_BT * (p.batch["logp_BT"] - p.batch["old_logp_BT"]).sign()
            want_BT = (f.ratio(p) * A_BT - back_BT) * inside_B1 * f.mean("tokens", p)
            torch.testing.assert_close(p.pull["logp_BT"], want_BT, rtol=2e-3, atol=2e-6)
            held += float((back_BT * inside_B1).abs().sum())
    assert held > 0, "no marked token had moved, so no price was seen"
