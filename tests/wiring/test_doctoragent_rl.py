"""What sets DoctorAgent-RL apart, on the registered plan with real consultations.

The claim to come: arms SFT alone, GRPO on the end alone, GRPO with the turns' rewards at a fixed budget of 10, doctoragent-rl; equal samples
and updates. Metrics: diagnosis F1 at budgets 2 to 10, share of repeated questions. Expected: doctoragent-rl above SFT by 15 points, repeats
below 5%, and the drawn budget above the fixed one at budget 3.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch

import posttrain as pt
from posttrain.core.protocols import Step
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Prompt
from posttrain.environments.data import data
from posttrain.systems.agents_multiturn.doctoragent_rl import REPEATED, UNKNOWN, Consulting, Played, Scripted, closeness
from tests.wiring.spies import tiny_folder, traced

FACTS = [
    "My throat hurts when I swallow.",
    "The fever began on Monday.",
    {"question": "do you smoke", "answer": "never"},
]
ROWS = [
    {"question": f"{i} I feel ill.", "diagnosis": "strep throat", "recommendation": "rest and drink", "facts": FACTS} for i in range(24)
]  # fmt: skip
END = "<diagnosis>strep throat</diagnosis><recommendation>drink</recommendation>"


def played(*texts: str, budget: int = 5, cut: bool = False) -> list[Step]:
    env = Consulting(data(ROWS), Scripted(), (budget, budget))
    episode, out = env.open(env.prompt(0), 3), []
    for text in texts:
        turn = Turn.of(Observation(torch.tensor([1])), torch.tensor([1]), torch.zeros(1), text)
        turn.stopped = not cut
        out.append(asyncio.run(episode.step(turn)))
        episode = episode.fork()  # the same from a copy
    return out


def test_every_turn_is_worth_what_it_found_out() -> None:
    """+1 new, -2 the same fact again, -1 no such fact, -2 no question; the end 5 * 1 + 5 * 2 * 1 / (1 + 3) = 7.5 (one of three words)."""
    q = "<question>{}</question>".format
    steps = played(q("does your throat hurt?"), q("any pain in the throat"), q("pets?"), "hm", END)
    assert [s.reward for s in steps] == pytest.approx([1.0, -2.0, -1.0, -2.0, 7.5])
    said = [s.messages[0]["content"] for s in steps[:3]]  # type: ignore[index]
    assert said == [f"{FACTS[0]}\nTurns left: 4.", f"{REPEATED}\nTurns left: 3.", f"{UNKNOWN}\nTurns left: 2."]
    assert steps[-1].stop == "answered" and steps[-1].info["questions"][:1] == ["does your throat hurt?"]
    late = played(q("fever?"), q("smoking?"), budget=2)
    assert [s.reward for s in late] == [1.0, 1.0 - 5.0] and late[-1].messages is None and late[-1].stop == "max_turns"
    assert played("<question>fever", cut=True)[0].reward == -2.0 - 5.0
    assert closeness(Prompt.text("p", "q", "flu"), ("a flu", "rest")) == 5.0, (
        "no recommendation in the case, none is paid"
    )


def test_doctoragent_learns_whole_consultations_with_a_drawn_budget(tmp_path: Path) -> None:
    file = tmp_path / "dialogues.jsonl"
    talk = [{"role": "user", "content": "ill"}, {"role": "assistant", "content": "<question>fever?</question>"},
            {"role": "user", "content": "yes"}, {"role": "assistant", "content": END}]  # fmt: skip
    file.write_text(
        "".join(
            json.dumps({"messages": [{"role": "user", "content": f"{i} ill"}, *talk[1:]]}) + "\n" for i in range(12)
        )
    )
    says = ["<question>does your throat hurt?</question>", END, "hm", "<question>pets?</question>"]
    trace = traced(f"doctoragent-rl(steps=2, dialogues={str(file)!r}, warmup=0.2, budget=(2, 4))", rows=ROWS, says=says,
                   positions=2048, sampling={"max_tokens": 150})  # fmt: skip
    assert [p.name for p in trace.phases] == ["sft", "grpo"]
    assert {len(r.turns) for s in trace.steps if s.phase == "sft" for r in s.rollouts} == {2}
    learn = [s for s in trace.steps if s.phase == "grpo"]
    assert [len(g.rollouts) for s in learn for g in s.groups] == [8] * 4
    budgets = {g.prompt.info["budget"] for s in learn for g in s.groups}
    assert budgets <= {2, 3, 4} and len(budgets) > 1
    for g in (g for s in learn for g in s.groups):
        assert f"You have {g.prompt.info['budget']} turns" in g.prompt.last
        assert all(len(r.turns) <= g.prompt.info["budget"] for r in g.rollouts)
    paid = {t.reward for s in learn for r in s.rollouts for t in r.turns}
    assert paid <= {1.0, -1.0, -2.0, -4.0, -6.0, -7.0, 7.5} and {1.0, -2.0, 7.5} <= paid
    made = trace.of(phase="grpo")[0]
    rollouts = [r for g in learn[0].groups for r in g.rollouts]
    torch.testing.assert_close(made.batch["reward_BT"].sum(-1), torch.tensor([r.total for r in rollouts]))
    policy = trace.phases[1].loop.policy
    for row, mask_T in zip(made.rows, made.batch["mask_BT"], strict=True):
        assert "Turns left" not in policy.decode(row.actions[mask_T[: len(row.actions)] > 0])
    method = trace.phases[1].method
    assert method.loss.defaults() == {"low": 0.2, "high": 0.28} and [t.name for t in method.terms] == ["entropy"]
    assert trace.phases[1].loop.config.sampling.temperature == 0.7


def test_a_model_may_play_the_patient_and_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    says = ["<question>fever?</question>", "4", END, "yes"]
    name = f"doctoragent-rl(steps=1, patient={tiny_folder(2048)!r}, graded='patient', budget=(2, 2))"
    trace = traced(name, rows=ROWS, says=says, positions=2048, sampling={"max_tokens": 150})
    asked = [p for d in trace.samples if d.phase == "grpo" for p in d.prompts]
    assert any("You are a patient" in p and "My throat hurts" in p for p in asked) and any(
        "from 0 to 5" in p for p in asked
    )
    assert max((t.reward or 0.0) for s in trace.steps for r in s.rollouts for t in r.turns) <= 10.0
    assert Played


def test_doctoragent_says_what_it_needs() -> None:
    for rows, told in (
        ([{"question": f"q{i}"} for i in range(20)], "no diagnosis"),
        (None, "nothing for the patient to answer from"),
    ):
        with pytest.raises(pt.UserError, match=told):
            traced("doctoragent-rl", rows=rows)
    with pytest.raises(pt.UserError, match=r"--plan\.patient FOLDER"):
        traced("doctoragent-rl(graded='patient')")
    with pytest.raises(pt.UserError, match="the least first"):
        traced("doctoragent-rl(budget=(4, 2))")
