"""A-LoL as registered: whose answers tell values, which rows are left, how often they come and how hard they pull."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from tests.wiring.spies import tiny_folder, traced

WORTH = {"aaa": 0.9, "bb": 0.6, "c": 0.1}
LOG = [{"prompt": f"say {i}", "response": text, "reward": w} for i in range(40) for text, w in WORTH.items()]


def judged(prompt: Any, text: str) -> float:
    return WORTH.get(text, 0.3)


def test_a_lol_learns_from_answers_above_the_value_alone() -> None:
    trace = traced("a-lol(epochs=0.5)", rows=LOG, prompts=4, lr=0.02)
    assert trace.parts == ["values", "a-lol"] and not trace.calls
    assert not [d for d in trace.samples if d.phase == "values"], (
        "no reward is named, so the log's own answers tell values"
    )
    assert 0 < trace.summary["share_kept"] < 1
    first = trace.updates[0]
    for step, made in zip(trace.steps, trace.updates, strict=True):
        (only,) = made.passes
        assert made.reference == first.before and made.optimiser_steps == 1
        own_BT = made.batch["mask_BT"]
        moved_B = ((only.batch["logp_BT"] - made.batch["ref_logp_BT"]) * own_BT).sum(-1)
        rho_B = moved_B.exp().clamp(0.1, 1.9)
        adv_B = torch.tensor([r.reward for r in step.rollouts])
        assert (adv_B > 0).all() and all(r.text in WORTH for r in step.rollouts)
        value_B = torch.tensor([WORTH[r.text] for r in step.rollouts]) - adv_B
        assert float(value_B.max()) < 0.9 and float(value_B.min()) > 0.2, "a value near the mean, 0.53"
        want_BT = (adv_B * rho_B).unsqueeze(-1) * own_BT / len(adv_B)
        torch.testing.assert_close(only.pull["logp_BT"], want_BT, rtol=1e-4, atol=1e-6)
    assert {r.text for s in trace.steps for r in s.rollouts} <= {"aaa", "bb"}
    often = [r.text for s in trace.steps for r in s.rollouts]
    assert often.count("aaa") > 2 * often.count("bb"), "0.37 against 0.07 of advantage"


def test_with_a_reward_the_references_own_answers_tell_values() -> None:
    trace = traced("a-lol(epochs=0.2)", rows=LOG, reward=judged)
    asked = {c.args[1] for c in trace.calls if c.phase == "values"}
    made = [d for d in trace.samples if d.phase == "values"]
    assert made and asked >= {t for d in made for t in d.texts} and asked >= set(WORTH)
    held_out = {p for d in made for p in d.prompts}
    learned = {r.prompt.last for s in trace.steps for r in s.rollouts}
    assert not held_out & learned, "values are learned on held-out prompts"


@pytest.mark.parametrize("variant", ["a-lol", "r-lol"])
def test_a_reward_that_fails_on_all_answers_is_told_with_its_words(variant: str) -> None:
    def fails(prompt: Any, text: str) -> float:
        raise ValueError("no idea")

    with pytest.raises(pt.UserError, match=r"not one of .* answers could be scored.*no idea"):
        traced(f"a-lol(variant={variant!r})", rows=LOG, reward=fails)


def test_r_lol_keeps_every_row_and_no_value() -> None:
    trace = traced("a-lol(variant='r-lol', epochs=0.3)", rows=LOG, prompts=6)
    assert trace.summary["share_kept"] == 1 and "value_error" not in trace.summary
    assert all(r.reward == WORTH[r.text] for s in trace.steps for r in s.rollouts)


@pytest.mark.parametrize("variant", ["a-lol", "r-lol"])
def test_as_many_updates_as_are_asked_for_whatever_is_kept(variant: str) -> None:
    trace = traced(f"a-lol(variant={variant!r}, steps=3)", rows=LOG, prompts=6)
    assert [u.optimiser_steps for u in trace.updates] == [1, 1, 1]


def test_scores_go_through_a_sigmoid_where_it_is_asked_for() -> None:
    trace = traced("a-lol(variant='r-lol', sigmoid=True, epochs=0.2)", rows=LOG, prompts=6)
    for r in (r for s in trace.steps for r in s.rollouts):
        assert r.reward == pytest.approx(1 / (1 + math.exp(-WORTH[r.text])))


def test_without_priority_kept_rows_come_once_a_pass() -> None:
    trace = traced("a-lol(priority=False)", rows=LOG, prompts=6)
    came = [r for s in trace.steps for r in s.rollouts]
    assert len({r.prompt.id for r in came}) == len(came) and all(r.reward > 0 for r in came)
    assert {r.text for r in came} == {"aaa", "bb"}


def test_a_warm_up_imitates_the_whole_log_and_is_the_reference() -> None:
    trace = traced("a-lol(warmup=0.5, epochs=0.2)", rows=LOG, prompts=4)
    assert trace.parts == ["sft", "values", "a-lol"]
    assert {r.text for s in trace.steps if s.phase == "sft" for r in s.rollouts} == set(WORTH)
    assert trace.of(phase="a-lol")[0].reference == trace.of(phase="sft")[-1].after


@pytest.mark.parametrize(
    ("name", "rows", "told"),
    [
        ("a-lol(variant='alol')", LOG, "variant of A-LoL"),
        ("a-lol(clip=2)", LOG, r"clip is in \(0, 1\]"),
        ("a-lol", [{k: r[k] for k in ("prompt", "response")} for r in LOG], r"give a column reward, or score them: --reward"),
        ("a-lol", [r | {"reward": 0.5} for r in LOG[:9]] + LOG[:1], "held-out prompts, and values are learned on those"),
        ("a-lol(variant='r-lol')", [r | {"reward": -1.0} for r in LOG], "nothing to learn from"),
    ],
)  # fmt: skip
def test_what_is_missing_is_told(name: str, rows: Any, told: str) -> None:
    with pytest.raises(pt.UserError, match=told):
        traced(name, rows=rows)


def test_rows_from_python_are_a_log_too(tmp_path: Path) -> None:
    rows = [{"question": f"say {i}", "answer": "aaa" if i % 2 else "c", "reward": float(i % 2)} for i in range(40)]
    found = pt.run(model=tiny_folder(), task=rows, method="a-lol(epochs=0.2)", runs=tmp_path, threads=1, prompts=2)
    assert found["answers"] > 30 and 0 < found["share_kept"] < 1


def test_a_run_that_is_asked_again_estimates_nothing_anew(tmp_path: Path) -> None:
    rows = [{"question": f"say {i}", "answer": "aaa" if i % 2 else "c", "reward": float(i % 2)} for i in range(40)]
    call: dict[str, Any] = {
        "model": tiny_folder(),
        "task": rows,
        "method": "a-lol(epochs=0.2)",
        "threads": 1,
        "prompts": 2,
    }
    pt.run(**call, runs=tmp_path, name="one")
    file = tmp_path / "one" / "artifacts" / "advantages.jsonl"
    before, at = file.read_text(), file.stat().st_mtime_ns
    pt.run(**call, runs=tmp_path, name="one")
    pt.run(**call, runs=tmp_path, name="two")
    assert file.stat().st_mtime_ns == at and (tmp_path / "two/artifacts/advantages.jsonl").read_text() == before
