"""DSTC, as registered: own programs against own tests, which pair is preferred to which, and that nothing else is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.rewards.rules import code
from posttrain.sandbox.unsafe import Unsafe
from posttrain.systems.preference.dstc import answer, drawn, minimax, passes
from tests.wiring.spies import traced

TASK = [{"question": f"Write f(x): x plus 1. ({i})", "answer": "no gold is read"} for i in range(4)]
RIGHT, WRONG, BROKEN = "def f(x): return x + 1", "def f(x): return x - 1", "def f(x) return"


@pytest.fixture
def unboxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of these tests are known, and run without a sandbox."""
    monkeypatch.setattr(code, "sandbox", lambda allow=False: Unsafe())
    code.box_of.cache_clear()


def test_all_programs_are_run_against_all_tests() -> None:
    tests = ["assert f(1) == 2\nassert f(2) == 3", "assert f(1) == 0", "f(1)", "assert g(1"]
    found = passes(Unsafe(), [RIGHT, WRONG, BROKEN, "def f(x): return 2"], tests)
    assert found == [[True, False, False, False], [False, True, False, False], [False] * 4, [False] * 4], (
        "all assertions"
    )


@pytest.mark.derived("plan/dstc")
def test_minimax() -> None:
    # rows (tests passed): 2, 2, 1, 0; columns (programs that pass): 3, 1, 1
    # chosen: of programs 0 and 1, who pass 2 tests, the cell of the test that 3 pass: (0, 0), the first
    # rejected: of what fails, the test that most pass is 0, and program 3, which alone fails it: (3, 0)
    passed = [[True, True, False], [True, False, True], [True, False, False], [False, False, False]]
    assert minimax(passed) == ((0, 0), (3, 0))
    # nobody passes all: columns 2, 1; rows 1, 1, 1; chosen (0, 0); rejected: test 0 fails at program 2, though it passes as many as others
    assert minimax([[True, False], [True, False], [False, True]]) == ((0, 0), (2, 0))
    # of those that fail a best test the one that passes fewest: columns 2, 2; rows 2, 1, 1, 0
    assert minimax([[True, True], [True, False], [False, True], [False, False]]) == ((0, 0), (3, 0))
    # whoever passes most comes before the test that most pass: rows 2, 1, 1, 1; columns 1, 1, 3; test 2 fails at program 0 alone
    assert minimax([[True, True, False], *[[False, False, True]] * 3]) == ((0, 0), (0, 2))
    assert minimax([[True, True]]) is None and minimax([[False], [False]]) is None


def test_by_lot_one_passes_and_one_fails() -> None:
    passed = [[True, False], [False, True]]
    cells = {drawn(passed, i) for i in range(60)}
    assert len(cells) == 4 and all(passed[a][b] and not passed[c][d] for (a, b), (c, d) in cells)  # type: ignore[misc]


SAYS = [RIGHT, WRONG, RIGHT, "assert f(1) == 2", "assert f(3) == 4", "assert f(1) == 5"]
HOW: dict[str, Any] = {"num_generations": 3, "sampling": {"max_tokens": 60}, "eval_problems": 0, "lr": 0.02}


def ordered(says: list[str], problems: int) -> list[str]:
    """What a sampler says, in the order it is asked: programs of all problems, then tests of all."""
    return says[:3] * problems + says[3:] * problems


def test_a_program_with_its_test_is_preferred_to_one_that_fails(unboxed: None) -> None:
    trace = traced("dstc(problems=2)", TASK, says=ordered(SAYS, 2), **HOW)
    assert trace.parts == ["collect", "dpo"] and trace.summary["pairs"] == 2
    asked = [d for d in trace.samples if d.phase == "collect"]
    assert "assert statements" not in asked[0].prompts[0] and all("assert statements" in p for p in asked[1].prompts)
    (made,) = trace.updates
    texts = {k: {made.rows[i].text for i in made.batch[k].tolist()} for k in ("chosen_P", "rejected_P")}
    assert texts["chosen_P"] == {answer(RIGHT, "assert f(1) == 2")}
    assert texts["rejected_P"] == {answer(WRONG, "assert f(1) == 2")}
    (only,) = made.passes
    first = made.batch["chosen_P"][0]
    pull = only.pull["logp_BT"][first] * made.batch["mask_BT"][first]
    torch.testing.assert_close(pull, 0.1 * 0.5 / 2 * made.batch["mask_BT"][first], rtol=1e-3, atol=1e-6)


def test_programs_alone_where_it_is_asked_for(unboxed: None) -> None:
    trace = traced("dstc(problems=2, concatenated=False, epochs=3)", TASK, says=ordered(SAYS, 2), **HOW)
    assert len(trace.updates) == 3, "passes over two pairs, both in a step"
    assert {r.text for r in trace.updates[0].rows} == {answer(RIGHT, ""), answer(WRONG, "")}


def test_kto_learns_the_two_as_good_and_bad(unboxed: None) -> None:
    trace = traced("dstc(method='kto', problems=2)", TASK, says=ordered(SAYS, 2), prompts=4, **HOW)
    assert trace.parts == ["collect", "kto"]
    told = {(r.text, r.rewards["label"]) for s in trace.steps for g in s.groups for r in g.rollouts if r.rewards}
    assert told == {(answer(RIGHT, "assert f(1) == 2"), 1.0), (answer(WRONG, "assert f(1) == 2"), 0.0)}


def test_where_nothing_differs_it_ends_with_a_word(unboxed: None) -> None:
    trace = traced("dstc(problems=2)", TASK, says=[RIGHT], **HOW)
    assert not trace.updates and "nothing to learn from" in trace.summary["stopped"]


def test_a_program_is_not_preferred_to_itself(unboxed: None) -> None:
    # the first passes two tests, the others the third, which the first fails: it would be both sides
    says = [
        RIGHT,
        "def f(x): return 7",
        "def f(x): return 7",
        "assert f(1) == 2",
        "assert f(2) == 3",
        "assert f(0) == 7",
    ]
    trace = traced("dstc(problems=2)", TASK, says=ordered(says, 2), **HOW)
    assert not trace.updates and "nothing to learn from" in trace.summary["stopped"]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.sandbox.available.why_not", lambda: "no sandbox here; apt-get install bubblewrap")
    code.box_of.cache_clear()
    with pytest.raises(pt.UserError, match="apt-get install bubblewrap"):
        traced("dstc", TASK)
    with pytest.raises(pt.UserError, match="not by grpo"):
        traced("dstc(method='grpo')", TASK)
    with pytest.raises(pt.UserError, match="way to choose pairs"):
        traced("dstc(choice='maximin')", TASK)
    with pytest.raises(pt.UserError, match="does not use --reward"):
        traced("dstc", TASK, reward="code")
