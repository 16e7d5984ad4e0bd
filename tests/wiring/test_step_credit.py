"""Credit inside an answer as the registered methods give it: of the pieces of a thought, of steps from one state, of the places where a
tree forks, of single tokens by a model of outcomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.types import Rollout
from tests.wiring.formulas import k3
from tests.wiring.spies import traced
from tests.wiring.trace import Step, Trace, Update


def length(prompt: Any, text: str) -> float:
    return float(len(text))


def even(prompt: Any, text: str) -> float:
    return float(len(text) % 2)


def whitened(x_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    own_N = x_BT[mask_BT > 0]
    return (x_BT - own_N.mean()) / (own_N.var(unbiased=False) + 1e-8).sqrt() * mask_BT


def kept(trace: Trace, made: Update) -> list[Rollout]:
    """The answers that an update learned from, in its order."""
    steps: list[Step] = [s for s in trace.steps if (s.phase, s.step) == (made.phase, made.step)]
    found = [r for s in steps for g in s.kept for r in g.rollouts][: len(made.rows)]
    assert [r.text for r in found] == [row.text for row in made.rows]
    return found


def test_mrt_adds_what_an_episode_has_gained() -> None:
    """Of whole answers: A = GRPO(outcome) + p - mean p; p is on all tokens but the last, which holds the outcome."""
    said = ["<think>ab. Wait, c.</think>4", "<think>ab. Wait, c. Wait, d.</think>4", "4", "5", "4"]
    row, how = [{"question": "2+2=?", "answer": "4"}], {"max_tokens": 40}
    asked: dict[str, Any] = {"prompts": 1, "num_generations": 4, "sampling": how}
    trace = traced("mrt(rollout='mrt(continued=False)')", row, length, says=said, steps=1, eval_problems=0, **asked)
    (made,), answers = trace.updates, trace.steps[0].rollouts
    own_BT, p_BT = made.batch["mask_BT"], torch.zeros_like(made.batch["mask_BT"])
    for i, r in enumerate(answers):
        p_BT[i, : len(r) - 1] = r.stream("reward")[:-1]
    assert len(set(p_BT.flatten().tolist())) > 2, "some episodes gain, some lose"
    R = torch.tensor([float(len(r.text)) for r in answers])
    outcome_B = (R - R.mean()) / (R.std() + 1e-4)
    due = outcome_B[:, None] + p_BT - p_BT.sum() / (own_BT.sum() - len(answers))
    torch.testing.assert_close(made.batch["adv_BT"] * own_BT, due * own_BT, rtol=1e-4, atol=1e-4)


def test_gigpo_adds_what_a_step_is_worth_among_those_from_its_state() -> None:
    # R = 4, 5, 4, 6: mean 4.75, std .957427; whole answers -.783349 (twice), .261116, 1.305582. The first step earns .95^2 R, all from one
    # state: the same again. The second: after "a." .95 R of R = 4 or 5, after "c." of 4 or 6: -.707107 and .707107 of a std in both. The
    # third ends the answer: after "b" twice the same, after "bb" and "bbb" nobody else: the whole answer's credit alone.
    says = ["a. b", "a. bb", "c. b", "c. bbb"]
    how: dict[str, Any] = {"num_generations": 4, "prompts": 1, "sampling": {"max_tokens": 8}}
    (made,) = traced("gigpo", reward=length, steps=1, says=says, **how).updates
    due = {"a. b": (-1.566699, -1.490456, -0.783349), "a. bb": (0.522233, 0.968223, 0.261116)}
    due |= {"c. b": (-1.566699, -1.490456, -0.783349), "c. bbb": (2.611165, 2.012689, 1.305582)}
    assert sorted(row.text for row in made.rows) == sorted(says)
    for i, row in enumerate(made.rows):
        adv_T = made.batch["adv_BT"][i][made.batch["mask_BT"][i] > 0].tolist()
        assert (adv_T[0], adv_T[3], adv_T[-1]) == pytest.approx(due[row.text], abs=1e-3)


def _node(leaves: list[Rollout], i: int, t: int) -> tuple[int, int]:
    """Who made the first t tokens of an answer last, by what each says of where it left its parent."""
    while (b := leaves[i].branch) is not None and t <= b.at:
        i = b.parent
    return i, t


def _above_ancestors(leaves: list[Rollout], R: list[float]) -> list[float]:
    """mean_j (R_i - mean R under ancestor j), over the root and every place where fewer go on together."""
    out = []
    for i, r in enumerate(leaves):
        under = [
            [j for j in range(len(leaves)) if len(leaves[j]) >= t and _node(leaves, j, t) == _node(leaves, i, t)]
            for t in range(len(r) + 1)
        ]
        forks = [u for t, u in enumerate(under[:-1]) if t == 0 or (len(u) > len(under[t + 1]) > 0 and len(u) > 1)]
        out.append(sum(R[i] - sum(R[j] for j in u) / len(u) for u in forks) / len(forks))
    return out


def test_treepo_compares_an_answer_with_the_leaves_under_every_ancestor() -> None:
    trace = traced("treepo", reward=length, steps=1, prompts=1, sampling={"max_tokens": 28})
    (made,) = trace.updates
    leaves, own_BT = kept(trace, made), made.batch["mask_BT"]
    R = made.batch["reward_BT"].sum(-1).tolist()
    assert any(r.branch is not None and r.branch.at > 0 for r in leaves), "some fork behind the root"
    due_BT = torch.tensor(_above_ancestors(leaves, R))[:, None] * own_BT
    torch.testing.assert_close(made.batch["adv_BT"], whitened(due_BT, own_BT), rtol=1e-4, atol=1e-4)


def test_prime_credits_outcomes_apart_and_teaches_its_model_outcomes_alone() -> None:
    trace = traced("prime(steps=2, beta=5)", reward=even, prompts=12, lr=0.01)
    for made, judge in zip(trace.of("policy"), trace.of("prm"), strict=True):
        batch, own_BT = made.batch, made.batch["mask_BT"]
        outcome_B = batch["reward:outcome_B"]
        last_BT = own_BT * (own_BT.cumsum(-1) == own_BT.sum(-1, keepdim=True))
        r_BT = (batch["reward_BT"] - outcome_B[:, None] * last_BT) * own_BT
        mean_B = r_BT.sum(-1) / own_BT.sum(-1)
        group_B, due_BT = batch["group_B"], torch.zeros_like(own_BT)
        for g in group_B.unique():
            mine, n = group_B == g, int((group_B == g).sum())
            b, R = (mean_B[mine].sum() - mean_B[mine]) / (n - 1), outcome_B[mine]
            above = (r_BT[mine] - b[:, None]) * own_BT[mine]
            due_BT[mine] = above.flip(-1).cumsum(-1).flip(-1) + (R - (R.sum() - R) / (n - 1))[:, None]
        torch.testing.assert_close(batch["adv_BT"], whitened(due_BT * own_BT, own_BT), rtol=1e-3, atol=1e-3)
        sign_B = judge.passes[0].pull["logp_BT"].sum(-1).sign()
        assert sign_B.tolist() == [1.0 if x > 0.5 else -1.0 for x in judge.batch["reward:outcome_B"].tolist()]
    total_B = trace.of("prm")[1].batch["reward_BT"].sum(-1)
    assert ((total_B > 0.5) != (trace.of("prm")[1].batch["reward:outcome_B"] > 0.5)).any(), "the sum says another thing"


def test_oreal_imitates_and_pushes_away_by_half_with_the_score_function() -> None:
    trace = traced("oreal", reward=even, steps=8, prompts=6, lr=1e-3)
    made = trace.updates[-1]
    answers, batch, own_BT = kept(trace, made), made.batch, made.batch["mask_BT"]
    asked = {g.prompt.id: [even(None, r.text) for r in g.rollouts] for g in trace.steps[-1].groups}
    due_BT = torch.zeros_like(own_BT)
    for i, r in enumerate(answers):
        sure_T = 2 * torch.sigmoid(batch["old_value_after_BT"][i]) - 1
        right, told = even(None, r.text), asked[r.prompt.id]
        above = right - (sum(told) - right) / (len(told) - 1)
        due_BT[i] = (sure_T.clamp_min(0) if right else 0.5 * above * (-sure_T).clamp_min(0)) * own_BT[i]
    assert (due_BT < 0).any() and (due_BT > 0).any()
    torch.testing.assert_close(batch["adv_BT"], due_BT, rtol=1e-4, atol=1e-6)
    (only,) = made.passes
    live = only.batch
    log_BT, sure_BT = live["ref_logp_BT"] - live["logp_BT"], live["value_after_BT"]
    mean_B = (sure_BT * own_BT).sum(-1) / own_BT.sum(-1)
    judge_B = torch.tensor([1.0 if even(None, r.text) else -1.0 for r in answers])
    token_BT = (-due_BT * live["logp_BT"] + 0.01 * (log_BT.exp() - 1 - log_BT)) * own_BT
    taught = -torch.nn.functional.logsigmoid(judge_B * mean_B).mean()
    assert only.loss == pytest.approx(float(token_BT.sum() / own_BT.sum() + taught), rel=1e-5)


def test_oreal_asks_hard_prompts_more_often(tmp_path: Path) -> None:
    # a pass over these three: 6 of the hard one (below .2), 4 of the middle one (.4 to .6), none of the easy one (.8 and above)
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    rows = [{"question": f"{i}+1=?", "answer": str(i + 1), "pass_rate": rate} for i, rate in enumerate((0.1, 0.5, 0.9))]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    test.write_text(json.dumps({"question": "7+1=?", "answer": "8"}) + "\n")
    task = f"{train}(test='{test}')"
    trace = traced("oreal", task, even, steps=1, prompts=10, num_generations=2, eval_problems=1)
    asked = [g.prompt.last[0] for g in trace.steps[0].groups]
    assert sorted(asked) == ["0"] * 6 + ["1"] * 4


JUDGE = """def judge(prompt, steps):
    return 0.5 if steps[-1].startswith("b") else -0.5
"""


def test_pure_checks_a_tenth_of_the_prompts_unless_told_and_stays_near_its_start(tmp_path: Path) -> None:
    file = tmp_path / "judging.py"
    file.write_text(JUDGE)
    how: dict[str, Any] = {"num_generations": 2, "prompts": 18, "lr": 0.02}
    trace = traced(f"pure(steps=2, prm='{file}:judge')", reward=lambda prompt, text: 1.0, **how)
    checked = {r.prompt.id: r.rewards["outcome"] for s in trace.steps for r in s.rollouts}
    assert 0 < sum(checked.values()) < 0.3 * len(checked) and len(checked) > 15
    first, second = trace.updates
    assert second.reference == first.before, "held to the start"
    (only,) = second.passes
    own_BT, p = second.batch["mask_BT"], only
    due = (p.batch["logp_BT"] - p.batch["old_logp_BT"]).exp() * second.batch["adv_BT"] + k3(0.001, p)
    assert k3(0.001, p).abs().max() > 1e-4
    torch.testing.assert_close(p.pull["logp_BT"], due * own_BT / own_BT.sum(), rtol=1e-5, atol=1e-8)


def test_pure_credits_the_outcome_apart_from_the_steps(tmp_path: Path) -> None:
    """A_t = sum_{s >= t} (r*_s - b) + (R - mean of others' R); b: what a token of the others earns in steps."""
    file = tmp_path / "judging_outcomes_apart.py"
    file.write_text(JUDGE)
    name, says = f"pure(steps=1, checked=1, prm='{file}:judge')", ["a\nb", "ba", "a\nb\nc", "c\nb\nb"]
    (made,) = traced(name, reward=even, says=says, num_generations=4, prompts=1).updates
    batch, own_BT = made.batch, made.batch["mask_BT"]
    R, last_BT = batch["reward:outcome_B"], own_BT * (own_BT.cumsum(-1) == own_BT.sum(-1, keepdim=True))
    step_BT, length_B = (batch["reward_BT"] - R[:, None] * last_BT) * own_BT, own_BT.sum(-1)
    b_B = (step_BT.sum() - step_BT.sum(-1)) / (length_B.sum() - length_B)
    togo_BT = ((step_BT - b_B[:, None]) * own_BT).flip(-1).cumsum(-1).flip(-1)
    due_BT = (togo_BT + (R - (R.sum() - R) / 3)[:, None]) * own_BT
    assert 0 < R.sum() < 4
    torch.testing.assert_close(batch["adv_BT"] * own_BT, due_BT, rtol=1e-4, atol=1e-5)


def test_vineppo_pays_a_line_the_change_of_what_its_state_is_worth() -> None:
    says = ["a\nb", "a\nbc\nd", "bb", "c\nb\na"]
    trace = traced("vineppo", reward=even, says=says, num_generations=2, steps=1, prompts=2)
    (made,) = trace.updates
    own_BT, due_BT, row = made.batch["mask_BT"], torch.zeros_like(made.batch["mask_BT"]), 0
    for g in trace.steps[0].groups:
        vines = [r for r in g.rollouts if r.branch is not None]
        for i, r in enumerate(g.rollouts[:2]):
            starts = sorted({v.branch.at for v in vines if v.branch.parent == i})
            told = [[even(None, v.text) for v in vines if (v.branch.parent, v.branch.at) == (i, at)] for at in starts]
            worth = [*(sum(xs) / 9 for xs in told), even(None, r.text)]  # V of each state, and at the end the reward
            for j, (a, b) in enumerate(zip(starts, [*starts[1:], len(r)], strict=True)):
                due_BT[row, a:b] = worth[j + 1] - worth[j]
            row += 1
    assert row == len(made.rows)
    torch.testing.assert_close(made.batch["adv_BT"], whitened(due_BT, own_BT), rtol=1e-4, atol=1e-4)


def test_text2grad_pays_quotes_alone_and_takes_the_kl_off(tmp_path: Path) -> None:
    file = tmp_path / "criticises.py"
    file.write_text("def critic(prompt, text):\n    return '{\"good\": [\"' + text[:1].strip('\"') + '\"]}'\n")
    trace = traced(f"text2grad(steps=2, critic='{file}:critic')", lr=0.02)
    for step, made in zip(trace.steps, trace.updates, strict=True):
        own_BT, paid_BT = made.batch["mask_BT"], torch.zeros_like(made.batch["mask_BT"])
        for i, r in enumerate(step.rollouts):
            assert r.reward == 0.0, "an answer as a whole earns nothing"
            paid_BT[i, : len(r)] = r.stream("reward")
        away_BT = (made.batch["old_logp_BT"] - made.batch["ref_logp_BT"]) * own_BT
        torch.testing.assert_close(made.batch["reward_BT"], paid_BT - 0.02 * away_BT, rtol=1e-4, atol=1e-6)
    assert paid_BT.any() and away_BT.abs().max() > 0.01, "the policy has moved by the second step"
