"""Dynamic sampling: what the selection drops is refilled with new prompts, within a bound, and a resumed run repeats it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.registry import find
from posttrain.core.types import Group, Prompt
from posttrain.methods.grpo import grpo
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.runtime.scorer import ScoreReport, report_of
from posttrain.rollouts.sources import apart
from posttrain.runs.run import Run
from posttrain.runs.short import Short
from posttrain.train import select, train
from tests.runs import tiny_run
from tests.runs.tiny_run import Count


class Third(Count):
    """Every third prompt has answers that differ; the others are all worth 1. 12 prompts, so that they come round."""

    size = 12

    def grade(self, prompt: Prompt, text: str) -> float:
        third = int(prompt.id.partition("#")[0].split("-")[1]) % 3 == 0
        return float(sum(map(ord, text)) % 7) if third else 1.0


def loop(folder: Path, rounds: int = 4, env: Any = None, **settings: Any) -> Any:
    method = grpo.but(rollout=grpo.rollout.but(n=4), select="zero_variance", rounds=rounds)
    made = tiny_run.build(Run(folder, {"a": 1}), tiny_run.config(**({"prompts": 4} | settings)), method)
    made.env = made.source.env = made.source.curriculum.env = env or Third()
    made.source.scorer = RewardSum([("share", made.env.grade, 1.0)], timeout=60)
    return made


def test_a_batch_is_filled_with_new_prompts(tmp_path: Path) -> None:
    made = loop(tmp_path)
    groups, kept, report = made.gather(0, select)
    asked = [g.prompt.id for g in groups]
    assert len(kept) == 4 and sorted(asked) == sorted(f"train-{i}" for i in range(12))  # 4 of the 12 differ
    assert all(len({r.reward for r in g.rollouts}) > 1 for g in kept)
    assert report.n == 4 * len(asked) and report.rewards[0].n == report.n
    total = [r.reward for g in groups for r in g.rollouts]
    assert report.rewards[0].mean == pytest.approx(sum(total) / len(total))
    seen: list[list[Group]] = []
    made.source.curriculum.observe = seen.append
    made.source.publish(1)
    assert [g.prompt.id for g in seen[0]] == asked  # a curriculum sees all that was asked


def test_one_round_is_what_it_was_and_prompts_go_on_where_the_refills_ended(tmp_path: Path) -> None:
    once = loop(tmp_path / "a", rounds=1)
    groups, kept, _ = once.gather(0, select)
    assert len(groups) == 4 and len(kept) < 4
    made = loop(tmp_path / "b", prompts=2, rounds=5)
    first, kept, _ = made.gather(0, select)
    made.source.publish(1)
    second = made.source.next(1)[0]
    assert 2 < len(first) <= 10 and len(kept) == 2 == len(second)  # of the 12 of an epoch
    assert not {g.prompt.id for g in first} & {g.prompt.id for g in second}


def test_the_bound_is_kept_said_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Solved(Count):
        def grade(self, prompt: Prompt, text: str) -> float:
            return 1.0

    made = loop(tmp_path, rounds=3, env=Solved(), steps=2)
    made.monitors = [Short()]
    train(made)
    rows = dict(made.run.store.series("prompts_asked")), dict(made.run.store.series("prompts_kept"))
    assert rows == ({0: 12.0, 1: 12.0}, {0: 0.0, 1: 0.0})
    said = capsys.readouterr().err
    assert said.count("of 12 prompts in 3 rounds only 0 of the 4 wanted") == 1 and "--rounds" in said


def test_a_resumed_run_asks_what_it_would_have_asked(tmp_path: Path) -> None:
    whole, halves = loop(tmp_path / "whole", steps=4), loop(tmp_path / "halves", steps=4)
    train(whole)
    halves.source.curriculum.propose, ends = stopping(halves.source.curriculum.propose, 2), False
    try:
        train(halves)
    except KeyboardInterrupt:
        ends = True
    assert ends
    halves.run.__exit__(None, None, None)
    again = loop(tmp_path / "halves", steps=4)
    train(again)
    assert again.source.state_dict()["refills"] == whole.source.state_dict()["refills"] > 0
    for a, b in zip(whole.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def stopping(propose: Any, steps: int) -> Any:
    """A curriculum that ends the process once it is asked for a batch beyond this many refilled steps."""
    asked: list[int] = []

    def next_prompts(n: int, step: int, policy: Any) -> Any:
        asked.append(step)
        if len(asked) > 3 * steps + 2:
            raise KeyboardInterrupt
        return propose(n, step, policy)

    return next_prompts


def test_a_prompt_that_comes_again_in_a_step_has_an_identity_of_its_own() -> None:
    a, b = Prompt.text("a", "?"), Prompt.text("b", "?")
    assert [p.id for p in apart([a, b, a], {"a", "a#1"})] == ["a#2", "b", "a#3"]


class Four(Count):
    """Write letters; there are four rows."""

    size = 4


def drawn(folder: Path, n: int, **changes: Any) -> dict[str, list[str]]:
    """The answers of the first step, by the identity of their prompt."""
    made = tiny_run.build(Run(folder, {"a": 1}), tiny_run.config(prompts=n), grpo.but(**changes))
    made.env = made.source.env = made.source.curriculum.env = Four()
    groups, _ = made.source.next(0)
    assert len(groups) == n
    return {g.prompt.id: [r.text for r in g.rollouts] for g in groups}


def test_more_prompts_than_rows_are_answered_anew_and_those_without_a_repeat_as_ever(tmp_path: Path) -> None:
    four, ten = drawn(tmp_path / "a", 4), drawn(tmp_path / "b", 10)
    assert len(ten) == 10 and sorted(four) == sorted(k for k in ten if "#" not in k)  # ten identities, none twice
    assert all(ten[k] == four[k] for k in four)  # the first of each draws what it always did
    for k in ten:
        again, _, number = k.partition("#")
        assert not number or ten[k] != ten[again]
    few = drawn(tmp_path / "c", 4, prompts="uniform(pool=1)")
    assert len(few) == 4  # of a curriculum that takes one row


def test_a_curriculum_sees_the_rows_and_written_answers_need_no_other_identity(tmp_path: Path) -> None:
    made = tiny_run.build(Run(tmp_path, {"a": 1}), tiny_run.config(prompts=10), grpo)
    made.env = made.source.env = made.source.curriculum.env = Four()
    seen: list[list[Group]] = []
    made.source.curriculum.observe = seen.append
    made.source.next(0)
    made.source.publish(1)
    assert len(seen[0]) == 10 and {g.prompt.id for g in seen[0]} == {f"train-{i}" for i in range(4)}
    written = tiny_run.build(Run(tmp_path / "w", {"a": 1}), tiny_run.config(prompts=10), tiny_run.supervised())
    written.source.env = written.source.curriculum.env = Four()
    assert {g.prompt.id for g in written.source.next(0)[0]} == {f"train-{i}" for i in range(4)}


def test_a_resumed_run_of_more_prompts_than_rows_is_the_same_run(tmp_path: Path) -> None:
    whole, halves = (loop(tmp_path / k, rounds=1, env=Four(), prompts=10, steps=4) for k in ("whole", "halves"))
    train(whole)
    halves.config = replace(halves.config, steps=2)
    train(halves)
    halves.run.__exit__(None, None, None)
    again = loop(tmp_path / "halves", rounds=1, env=Four(), prompts=10, steps=4)
    train(again)
    for a, b in zip(whole.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_reports_of_two_rounds_are_one() -> None:
    one = ScoreReport(3, 1, 1.0, [report_of("x", [1.0, float("nan"), None], 0.5)])
    two = ScoreReport(2, 0, 2.0, [report_of("x", [4.0, 4.0], 0.5), report_of("y", [0.0], 0.1)])
    both = one + two
    assert (both.n, both.masked, both.seconds) == (5, 1, 3.0) and [r.name for r in both.rewards] == ["x", "y"]
    x = both.rewards[0]
    assert (x.n, x.failed, x.skipped, x.mean) == (5, 1, 1, 3.0) and "finite" in x.error
    assert (one + one).rewards[0].mean == 1.0


def test_rounds_are_typed_and_checked() -> None:
    assert find_method("dapo(rounds=3)").rounds == 3 and "rounds" not in grpo.describe()
    with pytest.raises(UserError, match="rounds is 0"):
        find_method("grpo(rounds=0)")
    turns = Group(Prompt.text("a", "?"), [])
    assert find("zero_variance", "select")([turns]) == []
