"""Systems for agents as registered: the plan or method runs by its name on a tiny model, and what sets it apart is looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.policies.language import LanguagePolicy
from tests.wiring.corridor import right
from tests.wiring.spies import traced

CALL = {"name": "add", "arguments": {"a": 1}}
CALLS = [{"question": f"{k}?", "answer": [CALL], "tools": [{"name": "add", "description": "adds"}]} for k in range(12)]


def written(call: Any) -> str:
    return f"<think>so</think>\n<tool_call>\n{json.dumps(call)}\n</tool_call>"


SAID = [written(CALL), written({"name": "add", "arguments": {"a": 2}}), "<think>so</think>\nno", written({"name": "sub", "arguments": {}})]  # fmt: skip
WORTH = [(1, 3.0), (1, 6 * 2 / 3 - 3), (0, -3.0), (1, -3.0)]  # s_max = 3: names, J(a), a's value


def test_toolrl_pays_form_and_correctness_and_compares_four() -> None:
    trace = traced("toolrl(steps=2)", CALLS, says=SAID, sampling={"max_tokens": 96})
    assert [len(g.rollouts) for s in trace.steps for g in s.groups] == [4] * 4
    for step, update in zip(trace.steps, trace.updates, strict=True):
        for r in step.rollouts:
            form, right = WORTH[SAID.index(r.text)]
            assert (r.rewards["form"], r.rewards["correct"], r.reward) == pytest.approx((form, right, form + right))
        assert not update.reference and 1 < update.optimiser_steps <= 4
        R = torch.tensor([r.reward for r in step.rollouts]).view(-1, 4)
        A = ((R - R.mean(1, keepdim=True)) / (R.std(1, keepdim=True) + 1e-4)).flatten()
        torch.testing.assert_close(update.batch["adv_BT"][:, 0], A)
        for p in update.passes[:1]:  # at the first update the ratio is 1: the pull is A / tokens / answers
            inside = p.rows
            share = update.batch["mask_BT"][inside] / update.batch["mask_BT"][inside].sum(-1, keepdim=True)
            want = A[inside, None] * share / len(inside)
            torch.testing.assert_close(p.pull["logp_BT"][inside], want, rtol=1e-3, atol=1e-6)
    asked = trace.samples[-1].prompts[0]
    assert "<tool_call>" in asked and '"adds"' in asked
    assert trace.phases[0].method.minibatches == 4 and trace.phases[0].method.terms == ()
    assert "accuracy_after" in trace.summary


def test_toolrl_with_its_schedule_its_length_and_the_kl_of_its_code() -> None:
    name = "toolrl(steps=2, schedule='smooth', length=True, kl=0.001, matching='greedy')"
    trace = traced(name, CALLS, says=SAID, sampling={"max_tokens": 96}, lr=0.05)
    for k, (step, update) in enumerate(zip(trace.steps, trace.updates, strict=True)):
        p = k / 150
        gap = ((update.batch["old_logp_BT"] - update.batch["ref_logp_BT"]) * update.batch["mask_BT"]).sum(-1)
        want = [
            (2 - p) * r.rewards["form"] + (2 + p) / 3 * r.rewards["correct"] + r.rewards["length"]
            for r in step.rollouts
        ]
        torch.testing.assert_close(
            update.batch["reward_BT"].sum(-1), torch.tensor(want) - 0.001 * gap, rtol=1e-4, atol=1e-4
        )
        assert update.reference == trace.updates[0].before
    parts = {p.name: p.defaults() for p in trace.phases[0].method.shaping}
    assert parts["kl-in-reward"]["coef"] == 0.001


def test_toolrl_pays_all_or_nothing_and_matches_as_it_is_told() -> None:
    trace = traced("toolrl(steps=1, grain='coarse')", CALLS, says=SAID, sampling={"max_tokens": 96})
    worth = {r.text: r.rewards["correct"] for s in trace.steps for r in s.rollouts}
    assert worth == {text: 3.0 if text == SAID[0] else -3.0 for text in worth} and len(worth) > 1
    # gold a=1 and a=1 b=2, said a=1 b=2 and a=1 c=5: the first gold is worth 1/2 + 1 with either. Gold by gold it takes the first, and the
    # second gold has 1/3 + 1 left: s = 1 + 3/2 + 4/3 = 23/6; the best way is 1 + 3/2 + 3 = 11/2, of s_max = 1 + 2 + 3
    gold, said = (
        [{"name": "add", "arguments": a} for a in some]
        for some in ([{"a": 1}, {"a": 1, "b": 2}], [{"a": 1, "b": 2}, {"a": 1, "c": 5}])
    )
    rows = [CALLS[0] | {"question": f"{k}?", "answer": gold} for k in range(12)]
    text = f"<think>so</think>\n<tool_call>\n{json.dumps(said[0])}\n{json.dumps(said[1])}\n</tool_call>"
    for matching, s in (("greedy", 23 / 6), ("best", 11 / 2)):
        plan = f"toolrl(steps=1, matching={matching!r})"
        trace = traced(plan, rows, says=[text], sampling={"max_tokens": 160}, positions=1024)
        assert all(r.rewards["correct"] == pytest.approx(s - 3) for r in trace.steps[0].rollouts)


def test_toolrl_refuses_rows_without_calls() -> None:
    with pytest.raises(UserError, match=r"no row of rows has one; give rows whose answer is a list of calls"):
        traced("toolrl(steps=1)")
    with pytest.raises(UserError, match="the arguments of add are an object"):
        traced("toolrl(steps=1)", [*CALLS, {"question": "x", "answer": [{"name": "add", "arguments": [1]}]}])
    with pytest.raises(UserError, match="'best' or 'greedy'"):
        traced("toolrl(steps=1, matching='any')", CALLS)


def even(prompt: Any, text: str) -> float:
    """A grade that both attempts can get and miss."""
    return float(sum(map(ord, text)) % 2 == 0)


def _earned(rollout: Any) -> list[float]:
    return [float(t.reward) for t in rollout.turns]


def test_score_self_correct_pays_the_second_attempt_then_its_improvement() -> None:
    trace = traced(
        "score-self-correct(first=2, second=2, n=4)", reward=even, lr=0.05, sampling={"max_tokens": 8}, prompts=3
    )
    assert trace.parts == ["policy->base", "self-correction-before", "stage-1", "stage-2", "self-correction-after"]
    assert {u.reference for u in trace.updates} == {trace.updates[0].before}  # the base in both stages
    assert [u.optimiser_steps for u in trace.updates] == [1] * 4
    for step, update in zip(trace.steps, trace.updates, strict=True):
        later = update.phase == "stage-2"
        turn_BT, own_BT = update.batch["turn_BT"], update.batch["mask_BT"] > 0
        gap_BT = (update.batch["old_logp_BT"] - update.batch["ref_logp_BT"]) * own_BT
        paid = []
        for b, r in enumerate(step.rollouts):
            assert [t.reward for t in r.turns] == [even(None, t.text) for t in r.turns] and len(r.turns) <= 2
            earned, ends = _earned(r), len(r.turns)
            r1, r2 = earned[0], earned[1] if ends == 2 else 0.0
            want = [r1 if later else 0.0, (r2 + 10 * (r2 - r1) if later else r2) if ends == 2 else 0.0]
            for k, beta in enumerate((0.01, 0.01) if later else (0.1, 0.0)):
                here = own_BT[b] & (turn_BT[b] == k)
                want[k] -= beta * float(gap_BT[b][here].sum())
            paid.append(want)
        assert any(len(r.turns) == 2 for r in step.rollouts)
        (only,) = update.passes
        for b, r in enumerate(step.rollouts):
            mates = [j for j in range(len(paid)) if j // 4 == b // 4 and j != b]
            for k in range(len(r.turns)):
                others = [paid[j][k] for j in mates if len(step.rollouts[j].turns) > k]
                A = paid[b][k] - (sum(others) / len(others) if others else 0.0)
                here = own_BT[b] & (turn_BT[b] == k)
                pull = only.pull["logp_BT"][b][here] * len(paid)
                torch.testing.assert_close(pull, torch.full_like(pull, A), rtol=1e-3, atol=1e-4)
    seen = trace.summary["self_correction_after"]
    assert seen["gain"] == pytest.approx(seen["attempt_2"] - seen["attempt_1"])


def test_score_self_correct_says_nothing_of_what_it_did_not_look_at() -> None:
    trace = traced(
        "score-self-correct(first=0, second=1, n=2)", reward=even, sampling={"max_tokens": 8}, eval_problems=0
    )
    assert not any("self_correction" in name for name in trace.summary) and {d.phase for d in trace.samples} == {
        "stage-2"
    }


def test_score_self_correct_refuses_what_has_turns_and_what_has_no_grade() -> None:
    with pytest.raises(UserError, match="has no gold answers"):
        traced("score-self-correct", [{"question": f"{k}?"} for k in range(4)])
    with pytest.raises(UserError, match="'own' grade, or for the 'total'"):
        traced("score-self-correct(credit='all')")
    with pytest.raises(UserError, match="second=0"):
        traced("score-self-correct(second=0)")


LOGGED = [
    {"question": f"{k}?", "answer": [{"name": "go", "arguments": {"a": k}}], "tools": [{"name": "go", "parameters": {"a": {}}}, {"name": "get"}]}
    for k in range(12)
]  # fmt: skip


def test_tl_training_weighs_what_decides_the_tool_then_grades_errors() -> None:
    trace = traced(
        "tl-training(sft_passes=0.2, ppo_passes=0.4)", LOGGED, says=["go(a=1)", "get()", "go(a=1, b=2)", "x"], lr=0.02, sampling={"max_tokens": 24}
    )  # fmt: skip
    assert [p.name for p in trace.phases] == ["sft", "ppo"]
    imitated = trace.of(phase="sft")[0]
    for row, weight in zip(imitated.rows, imitated.batch["reward_BT"], strict=True):
        n = len(row)  # g o ( a = k ) <end>: "go" and "get" part at the second letter, so 2 of n tokens are keys
        w = torch.ones(n)
        w[:2] = min((n - 2) / 2, 9.0)
        torch.testing.assert_close(weight[:n], w / w.mean())
    pull = imitated.passes[0].pull["logp_BT"]
    share = imitated.batch["reward_BT"] * imitated.batch["mask_BT"] / imitated.batch["mask_BT"].sum(-1, keepdim=True)
    torch.testing.assert_close(pull, share / len(imitated.rows), rtol=1e-4, atol=1e-6)
    worth = {"go(a=1)": (1.0, -0.25), "get()": (-1.5,), "go(a=1, b=2)": (-0.8,), "x": (-2.0,)}
    learned = trace.of(phase="ppo")
    for step, update in zip([s for s in trace.steps if s.phase == "ppo"], learned, strict=True):
        assert all(len(g.rollouts) == 1 for g in step.groups) and update.optimiser_steps == 1
        assert all(r.reward in worth[r.text] for r in step.rollouts)
        gap = (update.batch["old_logp_BT"] - update.batch["ref_logp_BT"]) * update.batch["mask_BT"]
        earned = torch.tensor([r.reward for r in step.rollouts])
        torch.testing.assert_close(update.batch["reward_BT"].sum(-1), earned - 0.4 * gap.sum(-1), rtol=1e-3, atol=1e-4)
        assert update.reference == learned[0].before
    method = trace.phases[1].method
    assert method.critic.pace == 0.5 and method.advantage.defaults()["whiten"] is False


def test_tl_training_leaves_failed_calls_out_of_both_phases_and_may_read_quoted_values_alone() -> None:
    """Every first call meets an error, every second one a result; both take a number, which the released code's reward does not see."""
    rows = []
    for k in range(12):
        said: list[dict[str, Any]] = [{"role": "user", "content": f"{k}?"}]
        for value, result in ((100 + k, "Response error: try again"), (k, "fine")):
            call = {"name": "go", "arguments": {"a": value}}
            said += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": result}]
        rows.append({"messages": [*said, {"role": "assistant", "content": "done"}], "tools": LOGGED[0]["tools"]})
    how: dict[str, Any] = {"says": ["go(a=999)"], "sampling": {"max_tokens": 24}}
    trace = traced("tl-training(sft_passes=0.5, ppo_passes=1, quoted=True)", rows, **how)
    asked = {p: {r.prompt.answer for s in trace.steps if s.phase == p for r in s.rollouts} for p in ("sft", "ppo")}
    assert "done" in asked["sft"] and "done" not in asked["ppo"], "a text is imitated, and no call to grade"
    failed = {json.dumps([{"name": "go", "arguments": {"a": 100 + k}}]) for k in range(12)}
    assert asked["ppo"] and not failed & (asked["sft"] | asked["ppo"])
    assert {r.reward for s in trace.steps if s.phase == "ppo" for r in s.rollouts} == {1.0}, "numbers are not compared"
    trace = traced("tl-training(sft_passes=0, ppo_passes=1, mask=False)", rows, **how)
    assert failed & {r.prompt.answer for s in trace.steps for r in s.rollouts}, "unless it is told not to"
    assert {r.reward for s in trace.steps for r in s.rollouts} == {-0.25}
    trace = traced("tl-training(sft_passes=0, ppo_passes=1, graded=False)", rows, **how)
    assert {r.reward for s in trace.steps for r in s.rollouts} == {-2.0}, "right, or not"


def test_tl_training_refuses_rows_without_calls_or_tools() -> None:
    with pytest.raises(UserError, match="it lists no tools"):
        traced("tl-training", [{k: v for k, v in r.items() if k != "tools"} for r in LOGGED])
    with pytest.raises(UserError, match="no turn of rows makes one"):
        traced("tl-training", [{**r, "answer": "a text"} for r in LOGGED])


GAME = f"{Path(__file__).parent / 'corridor.py'}:Corridor"


@pytest.mark.parametrize("algorithm", ["ppo", "rloo", "grpo"])
def test_the_guide_pays_turns_and_credits_each_algorithm_as_it_says(algorithm: str) -> None:
    n = 1 if algorithm == "ppo" else 4
    name = f"multi-turn-agentic-guide(steps=2, algorithm='{algorithm}', n={n if n > 1 else 0})"
    trace = traced(name, GAME, prompts=4, lr=0.05, sampling={"max_tokens": 6}, eval_problems=2)
    for step, update in zip(trace.steps, trace.updates, strict=True):
        assert [len(g.rollouts) for g in step.groups] == [n] * 4 and update.optimiser_steps == 1
        own_BT, gap_BT = update.batch["mask_BT"], update.batch["old_logp_BT"] - update.batch["ref_logp_BT"]
        price = {"ppo": 0.01, "rloo": 0.001, "grpo": 0.0}[algorithm]
        want_BT = -price * gap_BT * own_BT
        for b, r in enumerate(step.rollouts):
            earned = [float(right(t.text)) for t in r.turns]
            share = sum(earned) if sum(earned) == 2 else 2.0  # won: by what was earned; lost: by the most there is
            ends = [
                int((own_BT[b].bool() & (update.batch["turn_BT"][b] == k)).nonzero()[-1]) for k in range(len(earned))
            ]
            for k, x in zip(ends, earned, strict=True):
                want_BT[b, k] += x / share
            assert r.rewards["won"] == float(sum(earned) == 2)
        torch.testing.assert_close(update.batch["reward_BT"], want_BT, rtol=1e-3, atol=1e-5)
        R = want_BT.sum(-1)
        if algorithm == "rloo":
            others = (R.view(-1, n).sum(1, keepdim=True) - R.view(-1, n)) / (n - 1)
            A = (R.view(-1, n) - others).flatten()
            torch.testing.assert_close(update.batch["adv_BT"], A[:, None] * own_BT, rtol=1e-3, atol=1e-5)
            pull = update.passes[0].pull["logp_BT"]
            torch.testing.assert_close(pull, A[:, None] * own_BT / own_BT.sum(), rtol=2e-2, atol=1e-4)
    method = trace.phases[0].method
    if algorithm == "ppo":
        assert method.critic.pace == 10.0 and method.advantage.defaults()["lam"] == 1.0
    if algorithm == "grpo":
        assert method.terms[0].defaults()["coef"] == 0.01 and method.shaping == ()
    assert {d.how.temperature for d in trace.samples if d.phase} <= {0.7}
    assert trace.phases[0].loop.config.sampling.temperature == 0.7


def test_the_guide_single_reward_and_its_refusals() -> None:
    trace = traced("multi-turn-agentic-guide(steps=1, density='single')", GAME, prompts=4, sampling={"max_tokens": 6})
    for r in trace.steps[0].rollouts:
        assert [t.reward for t in r.turns][:-1] == [0.0] * (len(r.turns) - 1)
        assert r.turns[-1].reward == r.rewards["won"]
    with pytest.raises(UserError, match="plays episodes, and rows has single answers"):
        traced("multi-turn-agentic-guide(steps=1)")
    with pytest.raises(UserError, match="expected one of ppo, rloo, grpo"):
        traced("multi-turn-agentic-guide(algorithm='a2c')", GAME)
    with pytest.raises(UserError, match="2 episodes per game to compare"):
        traced("multi-turn-agentic-guide(algorithm='rloo', n=1)", GAME)


def test_the_guide_imitates_played_games_first(tmp_path: Path) -> None:
    file = tmp_path / "played.jsonl"
    turns = [{"role": "user", "content": "room 1?"}, {"role": "assistant", "content": "bb"}]
    rows = [{"messages": [{"role": "user", "content": f"game {k}"}, *turns[1:], *turns]} for k in range(12)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    name = f"multi-turn-agentic-guide(steps=1, demos={str(file)!r}, passes=2)"
    trace = traced(name, GAME, prompts=4, sampling={"max_tokens": 6}, eval_problems=0)
    assert [p.name for p in trace.phases] == ["sft", "ppo"]
    shown = [r for s in trace.steps if s.phase == "sft" for r in s.rollouts]
    assert {tuple(t.text for t in r.turns) for r in shown} == {("bb", "bb")} and len(shown) == 24, (
        "two passes over twelve games"
    )
    assert trace.of(phase="ppo")[0].before == trace.of(phase="sft")[-1].after


def test_the_most_that_a_game_gives_is_asked_where_the_game_does_not_say(tmp_path: Path) -> None:
    file = tmp_path / "quiet_corridor.py"
    file.write_text(
        "from tests.wiring import corridor\n\n\nclass Quiet(corridor.Corridor):\n    def prompt(self, index, split='train'):\n"
        "        found = super().prompt(index, split)\n        return type(found).text(found.id, found.last)\n"
    )
    name = "multi-turn-agentic-guide(steps=1, most=5)"
    trace = traced(name, f"{file}:Quiet", prompts=8, sampling={"max_tokens": 6}, eval_problems=0)
    lost = [r for r in trace.steps[0].rollouts if not r.rewards["won"]]
    assert any(right(t.text) for r in lost for t in r.turns)
    assert all(t.reward == (0.2 if right(t.text) else 0.0) for r in lost for t in r.turns), "1 / 5"


def test_archer_remembers_turns_and_teaches_the_policy_by_its_critic() -> None:
    trace = traced(
        "archer(iterations=1, warmup=1, episodes=4, critic=2, actor=1)",
        GAME,
        warmup=None,
        prompts=3,
        lr=0.02,
        sampling={"max_tokens": 6},
    )
    assert trace.parts == ["warm-play.1", "warm-critic.1", "play.1", "critic.1", "actor.1"]
    learned = trace.of("critic")
    assert [u.phase for u in learned] == ["warm-critic.1"] * 2 + ["critic.1"] * 2
    assert learned[0].before != learned[-1].after and learned[0].reference == learned[0].before
    assert learned[1].reference not in (learned[0].before, learned[1].before)  # the slow copy has followed by a tenth
    loops = {p.name: p.loop for p in trace.phases}
    assert loops["critic.1"].method.reference.defaults()["decay"] == pytest.approx(0.9)
    assert len(loops["critic.1"].env.rows) > len(loops["warm-critic.1"].env.rows) >= 4
    assert loops["critic.1"].env.rows[: len(loops["warm-critic.1"].env.rows)] == loops["warm-critic.1"].env.rows
    for step in (s for s in trace.steps if "critic" in s.phase):
        for g in step.groups:
            old, new = g.rollouts
            kept = g.prompt.info["remembered"]
            assert old.actions.tolist() == [*kept["action"], *kept["after"]] and int(old.mask_T.sum()) == len(
                kept["action"]
            )
            assert old.context.tolist() == new.context.tolist() == kept["state"]
            assert (old.reward, old.rewards["stored"], new.rewards["stored"]) == (kept["reward"], 1.0, 0.0)
    (taught,) = trace.of("policy")
    assert taught.before == trace.samples[0].weights and taught.after != taught.before  # it stood still in the warm-up
    assert not taught.reference and taught.optimiser_steps == 1
    assert (loops["critic.1"].config.lr, loops["actor.1"].config.lr) == (0.02, 0.01)  # the authors' 2e-5 and 1e-5
    critic, (step,) = trace.roles["critic"], [s for s in trace.steps if s.phase == "actor.1"]
    for b, r in enumerate(step.rollouts):
        with torch.no_grad():
            said = critic.forward([r])
        A = float(said["turn_q_BTK"][0, 0].min() - said["turn_v_BTK"][0, 0].min())
        assert r.reward == pytest.approx(A, abs=1e-5) and r.prompt.info["remembered"]["state"] == r.context.tolist()
        pull = taught.passes[0].pull["logp_BT"][b, : len(r)]
        torch.testing.assert_close(pull, torch.full_like(pull, A / 3), rtol=1e-3, atol=1e-6)
    assert len(trace.summary["returns"]) == 2


def test_archer_refuses_single_answers_and_bad_numbers() -> None:
    with pytest.raises(UserError, match="archer plays episodes, and rows has single answers"):
        traced("archer(iterations=1)", warmup=None)
    with pytest.raises(UserError, match="rate above 0"):
        traced("archer(rate=0)", GAME, warmup=None)


SUMS = [{"question": f"{a}+1=?", "answer": str(a + 1)} for a in range(12)]


def test_tgrl_tool_pays_outcome_and_form_and_drops_groups_that_agree() -> None:
    says = [
        "3",
        "3",
        "3",
        "<calculator>1+1</calculator>",
        r"<answer>\boxed{3}</answer>",
        "<answer>3</answer>",
        r"<answer>\boxed{4}</answer>",
    ]
    with patch.object(LanguagePolicy, "turns", lambda *_: None):
        trace = traced(
            "tgrl-tool(steps=2, n=2, tool='calculator')",
            SUMS,
            says=says,
            sampling={"max_tokens": 40},
            prompts=6,
            positions=4096,
        )
    seen = set()
    for step, update in zip(trace.steps, trace.updates, strict=True):
        for r in step.rollouts:
            last = r.turns[-1].text
            right = "boxed" in last and last.partition("{")[2].partition("}")[0] == r.prompt.answer
            outcome = 0.0 if "boxed" not in last else 1.0 if right else -1.0
            clean = "boxed" in last and all("boxed" in t.text or "calculator" in t.text for t in r.turns)
            assert (r.rewards["outcome"], r.rewards["form"]) == (outcome, 1.0 if clean else -1.0)
            assert r.total == outcome + r.rewards["form"]
            seen.add(r.total)
        kept = [g for g in step.groups if len({r.total for r in g.rollouts}) > 1]
        assert [g.prompt.id for g in step.kept] == [g.prompt.id for g in kept]
        R = torch.tensor([[r.total for r in g.rollouts] for g in kept])
        A = (R - R.mean(1, keepdim=True)).flatten()
        own = update.batch["mask_BT"]
        torch.testing.assert_close(update.batch["adv_BT"], A[:, None] * own)
        torch.testing.assert_close(update.passes[0].pull["logp_BT"], A[:, None] * own / own.sum(), rtol=1e-3, atol=1e-6)
        assert not update.reference
    assert len(seen) > 1 and any(
        t.observation.tokens.numel() for s in trace.steps for r in s.rollouts for t in r.turns[1:]
    )
    assert any(len(s.kept) < len(s.groups) for s in trace.steps), "no group agreed, so nothing was seen to be left out"
    asked = trace.samples[0].prompts[0]
    assert '"calculator"' in asked and "then call answer with" in asked


def test_tgrl_tool_refuses_tasks_without_gold_and_tools_it_does_not_have() -> None:
    with pytest.raises(UserError, match="has no gold answers"):
        traced("tgrl-tool(steps=1, tool='calculator')", [{"question": f"{k}?"} for k in range(4)])
    with pytest.raises(UserError, match="expected python"):
        traced("tgrl-tool(steps=1, tool='browser')")


def test_the_form_of_tgrl_weighs_what_it_is_told() -> None:
    with patch.object(LanguagePolicy, "turns", lambda *_: None):
        says = [r"<answer>\boxed{3}</answer>", "3"]
        name = "tgrl-tool(steps=1, n=2, tool='calculator', form=0.25, mixed=False)"
        trace = traced(name, SUMS, says=says, sampling={"max_tokens": 40}, positions=4096)
    for r in trace.steps[0].rollouts:
        assert r.total == r.rewards["outcome"] + 0.25 * r.rewards["form"]
    assert {r.rewards["form"] for r in trace.steps[0].rollouts} == {1.0, -1.0}


def test_tgrl_ends_after_so_many_turns() -> None:
    with patch.object(LanguagePolicy, "turns", lambda *_: None):
        name, says = (
            "tgrl-tool(steps=1, n=2, tool='calculator', max_turns=2, mixed=False)",
            ["<calculator>1+1</calculator>"],
        )
        trace = traced(name, SUMS, says=says, sampling={"max_tokens": 40}, positions=4096)
    assert {len(r.turns) for r in trace.steps[0].rollouts} == {2}
