"""Policy-gradient methods as registered: the pull on every token of every optimiser step is the paper's, worked out a second time.

The pull is -d loss / d logp. It shows in one number per token which reward was asked, who was compared with whom, which ratio was
taken to which policy, what was clipped, which KL was paid and over what the mean was taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.wiring import formulas as f
from tests.wiring.spies import traced
from tests.wiring.trace import Pass, Trace


@dataclass
class Case:
    """credit of an answer (or of its tokens), pull before the mean, the mean; updates a step; whose weights the reference holds."""

    credit: Callable[[f.Rows], Tensor]
    pull: Callable[[Pass, Tensor], Tensor] = f.ppo
    mean: str = "answers"
    updates: int = 1
    reference: str = ""  # "start": of the run; "step": as each step begins; "average": of past weights
    kl: float = 0.0
    n: int = 8


ALL = float("inf")
CASES: dict[str, Case] = {
    "reinforce": Case(f.plain, f.score, "sum"),
    "rloo": Case(f.others_less_kl, f.score, "sum", reference="start"),
    "remax": Case(f.above_greedy, f.score, "sum", reference="start", n=1),
    "reinforce-pp": Case(f.whitened_to_go, mean="tokens", reference="start"),
    "grpo": Case(f.whitened, reference="start", kl=0.04),
    "lite-ppo": Case(f.batch_std, mean="tokens", updates=4),
    "maxrl": Case(f.over_mean, mean="tokens"),
    "opo": Case(f.by_length, f.score, "sum"),
    "gpg": Case(f.gpg, f.score, "tokens"),
    "pass-at-k-training": Case(f.best_of_four, mean="tokens", updates=4),
    "dual-clip": Case(f.whitened, f.dual, updates=4, reference="start", kl=0.04),
    "gspo": Case(f.whitened, f.gspo, updates=4),
    "gmpo": Case(f.whitened, f.gmpo, updates=4),
    "sapo": Case(f.whitened, f.sapo, updates=4),
    "dppo": Case(f.whitened, f.dppo, updates=4),
    "kimi-k1-5": Case(f.centred, f.mirror, "sum", updates=4, reference="step"),
    "topr": Case(f.above_half, f.tapered, "sum", updates=8),
    "tis": Case(f.whitened, f.corrected(lambda w: w.clamp(max=2.0)), updates=4, reference="step"),
    "mis": Case(f.whitened, f.corrected(lambda w: w * (w <= 2.0), "answer"), updates=4, reference="step"),
    "icepop": Case(f.whitened, f.corrected(lambda w: w * (w >= 0.5) * (w <= 5.0)), updates=4, reference="step"),
    "decoupled-ppo": Case(f.whitened, f.corrected(lambda w: w), updates=4, reference="average"),
}  # fmt: skip


def trained(name: str, **settings: Any) -> Trace:
    """Two steps of four prompts at a rate at which a step is felt."""
    return traced(name, None, f.worth, **({"prompts": 4, "lr": 0.02} | settings))


def check(trace: Trace, case: Case) -> None:
    """Every pass of every update."""
    for step, made in zip(trace.steps, trace.updates, strict=True):
        rows = f.Rows(step, made)
        A = case.credit(rows)
        A_BT = (A[:, None] if A.dim() == 1 else A) * rows.mask_BT
        for p in made.passes:
            inside_B1 = torch.zeros(len(made.rows), 1).index_fill(0, p.rows, 1.0)
            want_BT = case.pull(p, A_BT) + (f.k3(case.kl, p) if case.kl else 0.0)
            torch.testing.assert_close(
                p.pull["logp_BT"], want_BT * inside_B1 * f.mean(case.mean, p), rtol=2e-3, atol=2e-6
            )


@pytest.mark.parametrize("name", CASES)
def test_the_pull_on_every_token_is_the_papers(name: str) -> None:
    case, trace = CASES[name], trained(name)
    assert [u.optimiser_steps for u in trace.updates] == [case.updates] * 2
    first, second = trace.updates
    held = {"": ("", ""), "start": (first.before, first.before), "step": (first.before, second.before)}
    if case.reference == "average":
        assert first.reference == first.before and second.reference not in ("", first.before, second.before)
    else:
        assert (first.reference, second.reference) == held[case.reference]
    assert all(len(g.rollouts) == case.n + (name == "remax") for s in trace.steps for g in s.groups)
    assert any(float(p.pull["logp_BT"].abs().sum()) > 0 for p in second.passes), (
        "nothing was learned, so nothing was seen"
    )
    check(trace, case)


CORRECTIONS = ("tis", "mis", "icepop", "decoupled-ppo")


@pytest.mark.parametrize("name", CORRECTIONS)
def test_corrections_for_a_sampler_that_is_not_the_trainer(name: str) -> None:
    """Sampled from weights of 3 bits, answers are likelier or less likely under the trainer: caps, masks and weights all bind."""
    trace = trained(f"{name}(rollout='rounded(n=8, bits=3)')", lr=3e-3)
    check(trace, CASES[name])
    own = torch.cat([(u.batch["ref_logp_BT"] - u.batch["old_logp_BT"])[u.batch["mask_BT"] > 0] for u in trace.updates])
    assert float(own.exp().max()) > 1.5 and float(own.exp().min()) < 0.6


def test_the_average_that_decoupled_ppo_clips_against_is_not_who_sampled() -> None:
    second = trained("decoupled-ppo").updates[1]
    gap = (second.batch["ref_logp_BT"] - second.batch["old_logp_BT"]) * second.batch["mask_BT"]
    assert float(gap.abs().max()) > 0.01


def test_no_answer_is_divided_by_its_spread_or_length() -> None:
    """Dr. GRPO: the pull is R - mean times one constant, of whatever length the answer and however spread its group."""
    trace = trained("dr-grpo")
    factors = []
    for step, made in zip(trace.steps, trace.updates, strict=True):
        rows = f.Rows(step, made)
        credit_BT = f.centred(rows)[:, None] * rows.mask_BT
        (only,) = made.passes
        seen = credit_BT != 0
        factors += (only.pull["logp_BT"] / credit_BT)[seen].tolist()
        assert len({int(n) for n in rows.length_B}) > 1 and not made.reference
    assert max(factors) == pytest.approx(min(factors), rel=1e-3) and min(factors) > 0


def test_the_greedy_answer_is_a_bar_and_is_not_trained_on() -> None:
    trace = trained("remax")
    for step, made in zip(trace.steps, trace.updates, strict=True):
        greedy = [g.rollouts[-1] for g in step.groups]
        assert all(r.info["greedy"] for r in greedy) and len(made.rows) == len(step.groups) == 4
        assert [row.text for row in made.rows] == [g.rollouts[0].text for g in step.groups]
    assert {d.how.temperature for d in trace.samples if d.step == 0} == {0.0, 1.0}


def test_ppo_pays_for_the_kl_at_every_token_and_takes_four_updates() -> None:
    trace = trained("ppo", lr=3e-2)
    one, two = trace.updates
    assert [u.optimiser_steps for u in (one, two)] == [4, 4] and one.reference == two.reference == one.before
    rows = f.Rows(trace.steps[1], two)
    last_BT = (torch.arange(rows.mask_BT.shape[1]) == rows.length_B[:, None] - 1).float()
    paid_BT = rows.earned_B[:, None] * last_BT - 0.02 * (two.batch["old_logp_BT"] - two.batch["ref_logp_BT"])
    torch.testing.assert_close(two.batch["reward_BT"], paid_BT * rows.mask_BT, rtol=1e-3, atol=1e-5)
    assert float((two.batch["old_logp_BT"] - two.batch["ref_logp_BT"]).abs().max()) > 1e-3


def test_vapos_critic_learns_alone_for_a_quarter_at_twice_the_rate() -> None:
    trace = traced(
        "vapo", reward=lambda prompt, text: float(len(text) % 2), steps=4, num_generations=2, prompts=1, lr=1e-3
    )
    assert [u.before == u.after for u in trace.updates] == [True, False, False, False]
    assert trace.phases[0].loop.learner._base_lr[::3] == pytest.approx([1e-3, 2e-3])


def test_vapo_sees_more_than_one_prompt_at_each_update() -> None:
    """4 updates of 8 prompts: every one has the answers to 2 of them (8 updates, at most one a prompt, were of one each)."""
    made = trained("vapo", steps=1, num_generations=2, prompts=8).updates[0]
    asked = [[made.rows[i].observation.key for i in p.rows.tolist()] for p in made.passes]
    assert made.optimiser_steps == 4 and [len(set(keys)) for keys in asked] == [2, 2, 2, 2]


def test_vapo_carries_surprises_by_length_and_imitates_right_answers() -> None:
    """Answers of up to 6 tokens have lam = max(0, 1 - 1/(0.05 |y|)) = 0: credit is r + V' - V, whitened; targets are the outcome."""
    trace = trained("vapo", lr=3e-3)
    made = trace.updates[0]
    rows = f.Rows(trace.steps[0], made)
    assert made.optimiser_steps == 4 and all(len(g.rollouts) == 16 for g in trace.steps[0].groups)
    value_BT = made.batch["old_value_BT"] * rows.mask_BT
    last_BT = (torch.arange(rows.mask_BT.shape[1]) == rows.length_B[:, None] - 1).float()
    after_BT = torch.cat([value_BT[:, 1:], torch.zeros(len(made.rows), 1)], 1)
    raw_BT = (rows.earned_B[:, None] * last_BT + after_BT - value_BT) * rows.mask_BT
    own_N = raw_BT[rows.mask_BT > 0]
    want_BT = (raw_BT - own_N.mean()) / own_N.std(unbiased=False)
    torch.testing.assert_close(made.batch["adv_BT"] * rows.mask_BT, want_BT * rows.mask_BT, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        made.batch["return_BT"] * rows.mask_BT, rows.earned_B[:, None] * rows.mask_BT, rtol=1e-4, atol=1e-5
    )
    p = made.passes[
        0
    ]  # before any update the ratio is 1: credit, and 0.1 of a token's share where the answer was right
    inside = torch.zeros(len(made.rows), 1).index_fill(0, p.rows, 1.0)
    right = float(
        (rows.earned_B[:, None] * rows.mask_BT).sum()
    )  # tokens of right answers: what their loss is divided by
    share = float(rows.mask_BT.sum()) / right
    pull_BT = (made.batch["adv_BT"] + 0.1 * share * rows.earned_B[:, None]) * f.mean("tokens", p) * inside
    torch.testing.assert_close(p.pull["logp_BT"], pull_BT, rtol=1e-3, atol=1e-5)
    assert float(p.pull["value_BT"].abs().sum()) > 0
