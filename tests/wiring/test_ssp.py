"""What sets search self-play apart, on the registered plan with a real index.

The claim to come: arms GRPO on the fixed questions, self-play without the gate, ssp; equal samples and updates, on a graph of facts.
Metrics: accuracy on held-out questions of 1 to 4 hops, the share of written questions that are valid.
Expected: without the gate validity falls below 40% and the solver stalls; ssp stays above 85% and is best on 3 and 4 hops.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.batch import Batch
from posttrain.core.types import Group, Prompt
from posttrain.systems.agents_multiturn.ssp import Replay, proposer_reward, raw_or_ranked, to_solve
from tests.wiring.spies import traced

ROWS = [{"question": f"{i} who?", "answer": "s"} for i in range(24)]


@pytest.fixture
def documents(tmp_path: Path) -> str:
    file = tmp_path / "facts.jsonl"
    names = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal")
    file.write_text("".join(json.dumps({"title": n, "text": f"{n} is {n[0]}."}) + "\n" for n in names))
    return str(file)


def test_what_a_question_is_worth() -> None:
    """1 - acc; between: 4 acc (1 - acc), 0 at the ends."""
    assert [proposer_reward(a) for a in (0.0, 0.4, 1.0)] == pytest.approx([1.0, 0.6, 0.0])
    assert [proposer_reward(a, "between") for a in (0.0, 0.2, 0.5, 1.0)] == pytest.approx([0.0, 0.64, 1.0, 0.0])
    assert proposer_reward(0.5, "between", left=0.1, right=0.9) == pytest.approx(4 * 0.6 * 0.4)


@pytest.mark.derived("advantage/ssp")
def test_a_question_gets_its_reward_and_answers_their_rank() -> None:
    """Group 0 is alone: A = R = 0.6. Group 1: rewards 1 and 0: mean 1/2, std sqrt(1/2) = 0.7071: +-0.5 / 0.7072 = +-0.70701."""
    reward_BT = torch.tensor([[0.0, 0.6], [0.0, 1.0], [0.0, 0.0]])
    batch = Batch(
        mask_BT=torch.ones(3, 2), reward_BT=reward_BT, group_B=torch.tensor([0, 1, 1]), logp_BT=torch.zeros(3, 2)
    )
    want = torch.tensor([0.6, 0.70701, -0.70701]).unsqueeze(-1).expand(3, 2)
    torch.testing.assert_close(raw_or_ranked(batch), want, atol=1e-4, rtol=0)


def test_earlier_questions_are_kept_and_dropped_together() -> None:
    class Few(pt.Environment):
        name, size = "few", 4

        def prompt(self, index: int, split: str = "train") -> Prompt:
            return Prompt.text(f"p{index}", "write", "s", role="proposer")

    replay = Replay.fn(clear=3)
    replay.start(Few(), 0)
    assert all("spare" not in p.info for p in replay.propose(2, 0))
    replay.observe([Group(to_solve("a", "which?", "s", True), []), Group(to_solve("b", "old?", "s", False), [])])
    assert [p.info["spare"] for p in replay.propose(2, 1)] == [("which?", "s")] * 2
    other = Replay.fn(clear=3)
    other.start(Few(), 0)
    other.load_state_dict(json.loads(json.dumps(replay.state_dict())))
    assert other.propose(2, 1) == replay.propose(2, 1)
    replay.observe([])
    replay.observe([Group(to_solve("c", "new?", "s", True), [])])
    assert replay.questions == [], "the third step drops all of them"


def play(name: str, says: list[str], **settings: Any) -> Any:
    return traced(name, rows=ROWS, says=says, positions=3072, sampling={"max_tokens": 120}, **settings)


def test_ssp_writes_checks_and_solves_questions(documents: str) -> None:
    says = [
        "<search>ada</search>",
        "<question>who is it?</question>",
        "<answer>s</answer>",
        "<answer>t</answer>",
        "<question>s?</question>",
    ]
    trace = play(f"ssp(steps=3, documents={documents!r}, turns=3)", says, prompts=3)
    proposed = [r for s in trace.steps for r in s.rollouts if r.role == "proposer"]
    solved = [g for s in trace.steps for g in s.groups if g.rollouts[0].role == "solver"]
    assert proposed and solved and [len(g.rollouts) for g in solved] == [5] * len(solved)
    accepted = [r for r in proposed if r.info["accepted"]]
    assert accepted and len(accepted) < len(proposed)
    for r in proposed:
        if not r.info["accepted"]:
            assert r.reward == 0.0
            continue
        (group,) = [
            g
            for s in trace.steps
            for g in s.groups
            if g.prompt.id == f"{r.prompt.id}/asked-{s.step}" and r in s.rollouts
        ]
        assert r.reward == pytest.approx(1 - sum(x.total > 0 for x in group.rollouts) / 5) and r.info["queries"]
        assert r.info["question"] in group.prompt.last and r.prompt.answer == group.prompt.answer
    checks = [p for d in trace.samples for p in d.prompts if "Answer from these documents alone" in p]
    assert checks and all(p.count("Doc ") >= 4 for p in checks) and not any("<search>" in p for p in checks)
    assert not any("documents alone" in g.prompt.last for s in trace.steps for g in s.groups), (
        "checks are not learned from"
    )
    written = [p for d in trace.samples if d.phase == "self-play" for p in d.prompts if "Write a question" in p]
    assert written and all("right answer is: s." in p for p in written)
    made = trace.updates[0]
    assert made.optimiser_steps == 2 and {u.role for u in trace.updates} == {"policy"}
    for g in range(int(made.batch["group_B"].max()) + 1):
        rows = (made.batch["group_B"] == g).nonzero().flatten()
        if len(rows) == 1:
            own = made.batch["adv_BT"][rows[0]][made.batch["mask_BT"][rows[0]] > 0]
            assert float(own[0]) == pytest.approx(float(made.batch["reward_BT"][rows[0]].sum()))
    method = trace.phases[0].method
    assert method.loss.defaults() == {"low": 0.2, "high": 0.285} and method.terms[0].defaults()["coef"] == 0.01
    held = [p for d in trace.samples if d.phase != "self-play" for p in d.prompts]
    assert held and not any("Write a question" in p for p in held), "measured on the questions of the task"


def test_ssp_rejects_what_it_cannot_answer_itself_and_may_pay_middling_questions(documents: str) -> None:
    """2 of 5 right: 4 * 2/5 * 3/5 = 0.96. A wrong answer to the check: nothing, and the earlier question is solved in its place."""
    right, wrong = "<answer>s</answer>", "<answer>t</answer>"
    asks = ["<search>ada</search>", "<question>who is it?</question>"]
    says = [*asks, right, right, wrong, wrong, right, wrong, *asks, wrong, *[right] * 5]
    trace = play(f"ssp(steps=2, documents={documents!r}, turns=2, kind='between')", says, prompts=1, eval_problems=0)
    proposed = [r for s in trace.steps for r in s.rollouts if r.role == "proposer"]
    assert [(r.info["accepted"], r.reward) for r in proposed] == [(True, pytest.approx(0.96)), (False, 0.0)]
    solved = [g.prompt for s in trace.steps for g in s.groups if g.rollouts[0].role == "solver"]
    assert ["asked" in p.id for p in solved] == [True, False] and solved[0].info["asked"] == solved[1].info["asked"]


def test_ssp_may_ask_a_judge_what_is_right(documents: str) -> None:
    """Who reads the question alone, also of a check, and takes t for right and s for less than half right."""
    file = Path(documents).with_name("right_or_not.py")
    file.write_text(
        "def right(prompt, text):\n    assert prompt.last == 'who is it?'\n    return {'t': 0.5, 's': 0.4}.get(text, 0.0)\n"
    )
    right, wrong = "<answer>t</answer>", "<answer>s</answer>"
    says = ["<search>ada</search>", "<question>who is it?</question>", right, right, wrong, wrong, right, wrong]
    name = f"ssp(steps=1, documents={documents!r}, turns=2, judge='{file}:right')"
    (step,) = play(name, says, prompts=1, eval_problems=0).steps
    assert [r.total for r in step.rollouts] == [pytest.approx(1 - 2 / 5), 1.0, 0.0, 0.0, 1.0, 0.0]


def test_ssp_asks_an_earlier_question_where_one_is_rejected(documents: str) -> None:
    good = ["<search>ada</search>", "<question>who is it?</question>", "<answer>s</answer>"]
    trace = play(
        f"ssp(steps=2, documents={documents!r}, gate=False, turns=2)",
        [*good, "<question>no search</question>"],
        prompts=4,
    )
    later = [g.prompt for s in trace.steps if s.step == 1 for g in s.groups if "again" in g.prompt.id]
    first = [r for s in trace.steps if s.step == 0 for r in s.rollouts if r.role == "proposer" and r.info["accepted"]]
    assert first and all(p.info["asked"] in {r.info["question"] for r in first} for p in later)
    assert later and not any("Answer from these documents alone" in p for d in trace.samples for p in d.prompts), (
        "no gate, no check"
    )


def test_ssp_says_what_it_needs(documents: str) -> None:
    with pytest.raises(pt.UserError, match=r"--plan\.documents FOLDER"):
        traced("ssp")
    with pytest.raises(pt.UserError, match="1-acc or between"):
        traced("ssp(kind='x')")
    with pytest.raises(pt.UserError, match="no gold answers to search for"):
        traced(f"ssp(documents={documents!r})", rows=[{"question": f"q{i}"} for i in range(20)])
