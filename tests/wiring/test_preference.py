"""Preference methods and imitation of one's own best, as registered: which answers make a pair, against which reference, how hard
each pair pulls; which answers are imitated and which are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import posttrain as pt
from posttrain.systems.supervised_from_reward.raft import best_of
from tests.wiring import formulas as f
from tests.wiring.spies import ROWS, traced
from tests.wiring.trace import Pass, Trace, Update


def slope(z: Tensor) -> Tensor:
    """-d/dz of -log sigmoid(z)."""
    return torch.sigmoid(-z)


# -d loss / d u of a pair whose log-ratios to the reference differ by u
PULLS: dict[str, Callable[[Tensor], Tensor]] = {
    "dpo": lambda u: 0.1 * slope(0.1 * u),
    "online-dpo": lambda u: 0.1 * slope(0.1 * u),
    "hinge": lambda u: 0.05 * (0.05 * u < 1),
    "robust-dpo": lambda u: 0.1 * (0.9 * slope(0.1 * u) + 0.1 * slope(-0.1 * u)) / 0.8,
}
OWN = ("online-dpo",)  # pairs of the policy's own answers, ranked by the reward


def log_ratio(p: Pass) -> Tensor:
    return ((p.batch["logp_BT"] - p.batch["ref_logp_BT"]) * p.batch["mask_BT"]).sum(-1)


def run(name: str) -> Trace:
    return traced(name, None, f.worth if name in OWN else None, prompts=4, lr=0.02)


def texts(made: Update, stream: str) -> list[str]:
    return [made.rows[i].text for i in made.batch[stream].tolist()]


@pytest.mark.parametrize("name", PULLS)
def test_every_pair_pulls_as_hard_as_its_margin_says(name: str) -> None:
    trace = run(name)
    first, second = trace.updates
    assert first.reference == second.reference == first.before and first.optimiser_steps == second.optimiser_steps == 1
    for made in trace.updates:
        (only,) = made.passes
        chosen, rejected = made.batch["chosen_P"], made.batch["rejected_P"]
        u = log_ratio(only)[chosen] - log_ratio(only)[rejected]
        want_BT = torch.zeros_like(made.batch["mask_BT"])
        want_BT[chosen] += (PULLS[name](u) / len(chosen))[:, None]
        want_BT[rejected] -= (PULLS[name](u) / len(chosen))[:, None]
        torch.testing.assert_close(only.pull["logp_BT"], want_BT * made.batch["mask_BT"], rtol=1e-3, atol=1e-6)
    assert float(log_ratio(second.passes[0]).abs().max()) > 0.1, "at the reference every margin is 0"


@pytest.mark.parametrize("name", ["dpo", "robust-dpo", "hinge", "reward-model"])
def test_written_pairs_are_used_as_they_are_written(name: str) -> None:
    trace = run(name)
    answers = {r["answer"] for r in ROWS}
    assert not [d for d in trace.samples if d.step >= 0], "nothing is sampled"
    for made in trace.updates:
        assert set(texts(made, "rejected_P")) == {"no"} and set(texts(made, "chosen_P")) <= answers
        assert len(made.rows) == 8 and made.batch["written_B"].all()


def test_online_dpo_pairs_the_best_with_the_worst_of_eight() -> None:
    trace = run("online-dpo")
    for step, made in zip(trace.steps, trace.updates, strict=True):
        assert all(len(g.rollouts) == 8 for g in step.groups)
        worths = [
            (f.worth(None, a), f.worth(None, b))
            for a, b in zip(texts(made, "chosen_P"), texts(made, "rejected_P"), strict=True)
        ]
        mixed = [g for g in step.groups if len({r.reward for r in g.rollouts}) == 2]
        assert worths == [(1.0, 0.0)] * len(mixed) and mixed, "a group of equals makes no pair"


def test_a_reward_model_learns_the_score_of_whole_answers() -> None:
    """-log sigmoid(s_w - s_l) + 0.01 (s_w + s_l)^2, averaged over pairs."""
    trace = run("reward-model")
    assert [p.role for p in trace.phases] == ["reward_model"]
    for made in trace.updates:
        (only,) = made.passes
        chosen, rejected, score_B = made.batch["chosen_P"], made.batch["rejected_P"], only.batch["score_B"]
        gap, total = score_B[chosen] - score_B[rejected], score_B[chosen] + score_B[rejected]
        want_B = torch.zeros(len(made.rows))
        want_B[chosen], want_B[rejected] = slope(gap) - 0.02 * total, -slope(gap) - 0.02 * total
        torch.testing.assert_close(only.pull["score_B"], want_B / len(chosen), rtol=1e-3, atol=1e-6)
        assert "logp_BT" not in only.pull and not made.reference


# ---- imitation


def test_demonstrations_are_imitated_token_by_token() -> None:
    rows = [{"question": f"count to {i}", "answer": "123456789"[:i]} for i in range(1, 10)] * 3
    trace = traced("sft", [r | {"question": f"{i}: {r['question']}"} for i, r in enumerate(rows)], prompts=4)
    answers = {r["answer"] for r in rows}
    for made in trace.updates:
        (only,) = made.passes
        assert {row.text for row in made.rows} <= answers and made.batch["written_B"].all() and not made.reference
        torch.testing.assert_close(only.pull["logp_BT"], f.mean("tokens", only))
    assert len({int(n) for u in trace.updates for n in u.batch["length_B"]}) > 1


def best_rows(trace: Trace, n: int) -> None:
    """Of n answers to each prompt one is imitated: the first that earned most."""
    for step, made in zip(trace.steps, trace.updates, strict=True):
        assert all(len(g.rollouts) == n for g in step.groups)
        best = [max(g.rollouts, key=lambda r: f.worth(None, r.text)).text for g in step.groups]
        assert [row.text for row in made.rows] == best
        assert len({r.reward for r in step.rollouts}) == 2, "the choice shows where rewards differ"


def test_superhf_pays_for_leaving_the_start_in_every_token_of_the_vocabulary() -> None:
    """The best of 16 is imitated, plus 0.35 KL(start || policy) over the vocabulary at each of its tokens, over all tokens."""
    trace = traced("superhf", None, f.worth, prompts=4, lr=0.02)
    best_rows(trace, 16)
    first, second = trace.updates
    assert first.reference == second.reference == first.before
    assert (first.optimiser_steps, second.optimiser_steps) == (1, 1)
    (only,) = second.passes
    start, now = f.dist(only, "ref_"), f.dist(only)
    torch.testing.assert_close(
        now.gather(-1, second.batch["token_BT"][..., None])[..., 0] * only.batch["mask_BT"], only.batch["logp_BT"]
    )
    own_BT = only.batch["mask_BT"]
    divergence_BT = (start.exp() * (start - now)).sum(-1) * own_BT
    assert float(divergence_BT[own_BT > 0].min()) > 0 and now.exp().sum(-1)[own_BT > 0].sub(1).abs().max() < 1e-5
    want = ((0.35 * divergence_BT - only.batch["logp_BT"]) * own_BT).sum() / own_BT.sum()
    assert only.loss == pytest.approx(float(want), rel=1e-4)
    said_BTV = torch.nn.functional.one_hot(second.batch["token_BT"], now.shape[-1])
    pull_BTV = 0.35 * (start.exp() - now.exp()) + (
        said_BTV - now.exp()
    )  # on every logit, by the KL and by the imitation
    want_BTD = (pull_BTV * f.mean("tokens", only)[..., None]) @ only.heads["head_VD"]
    torch.testing.assert_close(only.pull["hidden_BTD"], want_BTD, atol=1e-6, rtol=1e-4)


def test_a_start_that_was_left_no_way_pays_nothing() -> None:
    (only,) = traced("superhf", None, f.worth, steps=1).updates[0].passes
    torch.testing.assert_close(only.pull["logp_BT"], f.mean("tokens", only))
    own_BT = only.batch["mask_BT"]
    assert only.loss == pytest.approx(float(-(only.batch["logp_BT"] * own_BT).sum() / own_BT.sum()), rel=1e-5)


def test_raft_imitates_the_best_of_eight_in_four_epochs() -> None:
    trace = traced("raft", None, f.worth, prompts=4, lr=0.02)
    best_rows(trace, 8)
    for made in trace.updates:
        assert made.optimiser_steps == 16 and not made.reference
        for p in made.passes:
            inside_B1 = torch.zeros(len(made.rows), 1).index_fill(0, p.rows, 1.0)
            torch.testing.assert_close(p.pull["logp_BT"], f.mean("tokens", p) * inside_B1)
        assert sorted(torch.cat([p.rows for p in made.passes]).tolist()) == sorted([*range(4)] * 4)


# ---- CoPG


LOG = [
    {"prompt": f"say {i}", "response": text, "reward": reward}
    for i in range(30)
    for text, reward in ((f"{i}a", i / 10), (f"b{i}", 1 - i / 7))
]


def test_copg_fits_logged_pairs_and_samples_nothing() -> None:
    """-d/du of (R - R' - beta u)^2 / (2 beta) is R - R' - beta u: pairs of the log, whoever gave them, 4 updates."""
    trace = traced("copg", LOG, prompts=4, lr=0.02)
    assert not [d for d in trace.samples if d.step >= 0]
    first, second = trace.updates
    assert first.reference == second.reference == first.before and second.optimiser_steps == 4
    for made in trace.updates:
        chosen, rejected = made.batch["chosen_P"], made.batch["rejected_P"]
        earned = made.batch["reward_BT"].sum(-1)
        assert made.batch["old_logp_BT"].abs().sum() == 0, "nobody knows how likely they were"
        assert (earned[chosen] >= earned[rejected]).all() and len(chosen) == 4
        for p in made.passes:
            inside = torch.isin(chosen, p.rows)
            one, two = chosen[inside], rejected[inside]
            u = log_ratio(p)[one] - log_ratio(p)[two]
            want_BT = torch.zeros_like(made.batch["mask_BT"])
            want_BT[one] += ((earned[one] - earned[two] - 0.1 * u) / len(one))[:, None]
            want_BT[two] -= ((earned[one] - earned[two] - 0.1 * u) / len(one))[:, None]
            torch.testing.assert_close(p.pull["logp_BT"], want_BT * made.batch["mask_BT"], rtol=1e-3, atol=1e-5)


def test_copg_without_a_log_says_what_a_log_is() -> None:
    with pytest.raises(pt.UserError, match="answers"):
        traced("copg")


def test_raft_may_rank_over_all_prompts() -> None:
    made = [[0.1, 0.9, 0.8], [0.2, 0.3, 0.0], [0.95, 0.1, 0.2]]
    groups = []
    for i, rewards in enumerate(made):
        p = pt.Prompt.text(f"p{i}", "?")
        rollouts = [
            pt.Rollout.single(p, torch.tensor([1]), torch.tensor([2]), torch.zeros(1), reward=r, index=k)
            for k, r in enumerate(rewards)
        ]
        groups.append(pt.Group(p, rollouts))
    kept = best_of(groups, everywhere=True)
    assert [(g.prompt.id, [r.reward for r in g.rollouts]) for g in kept] == [("p0", [0.9, 0.8]), ("p2", [0.95])]
    assert [[r.reward for r in g.rollouts] for g in best_of(groups)] == [[0.9], [0.3], [0.95]]
