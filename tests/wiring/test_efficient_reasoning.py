"""The systems of efficient reasoning as `posttrain run` builds them: what sets each apart, on a tiny language model."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from posttrain.core.answers import final_answer
from posttrain.core.errors import UserError
from posttrain.core.thinking import thought_of
from posttrain.rewards.runtime import score
from tests.policies.thinkers import TEMPLATES
from tests.wiring import spies
from tests.wiring.spies import ROWS, traced

THINKING = ["<think>a</think>3", "<think></think>3", "3", "<think>\n...\n</think>0"]


@contextmanager
def template(name: str, folder: Path) -> Iterator[None]:
    """The tiny model with the chat template of a real one."""
    shutil.copytree(spies.tiny_folder(), folder / name)
    (folder / name / "chat_template.jinja").write_text((TEMPLATES / f"{name}.jinja").read_text())
    with patch.object(spies, "tiny_folder", lambda positions=0: str(folder / name)):
        yield


def worth(trace: Any, phase: str) -> list[tuple[str, float, float]]:
    """(text, what the reward said, what the advantage saw) of the answers of a phase."""
    step = next(s for s in trace.steps if s.phase == phase)
    update = trace.of(phase=phase)[0]
    seen = update.batch["reward_BT"].sum(-1).tolist()
    rollouts = [r for g in step.kept or step.groups for r in g.rollouts]
    return [(r.text, r.rewards["right"], x) for r, x in zip(rollouts, seen, strict=True)]


def right(prompt: Any, text: str) -> float:
    return float("3" in (final_answer(text) or ""))


def test_autothink_pays_by_the_mode_and_begins_with_the_ellipsis(tmp_path: Path) -> None:
    """Under R1-Distill's template: the prompt ends in an open thought of dots, what closes it at once did not think."""
    with template("deepseek_r1_distill", tmp_path):
        says = ["</think>3", "so</think>3", "</think>0", "so 3"]
        trace = traced("autothink(balance=1, both=1, prune=1)", reward=right, says=says, num_generations=4)
    assert [p.name for p in trace.phases] == ["balance", "both", "prune"] and len(trace.calls) == 3 * 8
    assert all(p.endswith("<think>\n...\n") for s in trace.samples for p in s.prompts)  # measured so too
    assert all(str(c.args[1]).startswith("<think>\n...\n") for c in trace.calls)
    paid = {(text.removeprefix("<think>\n...\n"), x) for text, _, x in worth(trace, "both")}
    # at once: 2 when right, -1 when wrong; after a thought 1 and 0; a thought that was cut off is wrong, whatever it says
    assert paid == {("</think>3", 2.0), ("so</think>3", 1.0), ("</think>0", -1.0), ("so 3", 0.0)}
    assert {x for _, _, x in worth(trace, "balance")} == {2.0, 1.0, -1.0, 0.0}  # half of them thought: in balance
    # of the two right answers of a group the shorter one earns exp(-.05 y) - 1 more than its 2, y = -1/sqrt 2: +.036
    assert {round(x, 3) for text, _, x in worth(trace, "prune") if text.endswith("</think>3")} == {2.036, 0.965}
    first = trace.of(phase="both")[0]
    assert first.optimiser_steps == 2 and "ref_logp_BT" not in first.batch
    for update in (
        trace.updates
    ):  # a mean over tokens: on policy a token is pulled by its credit over the tokens of the pass, however long
        live, own_BT = update.passes[0], update.batch["mask_BT"]
        mine_BT = torch.zeros_like(own_BT)
        mine_BT[live.rows] = own_BT[live.rows]
        due_BT = update.batch["adv_BT"] * mine_BT / mine_BT.sum()
        assert len(set(own_BT.sum(-1).tolist())) > 1
        torch.testing.assert_close(live.pull["logp_BT"], due_BT, rtol=1e-3, atol=1e-6)


def test_autothink_leaves_a_model_without_thoughts_its_own_way() -> None:
    trace = traced("autothink(balance=1, both=0, prune=0)", reward=right, says=THINKING, num_generations=4)
    assert not any("..." in p for s in trace.samples for p in s.prompts)
    assert {r.rewards["thinks"] for s in trace.steps for r in s.rollouts} == {0.0, 1.0}
    told = traced(
        "autothink(balance=1, both=0, prune=0)", reward=right, says=THINKING, prefill="So ", num_generations=4
    )
    assert all(str(c.args[1]).startswith("So ") for c in told.calls)


@pytest.mark.parametrize(("says", "share", "told"), [
    (["<think>a</think>3", "<think>b</think>0"], 1.0, "every answer thought"), (["3", "0"], 0.0, "every answer answered without"),
    (THINKING, 0.25, ""),
])  # fmt: skip
def test_autothink_says_when_there_was_only_one_mode(
    says: list[str], share: float, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    score._said.clear()
    how: dict[str, Any] = {"reward": right, "says": says, "num_generations": 4, "sampling": {"max_tokens": 24}}
    trace = traced("autothink(balance=1, both=1, prune=0)", **how)
    assert trace.summary["thinks"] == {"balance": share, "both": share}
    said = capsys.readouterr().err
    assert (
        (told in said and "in the stage 'balance'" in said and "--prefill" in said)
        if told
        else "in the stage" not in said
    )


LABELLED = [
    row | {"cot": i % 2 == 0} | ({"steps": f"{row['question']} is easy"} if i % 2 == 0 else {})
    for i, row in enumerate(ROWS)
]


def test_adacot_on_rows_that_say_who_needs_a_thought() -> None:
    how: dict[str, Any] = {"num_generations": 4, "prompts": 4, "sampling": {"max_tokens": 16}}
    trace = traced("adacot(warmup=1, skewed=1, mixed=1)", rows=LABELLED, reward=right, says=THINKING, **how)
    assert [p.name for p in trace.phases] == ["sft", "skewed", "mixed"]
    sft, skewed, mixed = trace.steps
    for r in sft.rollouts:
        assert thought_of(r.text).empty is not r.prompt.info["cot"] and thought_of(r.text).closed
    assert all(g.prompt.info["cot"] for g in skewed.groups) and len({g.prompt.info["cot"] for g in mixed.groups}) == 2
    for r in mixed.rollouts:  # what the user's reward says, and a penalty for the mode: .3 missing, .1 too many
        cot, thought = r.prompt.info["cot"], r.text == THINKING[0]
        assert r.rewards["adacot"] == pytest.approx(-0.3 * (cot and not thought) - 0.1 * (not cot and thought))
        assert r.reward == pytest.approx(r.rewards["right"] + r.rewards["adacot"])
    adv_BT, part_BT = trace.of(phase="skewed")[0].batch["adv_BT"], trace.of(phase="skewed")[0].batch["thought_BT"]
    decides = [(row > 0).nonzero()[0].item() for row in part_BT if (row > 0).any()]
    rows = [b for b, row in enumerate(part_BT) if (row > 0).any()]
    assert rows and all(adv_BT[b, t] == 0 and (adv_BT[b] != 0).any() for b, t in zip(rows, decides, strict=True))
    free = trace.of(phase="mixed")[0].batch["adv_BT"]
    assert "thought_BT" not in trace.of(phase="mixed")[0].batch and bool((free[:, 1] != 0).any())


def test_adacot_sweeps_its_penalties_from_one_imitation() -> None:
    points = "adacot(warmup=1, skewed=0, mixed=1, points=((0.0, 1.0), (1.0, 0.0)))"
    trace = traced(points, rows=LABELLED, says=THINKING, num_generations=4, prompts=4)
    assert [p.name for p in trace.phases] == ["sft", "mixed-1", "mixed-2"]
    assert [p.role for p in trace.phases] == ["policy", "point1", "point2"]
    starts = [u.before for u in trace.updates if u.phase.startswith("mixed")]
    assert len(set(starts)) == 1 and starts[0] == trace.of(phase="sft")[-1].after
    frontier = trace.summary["frontier"]
    assert [(f["miss"], f["over"]) for f in frontier] == [(0.0, 1.0), (1.0, 0.0)] and all(
        "thinks" in f for f in frontier
    )


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("adacot", ROWS, "give its rows a column 'cot' of true and false, or name yours: --plan.label"),
        ("adacot", [r | {"cot": "perhaps"} for r in ROWS], "cot is 'perhaps'; it says whether"),
        ("adacot", [r | {"cot": True} for r in ROWS], "no thoughts to imitate, or all .* --plan.warmup 0"),
        ("adacot(warmup=0, points=((0.1,),))", LABELLED, r"each \(a number, a number\)"),
    ],
)
def test_adacot_says_what_is_missing(name: str, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        traced(name, rows=rows, says=THINKING)


def test_siri_cuts_by_its_cycle() -> None:
    trace = traced("siri", steps=6, num_generations=4, sampling={"max_tokens": 6}, reward=lambda p, t: float(len(t)))
    limits = [s.how.max_tokens for s in trace.samples if s.phase]
    assert limits == [6, 3, 6, 3, 6, 3]  # three cycles of two steps
    assert all(len(r) <= most for s, most in zip(trace.steps, limits, strict=True) for r in s.rollouts)
    for step, update in zip(
        [s for s in trace.steps if s.kept], trace.updates, strict=True
    ):  # length itself costs nothing
        earned = torch.tensor([r.reward for g in step.kept for r in g.rollouts])
        torch.testing.assert_close(update.batch["reward_BT"].sum(-1), earned)


def test_laser_takes_its_lengths_from_the_run() -> None:
    says = ["3", "3333", "0"]
    trace = traced("laser", reward=right, says=says, num_generations=3, sampling={"max_tokens": 8}, steps=1)
    (update,) = trace.updates
    paid = dict(zip((r.text for r in trace.steps[0].rollouts), update.batch["reward_BT"].sum(-1).tolist(), strict=True))
    assert paid == {"3": 1.5, "3333": 1.0, "0": 0.0}  # the target is a quarter of 8 (an end token is one)
    assert update.optimiser_steps == 2 and "ref_logp_BT" in update.batch
    method = trace.phases[0].method
    assert method.loss.defaults()["high"] == 0.28 and [t.defaults()["coef"] for t in method.terms] == [0.001, 0.001]


@pytest.mark.parametrize("name", ["laser-d", "laser-de"])
def test_laser_d_watches_questions_that_it_does_not_learn_from(name: str) -> None:
    rollout = f"{name}(rollout='laser_d(every=2)')"
    trace = traced(
        rollout,
        reward=right,
        says=["3", "30", "3333", "000000"],
        num_generations=4,
        steps=3,
        sampling={"max_tokens": 8},
    )
    watched = [sum(bool(g.prompt.info.get("monitor")) for g in s.groups) for s in trace.steps]
    assert watched[0] > 2 and watched[1] == 0 and watched[2] > 2
    assert not any(g.prompt.info.get("monitor") for s in trace.steps for g in s.kept)
    assert all(len(u.rows) == 8 for u in trace.updates)
    for step, update in zip(trace.steps, trace.updates, strict=True):
        rollouts = [r for g in step.kept for r in g.rollouts]
        for r, paid in zip(rollouts, update.batch["reward_BT"].sum(-1).tolist(), strict=True):
            within, good = len(r) <= r.rewards["target"], r.reward > 0.5
            bonus = within if good else name == "laser-de" and not within  # LASER-DE lets what is wrong go on
            assert paid == r.reward + 0.5 * bonus
    wrong = [r for s in trace.steps for g in s.kept for r in g.rollouts if r.reward < 0.5]
    assert any(len(r) > r.rewards["target"] for r in wrong)
    assert {r.rewards["target"] for s in trace.steps for g in s.kept for r in g.rollouts} <= {
        2.0,
        3.0,
        4.0,
        5.0,
        6.0,
        7.0,
        8.0,
    }


def test_long_cot_pays_by_the_window_of_the_run() -> None:
    says = ["3", "3333", "33333333333333", "0"]
    trace = traced("demystify-long-cot", reward=right, says=says, steps=1, sampling={"max_tokens": 16}, prompts=1)
    assert len(trace.steps[0].rollouts) == 16
    method = trace.phases[0].method
    shaped = trace.phases[0].loop.shaping
    assert [p.name for p in shaped] == ["cosine-length", "repeats", "kl-in-reward"] and shaped[0].defaults()[
        "longest"
    ] == 16
    assert method.advantage.defaults()["lam"] == 1.0 and shaped[2].defaults()["coef"] == 0.01
    update = trace.updates[0]
    got = {
        r.text: round(x, 3)
        for r, x in zip(trace.steps[0].rollouts, update.batch["reward_BT"].sum(-1).tolist(), strict=True)
    }
    n = next(len(r) for r in trace.steps[0].rollouts if r.text == "3")
    assert got["3"] == pytest.approx(1 + 0.5 * (1 + math.cos(math.pi * n / 16)), abs=2e-3)  # plus no KL: on policy
    assert got["33333333333333"] == pytest.approx(-10.0, abs=2e-3)  # within a quarter of the window (16 of 64 or more)
    assert "old_value_BT" in update.batch


def test_open_rs_adds_the_cosine_of_its_reward_and_the_form_of_r1(tmp_path: Path) -> None:
    says = ["\n</think>\n3", "</think>3", "\n</think>\n0", "3"]
    rows = [r | {"difficulty": i % 4} for i, r in enumerate(ROWS)]
    with template("deepseek_r1_distill", tmp_path):
        trace = traced("open-rs(rounds=2, steps=1)", rows=rows, reward=right, says=says, sampling={"max_tokens": 32})
    assert len(trace.steps) == 2 and len(trace.steps[0].groups[0].rollouts) == 6 and len(trace.calls) >= 24
    step, update = trace.steps[0], trace.updates[0]
    for r, x in zip(step.rollouts, update.batch["reward_BT"].sum(-1).tolist(), strict=True):
        assert r.rewards["right"] == right(None, r.text) and r.rewards["form"] == float("\n</think>\n" in r.text)
        c = (1 if r.rewards["right"] > 0.5 else -1) * (0.75 + 0.25 * math.cos(math.pi * len(r) / 32))
        assert x == pytest.approx(2 * c + r.rewards["form"], abs=1e-5)
    assert len({g.prompt.info["difficulty"] >= 2 for s in trace.steps for g in s.groups}) == 2
    assert list(trace.summary["accuracy"]) == ["step 1", "step 2"] and trace.summary["best_round"] in (
        "step 1",
        "step 2",
    )


def test_open_rs_without_the_cosine_pays_for_right_and_for_the_form() -> None:
    says = ["\n</think>\n3", "</think>3", "\n</think>\n0", "3"]
    trace = traced("open-rs(rounds=1, steps=2, cosine=False)", reward=right, says=says, sampling={"max_tokens": 32})
    assert list(trace.summary["accuracy"]) == ["step 2"], "after a round, not after a step"
    for r, x in zip(trace.steps[0].rollouts, trace.updates[0].batch["reward_BT"].sum(-1).tolist(), strict=True):
        assert x == right(None, r.text) + float("\n</think>\n" in r.text)


def test_grpo_lambda_pays_the_best_fifth_for_being_short() -> None:
    says = ["3", "3333", "3", "0", "3", "0", "0", "0"]
    trace = traced("grpo-lambda", reward=right, says=says, num_generations=4, steps=1, prompts=2)
    update = trace.updates[0]
    paid = update.batch["reward_BT"].sum(-1)
    rate = [sum(r.reward for r in g.rollouts) for g in trace.steps[0].groups]
    best = rate.index(max(rate))
    plain = torch.tensor([r.reward for r in trace.steps[0].rollouts])
    changed = (paid - plain).abs() > 1e-6
    assert changed.view(2, 4)[best].sum() == max(rate) and not changed.view(2, 4)[1 - best].any()
