"""Relatives of DPO, as registered: which answers they read, against which reference, and how hard each token is pulled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import posttrain as pt
from tests.wiring.spies import ROWS, traced
from tests.wiring.trace import Pass, Trace

PAIRS = [{"prompt": r["question"], "chosen": r["answer"], "rejected": "no" * (1 + i % 2)} for i, r in enumerate(ROWS)]
LISTS = [{"prompt": r["question"], "responses": [r["answer"], "no", "nono"], "scores": [3, 2, 0.5]} for r in ROWS]
LABELS = [
    {"prompt": r["question"], "completion": r["answer"] if i % 2 else "no", "label": bool(i % 2)}
    for i, r in enumerate(ROWS)
]


class Side:
    """One side of the pairs: log-probability and its mean, log-ratio to the reference, length."""

    def __init__(self, S: Tensor, ref: Tensor, n: Tensor) -> None:
        self.S, self.n, self.s, self.gain = S, n, S / n, S - ref


def odds(s: Tensor) -> Tensor:
    return s - torch.log1p(-s.exp())


# the loss of a pair by the paper's own defaults, written a second time
LOSSES: dict[str, Callable[[Side, Side], Tensor]] = {
    "cdpo": lambda w, r: -0.9 * logsigmoid(0.1 * (w.gain - r.gain)) - 0.1 * logsigmoid(0.1 * (r.gain - w.gain)),
    "simpo": lambda w, r: -logsigmoid(2 * (w.s - r.s) - 0.5),
    "cpo": lambda w, r: -logsigmoid(0.1 * (w.S - r.S)) - w.s,
    "orpo": lambda w, r: -w.s - 0.1 * logsigmoid(odds(w.s) - odds(r.s)),
    "slic": lambda w, r: (1 - w.S + r.S).clamp_min(0) - 0.1 * w.S,
    "nca": lambda w, r: -logsigmoid(w.gain / 100) - 0.5 * logsigmoid(-w.gain / 100) - 0.5 * logsigmoid(-r.gain / 100),
    "exo": lambda w, r: _exo(0.1 * (w.gain - r.gain)),
    "apo-zero": lambda w, r: 1 - (0.1 * w.gain).sigmoid() + (0.1 * r.gain).sigmoid(),
    "apo-down": lambda w, r: (0.1 * w.gain).sigmoid() + 1 - (0.1 * (w.gain - r.gain)).sigmoid(),
    "discopop": lambda w, r: _discopop(0.05 * (w.gain - r.gain)),
    "r-dpo": lambda w, r: -logsigmoid(0.1 * (w.gain - r.gain) + 0.01 * (w.n - r.n)),
    "tr-dpo": lambda w, r: -logsigmoid(0.05 * (w.gain - r.gain)),
}  # fmt: skip
WITHOUT_REFERENCE = ("simpo", "cpo", "orpo", "slic")


def _exo(x: Tensor) -> Tensor:
    q = x.sigmoid()
    return q * (q.log() - torch.tensor(0.999).log()) + (1 - q) * ((1 - q).log() - torch.tensor(1e-3).log())


def _discopop(x: Tensor) -> Tensor:
    m = (x / 0.05).sigmoid()
    return (1 - m) * -logsigmoid(x) + m * torch.exp(-x)


def sums(p: Pass, name: str) -> Tensor:
    if name not in p.batch:
        return torch.zeros(len(p.batch["mask_BT"]))
    return (p.batch[name] * p.batch["mask_BT"]).sum(-1)


def check_pull(p: Pass, rows_S: Tensor, loss: Tensor) -> None:
    """Every own token of an answer is pulled by -dL/dS."""
    (grad_B,) = torch.autograd.grad(loss, rows_S)
    own_BT = p.batch["mask_BT"]
    torch.testing.assert_close(p.pull["logp_BT"], -grad_B[:, None] * own_BT, rtol=2e-3, atol=1e-6)
    assert p.loss == pytest.approx(float(loss.detach()), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_every_pair_pulls_by_the_papers_own_defaults(name: str) -> None:
    trace = traced(name, PAIRS, prompts=4, lr=0.02)
    first, second = trace.updates
    assert not [d for d in trace.samples if d.step >= 0], "nothing is sampled"
    assert bool(first.reference) == (name not in WITHOUT_REFERENCE) and first.reference == second.reference
    for made in trace.updates:
        (only,) = made.passes
        S, ref, n = sums(only, "logp_BT").requires_grad_(), sums(only, "ref_logp_BT"), only.batch["mask_BT"].sum(-1)
        w, r = (Side(S[i], ref[i], n[i]) for i in (made.batch["chosen_P"], made.batch["rejected_P"]))
        assert {made.rows[i].text for i in made.batch["rejected_P"].tolist()} <= {"no", "nono"}
        check_pull(only, S, LOSSES[name](w, r).mean())


def test_ld_dpo_halves_what_is_beyond_the_shorter_answer() -> None:
    (only,) = traced("ld-dpo", PAIRS, prompts=4, lr=0.02).updates[1].passes
    pull, own = only.pull["logp_BT"], only.batch["mask_BT"]
    long = [
        b for b in range(len(own)) if int(own[b].sum()) == 5
    ]  # "nono" and its end, beside answers of two or three tokens
    assert long
    for b in long:
        assert pull[b, 4] == pytest.approx(float(pull[b, 0]) / 2) and float(pull[b, 0]) < 0


def test_the_reference_of_tr_dpo_moves_towards_the_policy() -> None:
    trace = traced("tr-dpo(reference='soft_update(mix=0.5, every=2)')", PAIRS, steps=3, prompts=4)
    one, two, three = trace.updates
    assert one.reference == two.reference == one.before and three.reference != one.reference
    assert three.reference != three.before, "half of the way only"
    assert str(pt.find_method("tr-dpo").reference) == "soft-update(every=16)"


@pytest.mark.parametrize("name", ["aot", "aot-unpaired"])
def test_aot_sorts_the_whole_minibatch_however_it_is_cut(name: str) -> None:
    """The same minibatch in one piece and in many: as many pulls, the same ones."""
    pulls = []
    for tokens in (16384, 8):
        trace = traced(f"aot(loss={name!r})", PAIRS, prompts=6, lr=0.02, micro_tokens=tokens)
        passes = trace.updates[1].passes
        pulls.append(sum(p.pull["logp_BT"] for p in passes))
        assert (len(passes) > 1) == (tokens == 8)
    torch.testing.assert_close(pulls[0], pulls[1], rtol=1e-3, atol=1e-6)
    assert float(pulls[0].abs().max()) > 0


# ---- good and bad answers


def log_ratios(trace: Trace, at: int) -> tuple[Tensor, Tensor, Pass]:
    made = trace.updates[at]
    (only,) = made.passes
    return sums(only, "logp_BT").requires_grad_(), sums(only, "ref_logp_BT"), only


def test_kto_learns_from_labels_and_measures_z_on_the_answers_of_others() -> None:
    trace = traced("kto", LABELS, prompts=4, lr=0.02)
    for at, made in enumerate(trace.updates):
        S, ref, only = log_ratios(trace, at)
        told = torch.isfinite(made.batch["label_B"])
        assert int(told.sum()) == 4 and len(made.rows) == 8, "beside each an answer to another question"
        asked = {row.observation.key for row, own in zip(made.rows, told.tolist(), strict=True) if own}
        assert {row.observation.key for row in made.rows} == asked
        assert sorted(only.rows.tolist()) == told.nonzero().flatten().tolist(), "they are read, not learned from"
        assert "z_B" in only.batch
        z = only.batch["z_B"][told]
        assert float(z.std()) == 0
        good = made.batch["label_B"][told] > 0.5
        sign = torch.where(good, 1.0, -1.0)
        loss = (1 - (0.1 * sign * (S[told] - ref[told] - z)).sigmoid()).mean()
        check_pull(only, S, loss)


def test_bco_shifts_by_a_running_mean_that_is_saved() -> None:
    trace = traced("bco", LABELS, prompts=4, lr=0.02, steps=3)
    rewards, signs = list[Tensor](), list[Tensor]()
    for at, made in enumerate(trace.updates):
        S, ref, only = log_ratios(trace, at)
        sign = torch.where(made.batch["label_B"] > 0.5, 1.0, -1.0)
        rewards.append((0.01 * (S - ref)).detach())
        signs.append(sign)
        so_far, class_of = torch.cat(rewards), torch.cat(signs)
        delta = torch.stack([so_far[class_of == s].mean() for s in class_of.unique()]).mean()
        check_pull(only, S, -logsigmoid(sign * (0.01 * (S - ref) - delta)).mean())
    state = trace.phases[-1].loop.learner.state()
    assert state["memory"]["bco_good_count"] + state["memory"]["bco_bad_count"] == 12


def test_labels_are_asked_for() -> None:
    with pytest.raises(pt.UserError, match="good or bad"):
        traced("dpo(loss='kto')", PAIRS)


# ---- ranked lists


def by_list(trace: Trace, at: int) -> tuple[Tensor, Tensor, Tensor, Pass]:
    made = trace.updates[at]
    (only,) = made.passes
    return sums(only, "logp_BT").requires_grad_(), only.batch["mask_BT"].sum(-1), made.batch["ranked_LK"], only


def test_rrhf_ranks_by_likelihood_per_token() -> None:
    trace = traced("rrhf", LISTS, prompts=4, lr=0.02)
    for at in (0, 1):
        S, n, ranked, only = by_list(trace, at)
        s = (S / n)[ranked]
        hinge = [(s[:, j] - s[:, i]).clamp_min(0) for i in range(3) for j in range(i + 1, 3)]
        check_pull(only, S, (torch.stack(hinge).sum(0) - s[:, 0]).mean())
        assert not trace.updates[at].reference


def test_pro_sharpens_by_the_gap_of_scores() -> None:
    trace = traced("pro", LISTS, prompts=4, lr=0.02)
    for at in (0, 1):
        S, n, ranked, only = by_list(trace, at)
        s, whole = (S / n)[ranked], S[ranked]
        one = torch.stack([2.5 * s[:, 0], 1.0 * s[:, 1], 2.5 * s[:, 2]])
        two = torch.stack([1.5 * s[:, 1], 1.5 * s[:, 2]])
        loss = torch.logsumexp(one, 0) - one[0] + torch.logsumexp(two, 0) - two[0] - 0.05 * 4 * whole[:, 0]
        check_pull(only, S, loss.mean())


def test_tpo_imitates_gold_and_compares_the_others() -> None:
    trace = traced("tpo", LISTS, prompts=4, lr=0.02)
    for at in (0, 1):
        S, n, ranked, only = by_list(trace, at)
        whole, mean = S[ranked], (S / n)[ranked]
        check_pull(only, S, (-logsigmoid(0.01 * (whole[:, 1] - whole[:, 2])) - 0.05 * mean[:, 0]).mean())
    with pytest.raises(pt.UserError, match="at least 3"):
        traced("tpo", [{"prompt": r["question"], "responses": [r["answer"], "no"], "scores": [1, 0]} for r in ROWS])


def test_sampled_answers_can_be_ranked_too() -> None:
    trace = traced(
        "rrhf(rollout='sample(n=4)', select='ranked')", ROWS, lambda prompt, text: float(len(text)), prompts=4
    )
    for step, made in zip(trace.steps, trace.updates, strict=True):
        assert all(len(g.rollouts) == 4 for g in step.groups)
        for places in made.batch["ranked_LK"].tolist():
            lengths = [len(made.rows[i].text) for i in places if i >= 0]
            assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]


def test_brain_learns_from_answers_that_earned_the_same_too() -> None:
    trace = traced("brain", ROWS, lambda prompt, text: 1.0, prompts=2, steps=1)
    assert trace.updates[0].batch["ranked_LK"].shape == (2, 8)


def test_brain_pulls_by_posterior_minus_policy_over_the_answers_to_a_prompt() -> None:
    trace = traced("brain", ROWS, lambda prompt, text: float(len(text)), prompts=4, lr=0.02)
    for step, made in zip(trace.steps, trace.updates, strict=True):
        assert all(len(g.rollouts) == 8 for g in step.groups) and made.optimiser_steps == 4
        assert made.batch["ranked_LK"].shape == (4, 8) and made.reference == trace.updates[0].before
        own, old = made.batch["mask_BT"], (made.batch["old_logp_BT"] * made.batch["mask_BT"]).sum(-1)
        earned = made.batch["reward_BT"].sum(-1)
        for p in made.passes:
            S, ref = sums(p, "logp_BT"), sums(p, "ref_logp_BT")
            want_B = torch.zeros(len(own))
            for places in made.batch["ranked_LK"].tolist():
                if places[0] in p.rows.tolist():
                    a = (ref[places] + earned[places] - old[places]).softmax(0)
                    want_B[places] = a - (S[places] - old[places]).softmax(0)
            torch.testing.assert_close(p.pull["logp_BT"], want_B[:, None] * own, rtol=1e-3, atol=1e-5)
