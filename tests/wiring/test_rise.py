"""RISE, as registered: who answers at which state, which answers are learned with what weight, what a round begins with."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import posttrain as pt
from posttrain.core.batch import Batch
from posttrain.core.types import Prompt, Rollout
from posttrain.systems.supervised_from_reward import rise
from posttrain.systems.supervised_from_reward.rise import AGAIN, KEEP, Trial, exp_reward, in_turns, unrolled
from tests.wiring import formulas as f
from tests.wiring.spies import ROWS, tiny_folder, traced
from tests.wiring.trace import Trace

PROMPT = Prompt.text("q", "2+2=?", "4")


def answers(*said: tuple[str, float]) -> list[Rollout]:
    none = torch.zeros(0)
    return [Rollout.single(PROMPT, none.long(), none.long(), none, text=text, reward=r) for text, r in said]


class Script:
    """Scored answers by turn; keeps what was asked of whom."""

    def __init__(self, *turns: list[Rollout]) -> None:
        self.turns, self.asked = turns, list[tuple[str, Any, int]]()

    def __call__(self, prompts: Sequence[Prompt], who: Any, n: int, turn: int) -> list[list[Rollout]]:
        self.asked += [(" | ".join(str(m["content"]) for m in p.content), who, n) for p in prompts]
        return [self.turns[turn][:n] for _ in prompts]


# ---- the parts


@pytest.mark.derived("advantage/exp-reward")
def test_a_right_answer_counts_twelve_times_a_wrong_one() -> None:
    # A = exp(R / 0.4): exp(2.5) = 12.182494 for R = 1, 1 for R = 0, exp(-2.5) = 0.082085 for R = -1; at tau = 1: e
    logp = torch.tensor([[-1.0, -2.0], [-1.0, 0.0], [-3.0, -3.0]], requires_grad=True)
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    reward = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, -1.0]])
    batch = Batch(logp_BT=logp, mask_BT=mask, reward_BT=reward)
    want = torch.tensor([[12.182494, 12.182494], [1.0, 0.0], [0.082085, 0.082085]])
    torch.testing.assert_close(exp_reward(batch), want, atol=1e-5, rtol=0)
    torch.testing.assert_close(exp_reward(batch, tau=1.0)[0, 0].item(), math.e, atol=1e-5, rtol=0)
    # the loss: mean over answers of the mean over tokens; d/dlogp = -A / (3 x length)
    method = rise.weighted(0.4)
    made = batch.but(adv_BT=exp_reward(batch))
    from posttrain.losses.aggregate import Totals

    loss = method.aggregate(method.loss(made), made, Totals.of(made))
    loss.backward()
    # (12.182494 x 1.5 + 1 x 1 + 0.082085 x 3) / 3 = 6.506665
    torch.testing.assert_close(loss.item(), 6.506665, atol=1e-5, rtol=0)
    grad = torch.tensor([[-2.030416, -2.030416], [-0.333333, 0.0], [-0.013681, -0.013681]])
    torch.testing.assert_close(logp.grad, grad, atol=1e-5, rtol=0)


def test_filters() -> None:
    """The authors' four: rewards before, then the new one."""
    cases = {(): 0.0, (0.0,): 0.0, (0.5,): 0.7, (0.7, 0.2): 0.5, (0.2,): 1.0}
    kept = {name: [keep(r, before) for before, r in cases.items()] for name, keep in KEEP.items()}
    assert kept == {
        "all": [True] * 5,
        "better": [True, False, True, True, True],
        "best": [True, True, True, False, True],
        "success": [False, False, False, False, True],
    }


def test_the_best_of_n_is_learned_and_the_own_answer_is_gone_on_from() -> None:
    script = Script(answers(("5", 0.0)), answers(("6", 0.0), ("4", 1.0), ("7", 0.5)), answers(("8", 0.0), ("9", 0.2)))
    rows = unrolled([Trial(PROMPT)], 3, 3, "all", script)
    assert [(r["said"], r["answers"][0]["text"], r["answers"][0]["reward"]) for r in rows] == [
        ([], "5", 0.0), (["5"], "4", 1.0), (["5", "6"], "9", 0.2),
    ]  # fmt: skip
    assert script.asked[2][0] == f"2+2=? | 5 | {AGAIN} | 6 | {AGAIN}" and [n for *_, n in script.asked] == [1, 3, 3]


def test_the_filter_sees_what_the_trial_earned_so_far() -> None:
    """Rewards 0.5, then 0.4, then 0.6 of the best, while the own answers earn 0.5, 0.2: 0.4 is no better than 0.5, 0.6 than 0.2 and 0.5."""
    turns = answers(("5", 0.5)), answers(("6", 0.2), ("7", 0.4)), answers(("8", 0.1), ("9", 0.6))
    for keep in ("better", "best"):
        rows = unrolled([Trial(PROMPT)], 3, 2, keep, Script(*turns))
        assert [r["turn"] for r in rows] == [0, 2]


def test_a_trial_ends_where_its_own_answer_is_right() -> None:
    script = Script(answers(("4", 1.0)), answers(("6", 0.0)))
    assert [r["turn"] for r in unrolled([Trial(PROMPT)], 2, 1, "all", script)] == [0] and len(script.asked) == 1


def test_a_teacher_answers_and_the_policy_leads() -> None:
    script = Script(answers(("5", 0.0)), answers(("6", 0.0), ("4", 1.0)), answers(("7", 0.0), ("4", 1.0)))
    unrolled([Trial(PROMPT)], 3, 2, "all", script, teacher="it")
    assert [(who, n) for _, who, n in script.asked] == [(None, 1), ("it", 2), (None, 1), ("it", 2)]


def test_what_was_said_before_is_not_learned_again() -> None:
    script = Script(answers(("5", 0.0)), answers((" 5 ", 0.0)))
    assert len(unrolled([Trial(PROMPT)], 2, 1, "all", script)) == 1


def test_majority_over_turns_sees_the_last_answer_only() -> None:
    right = {"4": 1.0, "5": 0.0, "6": 0.0}
    says = ["5", "4", "4", "6", "4"]
    seen: list[int] = []

    def drawn(prompts: Sequence[Prompt], who: Any, n: int, turn: int) -> list[list[Rollout]]:
        seen.append(sum(m["content"] == AGAIN for m in prompts[0].content))
        some = [says[turn - 5]] if n == 1 else ["5", "5", "4", "5", "6"]
        return [answers(*((t, right[t]) for t in some)) for _ in prompts]

    found = in_turns([Trial(PROMPT)], drawn)
    assert [found[f"turn_{k}"] for k in range(1, 6)] == [0.0, 1.0, 1.0, 0.0, 1.0] and seen == [0, 1, 1, 1, 1, 0]
    assert (found["majority_of_turns"], found["best_of_turns"], found["majority_at_once"]) == (1.0, 1.0, 0.0)


# ---- on the registered plan


def run(options: str = "", **more: Any) -> Trace:
    return traced(f"rise({options})", ROWS[:8], f.worth, num_generations=3, lr=0.02, **more)


def test_rounds_learn_all_rows_so_far_from_the_start() -> None:
    trace = run("epochs=0.5")
    assert trace.parts == [
        "policy->base", "turns-before", "collect.1", "refit.1", "learn.1", "collect.2", "refit.2", "learn.2", "turns-after",
    ]  # fmt: skip
    one, two = trace.of(phase="learn.1"), trace.of(phase="learn.2")
    assert one[0].before == two[0].before != one[-1].after, "each round refits the start"
    drawn = [d for d in trace.samples if d.phase == "collect.2"]
    assert {d.weights for d in drawn} == {one[-1].after}, "and the last round's policy answers"
    rounds = trace.summary["collected"]
    sizes = [sum(turn["rows"] for turn in turns) for turns in rounds]
    assert len(two) == max(1, round(0.5 * sum(sizes) / 2)) and len(rounds) == 2
    assert {"turn_1", "turn_5", "majority_of_turns", "majority_at_once"} <= set(trace.summary["turns_after"])


def test_every_row_is_weighed_by_what_it_earned() -> None:
    trace = run("rounds=1, epochs=2")
    first = [d for d in trace.samples if d.phase == "collect.1"]
    assert AGAIN not in first[0].prompts[0] and all(AGAIN in p for p in first[1].prompts)
    assert len(first[0].texts) == len(first[0].prompts) and len(first[1].texts) == 3 * len(first[1].prompts)
    wrong = [t for t in first[0].texts if not f.worth(None, t)]
    assert len(first[1].prompts) == len(wrong), "a right answer ends its trial"
    learned = {r.text for s in trace.steps for r in s.rollouts}
    assert learned <= {t for d in first for t in d.texts}
    weights = set()
    for made in trace.updates:
        (only,) = made.passes
        worth_B = torch.tensor([f.worth(None, row.text) for row in made.rows])
        want = torch.exp(worth_B / 0.4)[:, None] * f.mean("answers", only)
        torch.testing.assert_close(only.pull["logp_BT"], want)
        weights |= set(worth_B.tolist())
    assert weights == {0.0, 1.0}


def test_unpooled_rounds_go_on_from_the_last() -> None:
    trace = run("pooled=False, epochs=0.5")
    one, two = trace.of(phase="learn.1"), trace.of(phase="learn.2")
    assert two[0].before == one[-1].after and "refit.1" not in trace.parts
    second = {t for d in trace.samples if d.phase == "collect.2" for t in d.texts}
    assert {r.text for s in trace.steps if s.phase == "learn.2" for r in s.rollouts} <= second


def test_only_success_is_learned_where_it_is_asked_for() -> None:
    trace = run("rounds=1, keep='success'")
    assert all(f.worth(None, r.text) for s in trace.steps for r in s.rollouts)


def test_bad_options_are_said() -> None:
    with pytest.raises(pt.UserError, match="way to choose answers"):
        run("keep='bettr'")
    with pytest.raises(pt.UserError, match="above 0"):
        run("tau=0")
    with pytest.raises(pt.UserError, match="turns of its own"):
        traced("rise", "number_guess")


def test_a_run_that_was_killed_ends_the_same(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(r) + "\n" for r in ROWS[:10]))
    asked: dict[str, Any] = {
        "method": "rise(epochs=1)", "task": str(rows), "model": tiny_folder(), "prompts": 2, "threads": 1, "num_generations": 2,
        "eval_problems": 1, "save_every": 1, "warmup": 0, "lr": 3e-3, "sampling": {"max_tokens": 6},
    }  # fmt: skip

    class Kill:
        def on_step(self, loop: Any, step: int, metrics: Any) -> None:
            if loop.phase == "learn.2" and step == 1:
                raise KeyboardInterrupt

    whole = pt.run(name="whole", runs=tmp_path, **asked)
    with pytest.raises(KeyboardInterrupt):
        pt.run(name="killed", runs=tmp_path, callbacks=(Kill(),), **asked)
    again = pt.run(name="killed", runs=tmp_path, **asked)
    assert again["collected"] == whole["collected"] and again["turns_after"] == whole["turns_after"]
    last = [sorted((tmp_path / n / "checkpoints").glob("learn.2-*"))[-1] for n in ("whole", "killed")]
    one, two = ({k: x for f in path.glob("*.safetensors") for k, x in load_file(f).items()} for path in last)
    assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
