"""What sets the plans of self-training apart: who answers, which answers are kept, where each round's imitation begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.types import Prompt, Rollout
from posttrain.methods.self_training import good
from tests.wiring import formulas as f
from tests.wiring.spies import ROWS, traced
from tests.wiring.trace import Trace


def graded(prompt: Any, text: str) -> float:
    return float(sum(map(ord, text)) % 3 == 0)


def learned(trace: Trace, phase: str) -> list[tuple[str, str]]:
    """(question, answer) of every row that a phase learned from."""
    return [(r.prompt.content[-1]["content"], r.text) for s in trace.steps if s.phase == phase for r in s.rollouts]


def said(trace: Trace, phase: str) -> list[str]:
    return [t for d in trace.samples if d.phase == phase for t in d.texts]


def imitates(trace: Trace) -> None:
    """Every update is maximum likelihood of answers that were kept, at the policy as it is by then."""
    assert trace.updates and all(u.optimiser_steps == 1 and not u.reference for u in trace.updates)
    for u in trace.updates:
        torch.testing.assert_close(u.passes[0].pull["logp_BT"], f.mean("tokens", u.passes[0]))


def test_rest_em_fine_tunes_the_base_on_the_latest_policys_right_answers() -> None:
    trace = traced("rest-em(rounds=2, n=12, most=2, questions=6, epochs=2)", ROWS, graded, lr=0.03)
    assert [p for p in trace.parts if p] == ["policy->base", "generate.1", ".1", "sft.1", "generate.2", ".2", "sft.2"]
    one, two = trace.of(phase="sft.1"), trace.of(phase="sft.2")
    weights = {k: {d.weights for d in trace.samples if d.phase == f"generate.{k}"} for k in (1, 2)}
    assert weights[1] == {one[0].before}, "the first answers are of the base"
    assert weights[2] == {one[-1].after}, "the second of what the first round made"
    assert two[0].before == one[0].before != one[-1].after, "both rounds fine-tune the base"
    for k in (1, 2):
        rows, every = learned(trace, f"sft.{k}"), said(trace, f"generate.{k}")
        assert len(every) == 72 and all(graded(None, text) for _, text in rows)
        counts = {pair: rows.count(pair) for pair in rows}
        by_question: dict[str, int] = {}
        for question, _ in counts:
            by_question[question] = by_question.get(question, 0) + 1
        assert max(by_question.values()) == 2, "two to a question at most, though more were right"
        assert sum(graded(None, t) for t in every) > len(counts) and set(t for _, t in rows) <= set(every)
        assert set(counts.values()) <= {2, 1, 3} and len(rows) == 2 * len(trace.of(phase=f"sft.{k}")), "two passes"
    imitates(trace)


def test_expert_iteration_pools_what_all_rounds_found() -> None:
    trace = traced("expert-iteration(rounds=2, n=6, questions=5, epochs=1)", ROWS, graded, lr=0.03)
    one, two = trace.of(phase="sft.1"), trace.of(phase="sft.2")
    assert two[0].before == one[0].before, "a fresh copy of the base in each round"
    assert {d.weights for d in trace.samples if d.phase == "explore.2"} == {one[-1].after}
    first, both = (
        {t for k in range(1, last + 1) for t in said(trace, f"explore.{k}") if graded(None, t)} for last in (1, 2)
    )
    assert {t for _, t in learned(trace, "sft.1")} <= first and {t for _, t in learned(trace, "sft.2")} <= both
    notes = trace.summary["kept"]
    sizes = [len(trace.of(phase=f"sft.{k}")) * 2 for k in (1, 2)]  # an epoch of two prompts an update
    assert sizes[0] == pytest.approx(notes["round 1"]["answers"], abs=1)
    assert sizes[1] > notes["round 2"]["answers"], "the second round learns from more than it found itself"
    imitates(trace)


def test_a_text_is_kept_once_with_the_first_that_said_it() -> None:
    one = torch.zeros(1)

    def answer(text: str, reward: float) -> Rollout:
        return Rollout.single(Prompt.text("q", "?"), one.long(), one.long(), one, text=text, reward=reward)

    said = [answer("a", 1.0), answer("b", 0.5), answer("a", 1.0), answer("c", 1.0), answer("d", 1.0)]
    assert [row["text"] for row in good(said, 1.0)] == ["a", "c", "d"]
    assert [row["text"] for row in good(said, 1.0, most=2)] == ["a", "c"]


def test_a_question_is_answered_anew_in_every_round() -> None:
    trace = traced("rest-em(rounds=2, n=6, questions=4, epochs=0.1)", ROWS, graded, lr=1e-12)
    one, two = said(trace, "generate.1"), said(trace, "generate.2")
    assert len(one) == len(two) == 24 and one != two, "the weights have hardly moved, the draws are others"


def by_length(prompt: Any, text: str) -> float:
    return len(text) / 10


def test_rest_raises_the_bar_over_answers_that_were_sampled_once() -> None:
    asked = "rest(rounds=2, n=6, questions=5, thresholds=(-1.0, 0.1, 0.3), epochs=1)"
    trace = traced(asked, ROWS, by_length, lr=0.03)
    steps = [f"improve-{i}" for i in (1, 2, 3)]
    assert trace.parts == [f"{part}.{k}" for k in (1, 2) for part in ("grow", *steps)]
    updates = {name: trace.of(phase=name) for name in (f"{s}.{k}" for k in (1, 2) for s in steps)}
    ends = [(some[0].before, some[-1].after) for some in updates.values()]
    assert all(before == after for (_, after), (before, _) in zip(ends, ends[1:], strict=False)), (
        "each goes on from the last"
    )
    assert {d.weights for d in trace.samples if d.phase == "grow.2"} == {updates["improve-3.1"][-1].after}
    own = {r["answer"] for r in ROWS}
    for k in (1, 2):
        every = set(said(trace, f"grow.{k}")) | own
        sizes = []
        for step, bar in zip(steps, (-1.0, 0.1, 0.3), strict=True):
            texts = {t for _, t in learned(trace, f"{step}.{k}")}
            assert texts <= every and all(by_length(None, t) > bar for t in texts)
            sizes.append(len(updates[f"{step}.{k}"]))
        assert sizes[0] > sizes[1] > sizes[2] >= 1, "a higher bar keeps fewer"
        assert {t for _, t in learned(trace, f"improve-1.{k}")} & own, "the data set's own answers are among them"
    imitates(trace)
    with pytest.raises(pt.UserError, match=r"no answer earned more than 9, the best .*; give lower thresholds"):
        traced("rest(n=2, questions=3, thresholds=(9.0,))", ROWS, by_length)


def test_star_asks_again_with_the_answer_shown_and_learns_as_if_it_had_not() -> None:
    def right_if_hinted(prompt: Any, text: str) -> float:
        """Sums that three divides are found at once, those with a rest of one when the answer was shown, the others never."""
        shown = "(The answer is" in prompt.content[-1]["content"]
        return float(kind(int(prompt.answer)) == "easy" or (kind(int(prompt.answer)) == "shown" and shown))

    def kind(answer: int) -> str:
        return ("easy", "shown", "never")[answer % 3]

    trace = traced("star(rounds=2, steps=3, growth=2.0, questions=9)", ROWS, right_if_hinted, lr=0.03)
    asked = [p for d in trace.samples if d.phase == "reason.1" for p in d.prompts]
    plain, shown = [p for p in asked if "The answer is" not in p], [p for p in asked if "The answer is" in p]
    answers = {r["question"]: int(r["answer"]) for r in ROWS}
    kinds = {p: kind(answers[p]) for p in plain}
    assert len(plain) == 9 and set(kinds.values()) == {"easy", "shown", "never"}
    failed = [p for p in plain if kinds[p] != "easy"]
    assert shown == [f"{p}\n(The answer is {answers[p]}.)" for p in failed], "only those that failed are asked again"
    one, two = trace.of(phase="sft.1"), trace.of(phase="sft.2")
    assert (len(one), len(two)) == (3, 6), "40 steps and a fifth more by default; here 3 and twice as many"
    assert two[0].before == one[0].before, "from the base in each round"
    assert {d.weights for d in trace.samples if d.phase == "reason.2"} == {one[-1].after}
    questions = {q for q, _ in learned(trace, "sft.1")}
    assert questions <= {p for p in plain if kinds[p] != "never"} and "shown" in {kinds[q] for q in questions}
    assert all("The answer is" not in trace.roles["policy"].decode(row.context) for u in one for row in u.rows)
    assert trace.summary["rationalised"]["round 1"] == list(kinds.values()).count("shown")
    assert all(d.how.temperature == 0 for d in trace.samples if d.phase.startswith("reason"))
    imitates(trace)


@pytest.mark.parametrize("plan", ["rest-em(rounds=1, n=2, questions=3", "expert-iteration(rounds=1, n=2, questions=3", "star(rounds=1, steps=1, questions=3"])  # fmt: skip
def test_an_answer_is_good_from_least_on(plan: str) -> None:
    trace = traced(f"{plan}, least=0.5)", ROWS, lambda prompt, text: 0.5)
    assert trace.updates and sum(k["questions"] for k in trace.summary["kept"].values()) == 3
    with pytest.raises(pt.UserError, match=r"earned 0\.6, so there is nothing to imitate"):
        traced(f"{plan}, least=0.6)", ROWS, lambda prompt, text: 0.5)


def test_rest_may_leave_the_data_sets_own_answers_out() -> None:
    trace = traced("rest(n=4, questions=5, thresholds=(-1.0,), data=False)", ROWS, by_length)
    assert {t for _, t in learned(trace, "improve-1.1")} <= set(said(trace, "grow.1"))
    assert trace.summary["kept"]["round 1"]["answers"] <= 20


def test_star_without_hints_leaves_failed_questions_out() -> None:
    trace = traced("star(rounds=1, steps=2, questions=8, n=6, hint='')", ROWS, graded, lr=0.03)
    asked = [p for d in trace.samples if d.phase == "reason.1" for p in d.prompts]
    assert not any("The answer is" in p for p in asked)
    assert all(graded(None, t) for _, t in learned(trace, "sft.1"))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("rest-em(rounds=0)", "got rounds=0, n=32"),
        ("expert-iteration(n=0)", "got rounds=3, n=0"),
        ("rest(thresholds=(0.5, 0.5))", "each higher than the one before"),
        ("rest(thresholds=())", "give one or more"),
        ("star(growth=0.5)", "growth is 1 or more"),
        ("star(hint='think again')", r"it must hold \{answer\}"),
    ],
)
def test_mistakes_are_one_sentence(asked: str, told: str) -> None:
    with pytest.raises(pt.UserError, match=told):
        traced(asked, ROWS, graded)


def test_hints_need_answers_that_can_be_shown() -> None:
    rows = [{"question": f"say {i}"} for i in range(12)]
    with pytest.raises(pt.UserError, match=r"has no gold answers; .* --plan.hint ''"):
        traced("star(rounds=1)", rows, graded)
    trace = traced("star(rounds=1, steps=1, n=4, hint='')", rows, graded)
    assert trace.of(phase="sft.1")


def test_somebody_must_say_which_answers_are_good() -> None:
    prompts = [{"question": r["question"]} for r in ROWS]
    with pytest.raises(pt.UserError, match="cannot grade itself; say what is good with --reward"):
        traced("rest-em", prompts, eval_problems=0)
    with pytest.raises(
        pt.UserError, match="none of 2 answers to each of 3 questions earned 1, so there is nothing to imitate"
    ):
        traced("rest-em(n=2, questions=3)", ROWS, lambda prompt, text: 0.0)
