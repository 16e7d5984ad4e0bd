"""Reading with a memory: what each turn sees, whose credit it gets, and that training follows each turn's own context."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.advantages.dr_grpo import dr_grpo
from posttrain.core.assemble import answers, assemble, placed, shared
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.metrics import describe
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.task import task
from posttrain.evals.accuracy import accuracy
from posttrain.losses.policy.ppo import ppo
from posttrain.methods.grpo import grpo
from posttrain.rollouts.memory import memory, noted
from posttrain.rollouts.sample import sample
from posttrain.runs.build import at_test
from posttrain.runs.in_memory import FunctionScorer, Listed, fit


class Scribe:
    """A policy that answers with what it was asked last, and remembers the prompts it saw."""

    def __init__(self) -> None:
        self.seen: list[Prompt] = []

    def sample(self, prompts, n, how, seed=0, step=0):
        self.seen += prompts
        T = torch.ones(2, dtype=torch.bool)
        return [
            [Rollout.single(p, torch.tensor([len(p.last)]), torch.zeros(2).long(), torch.zeros(2), T, f"note {p.id}")]
            for p in prompts
        ]


LONG = Prompt.text("d", "whole text", "x", parts=["red", "green", "blue"], ask="what?")
SHORT = Prompt.text("s", "hello", "y")


def test_each_turn_sees_the_question_the_notes_and_the_next_parts():
    policy = Scribe()
    groups = memory(RolloutRequest({"policy": policy}, [LONG, SHORT], Sampling(4), 0, 0), n=2, reading=(2, 0))
    reads = [p for p in policy.seen if "Part:" in p.last]
    assert [p.id for p in reads] == ["d/0/0", "d/1/0", "d/0/1", "d/1/1"]
    assert "red green" in reads[0].last and "blue" not in reads[0].last and "Notes so far: none" in reads[0].last
    assert "blue" in reads[2].last and "red" not in reads[2].last and "Notes so far: note d/0/0" in reads[2].last
    last = next(p for p in policy.seen if p.id == "d/1/2").last
    assert "Notes: note d/1/1" in last and "blue" not in last and "what?" in last
    assert [[len(r.contexts) for r in g.rollouts] for g in groups] == [[3, 3], [1, 1]]
    assert groups[0].rollouts[1].info["asked"] == last and "asked" not in groups[1].rollouts[0].info
    assert [[(r.prompt.id, r.index) for r in g.rollouts] for g in groups] == [
        [("d", 0), ("d", 1)],
        [("s", 0), ("s", 1)],
    ]
    assert [p.last for p in policy.seen if p.id.startswith("s/")] == [
        "hello",
        "hello",
    ]  # a text without parts is just asked


def test_notes_are_what_follows_the_thinking():
    said = [turned(0.0, 1) for _ in range(3)]
    for r, text in zip(said, ("<think>a</think> Oslo. ", "", "<think>never closed"), strict=True):
        r.turns[-1].text = text
    assert noted([]) == "" and noted(said[:1]) == "Oslo." and noted(said) == "Oslo."


def turned(reward: float, *lengths: int, mask: list[bool] | None = None) -> Rollout:
    seen = Observation(torch.tensor([1]))
    turns = [Turn.of(seen, torch.arange(T), torch.full((T,), -0.5)) for T in lengths]
    turns[-1].mask_T = turns[-1].mask_T if mask is None else torch.tensor(mask)
    return Rollout(LONG, turns, reward=reward)


def test_rows_of_turns_and_their_credit():
    # two answers with turns of (3, 1 | 2) and (1 | 3) actions; the second answer's first token is the environment's
    group = Group(LONG, [turned(1.0, 3, 1, 2), turned(0.0, 1, 3, mask=[False, True, True])])
    rows, batch = assemble([group])
    assert [len(row) for row in rows] == [3, 1, 2, 1, 3]
    assert batch["answer_B"].tolist() == [2, 2, 2, 4, 4]
    assert batch["reward_BT"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert "chosen_P" not in batch  # two answers are no preference pair
    judged = answers(batch)
    assert judged.returns_B.tolist() == [1.0, 0.0] and judged.mask_BT.shape == (2, 3)
    adv_AT = torch.tensor([[0.5, 0.75, 0.0], [9.0, -2.0, -3.0]])
    assert shared(adv_AT, batch).tolist() == [
        [0.5, 0.5, 0.5],
        [0.5, 0, 0],
        [0.5, 0.75, 0],
        [-2.0, 0, 0],
        [9.0, -2.0, -3.0],
    ]
    assert placed(adv_AT, batch)[[0, 1, 3]].abs().sum() == 0
    assert describe([group], [group])["tokens"] == 10


@pytest.mark.derived("rollout/memory")
def test_every_turn_has_the_credit_of_its_answer():
    """Two readings of two parts earn 1 and 0: A = r - mean = 1/2 and -1/2. Each has contexts of 2, 2 and 2 tokens, and the pull of every
    token is A: L = -sum A logp, dL/dlogp = -A at the notes as at the answer; the value at logp 0 + log r with r = 1 is -A.
    """
    (group,) = memory(RolloutRequest({"policy": Scribe()}, [LONG], Sampling(4), 0, 0), n=2, reading=(2, 0))
    for r, earned in zip(group.rollouts, (1.0, 0.0), strict=True):
        r.reward = earned
    rows, batch = assemble([group])
    assert [len(row) for row in rows] == [2] * 6
    batch = batch.but(adv_BT=shared(dr_grpo(answers(batch)), batch))
    logp_BT = torch.zeros(6, 2, requires_grad=True)
    loss_BT = ppo(batch.but(logp_BT=logp_BT))
    loss_BT.sum().backward()
    pulls = torch.tensor([[-0.5, -0.5]] * 3 + [[0.5, 0.5]] * 3)
    torch.testing.assert_close(loss_BT.detach(), pulls)
    torch.testing.assert_close(logp_BT.grad, pulls)


def test_a_failed_answer_masks_its_turns():
    _, batch = assemble([Group(LONG, [turned(float("nan"), 2, 2), turned(1.0, 2, 2)])])
    assert batch.valid_B.tolist() == [False, False, True, True]


def test_training_moves_the_notes_by_the_answers_reward():
    """One part, notes of one letter: the answer copies the notes, so only credit for the notes can raise the reward."""

    class Copier(TabularPolicy):
        def sample(self, prompts, n, how, seed=0, step=0):
            rows = [0 if p.info["part"] else 1 + "ab".index(p.info["notes"]) for p in prompts]
            return super().sample(
                [replace(p, info=p.info | {"row": i}) for p, i in zip(prompts, rows, strict=True)], n, how, seed, step
            )

    policy = Copier(3, 1, 2, memory=False)
    with torch.no_grad():
        policy.table[1, 0, 0], policy.table[2, 0, 0] = torch.tensor([30.0, 0.0]), torch.tensor([0.0, 30.0])
    asked = Listed([Prompt.text(f"d{i}", "", "b", parts=["part"], ask="?") for i in range(4)])
    worth = FunctionScorer(lambda rollouts: torch.tensor([float(r.text == "b") for r in rollouts]))
    config = Config(seed=0, steps=12, prompts=4, lr=0.3, warmup=0, sampling=Sampling(1))
    rows = fit(policy, grpo.but(rollout=memory, terms=()), asked, config, worth)
    assert policy.table[0, 0, 0].softmax(-1)[1] > 0.9 and rows[-1]["reward"] > 0.8


def test_a_test_reads_as_training_does():
    env = task("documents(parts=3, facts=2)")
    policy = Scribe()
    score = accuracy(policy, env, 2, Sampling(4), rollout=at_test(grpo.but(rollout=memory.but(reading=(3, 0))), env))
    assert score.problems == 2 and len(policy.seen) == 4  # one turn of three parts, one answer
    assert at_test(grpo.but(rollout=sample), env) is None


@pytest.mark.parametrize("reading", [(0, 1), (1, -1)])
def test_bad_reading_is_a_sentence(reading):
    with pytest.raises(UserError, match="at least one part is read at a time"):
        memory(RolloutRequest({"policy": Scribe()}, [LONG], Sampling(4), 0, 0), reading=reading)


def test_a_document_of_a_file_is_cut_at_words(tmp_path):
    text = " ".join(f"word{i}" for i in range(400))  # 3,089 characters
    (tmp_path / "long.jsonl").write_text(json.dumps({"question": "Which?", "answer": "word7", "document": text}) + "\n")
    env, policy = task(str(tmp_path / "long.jsonl")), Scribe()
    (group,) = memory(RolloutRequest({"policy": policy}, [env.prompt(0)], Sampling(4), 0, 0), n=1)
    parts = [p.info["part"] for p in policy.seen[:-1]]
    assert " ".join(parts) == text and len(parts) == 4 and all(len(part) <= 1000 for part in parts)
    assert "Which?" in policy.seen[0].last and len(group.rollouts[0].contexts) == 5


def test_nothing_to_read_is_a_sentence():
    with pytest.raises(UserError, match="no prompt has a text to read in parts"):
        memory(RolloutRequest({"policy": Scribe()}, [SHORT], Sampling(4), 0, 0))
    assert (
        len(memory(RolloutRequest({"policy": Scribe()}, [SHORT], Sampling(4), 0, 1), n=2)[0].rollouts) == 2
    )  # later, in a mixture, it may happen
