"""Arms through the public API: what they spent is counted, of methods, plans and reward models; curves are kept; the folder goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from claims.machinery.arms import Bench, Measured, on_device, run_arm
from claims.machinery.experiment import run_one
from claims.machinery.once import kept_in, made_once
from posttrain.core.errors import UserError

SMALL = {"prompts": 2, "num_generations": 2, "sampling": {"max_tokens": 6}, "eval_problems": 2}
ASKED = {"task": "counting", "think": False}


def test_a_method_is_run_counted_and_measured() -> None:
    """2 steps of 2 prompts with 2 answers each; Lite PPO cuts a step into 4 updates, but no finer than its prompts: 2."""
    made = run_arm(0, method="lite-ppo", steps=2, problems=2, **ASKED, **SMALL)
    assert {"accuracy", "greedy", "length"} <= set(made) and 0 <= made["accuracy"] <= 1
    assert (made.spent["prompts"], made.spent["samples"], made.spent["updates"]) == (4, 8, 4)
    curve = made.curves["run"]["train"]
    assert curve["updates"] == [2, 4] and len(curve["reward"]) == len(curve["length"]) == 2
    assert sum(curve["tokens"]) == made.spent["tokens"]


def test_phases_and_runs_add_up_by_role() -> None:
    """A reward model's updates are not the policy's; imitation learns from rows that others wrote."""
    with Bench(1) as bench, on_device("cpu"):
        folder = bench.folder
        model = bench.run("rm", method="reward-model", task="school_pairs", steps=2, prompts=2, eval_problems=2)
        run = bench.run("ppo", method="ppo", reward=str(model), steps=1, **ASKED, **SMALL)
        bench.run("sft", method="sft", task="counting", steps=3, prompts=2, eval_problems=2)
        made = bench.measured(
            run, "counting", 2, lambda policy, env: {"more": 7.0}, think=False, sampling={"max_tokens": 6}
        )
    assert made.spent["reward_model/updates"] == 2 and made.spent["reward_model/written"] == 8  # 2 steps of 2 pairs
    assert made.spent["samples"] == 4 and made.spent["updates"] == 4 + 3 and made.spent["written"] == 6
    assert set(made.curves) == {"rm", "ppo", "sft"} and made["more"] == 7.0
    assert not folder.exists()


def test_what_an_arm_carries_reaches_its_outcome() -> None:
    def arm(seed: int):
        with Bench(seed) as bench:
            rows = bench.rows("mine", [{"question": "What is 1+1?", "answer": "2"}])
            assert rows.endswith("mine.jsonl")
            return bench.measured(None, "counting", 2, think=False, sampling={"max_tokens": 6})

    made = run_one({"start": arm}, "start", 0)
    assert made.spent == {} and made.curves == {} and set(made.metrics) == {"accuracy", "greedy", "length"}


def test_what_arms_share_is_made_once_and_cannot_be_told_from_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three arms: the first makes the start, the second copies it; one whose file says something else makes its own."""
    made: list[str] = []
    run = Bench.run
    monkeypatch.setattr(Bench, "run", lambda self, name, **given: made.append(name) or run(self, name, **given))

    def start(seed: int, answer: str, shelf: Path | None) -> tuple[bytes, Measured]:
        with kept_in(shelf), Bench(seed) as bench:
            rows = bench.rows("shown", [{"question": f"What is {n}+1?", "answer": answer} for n in range(8)])
            at = bench.once("start", method="sft", task=rows, steps=2, prompts=2, eval_problems=2)
            weights = next(at.rglob("*.safetensors")).read_bytes()
            return weights, bench.measured(at, "counting", 2, think=False, sampling={"max_tokens": 6})

    alone, spent = start(3, "2", None)
    first, second = start(3, "2", tmp_path), start(3, "2", tmp_path)
    assert made == ["start", "start"]  # by the one without a shelf, and once for the two with it
    assert first == second == (alone, spent) and first[1].spent == second[1].spent == spent.spent
    assert first[1].curves == second[1].curves == spent.curves and spent.spent["updates"] == 2
    assert start(3, "3", tmp_path)[0] != alone and start(4, "2", tmp_path)[0] != alone and len(made) == 4


def test_a_start_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    def fails(part: Path) -> None:
        (part / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once(tmp_path / "start", fails)
    assert not (tmp_path / "start").exists()
    there = made_once(tmp_path / "start", lambda part: (part / "whole").touch())
    assert [p.name for p in there.iterdir()] == ["whole"]
    assert made_once(tmp_path / "start", fails) == there


def test_what_cannot_be_told_in_plain_settings_is_not_shared(tmp_path: Path) -> None:
    with kept_in(tmp_path), Bench(0) as bench, pytest.raises(UserError, match="plain settings"):
        bench.once("start", method="sft", env=object())
