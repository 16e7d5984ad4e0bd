"""The wires of the loop: which learner sees which rows, in which order, and where credit goes back to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import posttrain as pt
from posttrain.core.assemble import answers, assemble, keep_credit, placed
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Group, Rollout
from posttrain.runs.in_memory import row
from posttrain.train import train
from tests.policies.kinds import Hints
from tests.runs import tiny_run


def turn(n: int, seen: int = 1, continues: bool = False, version: int = 0) -> Turn:
    made = Turn.of(Observation(torch.zeros(seen, dtype=torch.long)), torch.arange(n), -torch.ones(n), version=version)
    made.continues = continues
    return made


def rollout(turns: list[Turn], role: str = "policy", reward: float = 1.0) -> Rollout:
    return Rollout(row(0), turns, role=role, reward=reward)


class Recorder:
    """A learner that writes down what it is asked."""

    def __init__(self, role: str, log: list[tuple[Any, ...]], every: int = 1) -> None:
        self.goal, self.log = SimpleNamespace(role=role, rows=role, every=every), log

    def annotate(self, rows: list[Turn], batch: Any) -> Any:
        self.log.append(("annotate", self.goal.role, len(rows)))
        return batch

    def update(self, rows: list[Turn], batch: Any, step: int) -> dict[str, float]:
        self.log.append(("update", self.goal.role, len(rows)))
        return {"loss": float(len(rows))}


class Wires:
    """A loop of three steps around recorders: two roles, the second one's learner works at every other step."""

    shared = False

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.learners = [Recorder("policy", self.log), Recorder("judge", self.log, every=2)]
        self.learner, self.source, self.select, self.shaping = self.learners[0], self, [], []  # type: ignore[var-annotated]
        self.seen: list[dict[str, float]] = []

    def steps(self) -> range:
        return range(3)

    def next(self, step: int) -> tuple[list[Group], None]:
        made = [rollout([turn(2)]), rollout([turn(3)], "judge"), rollout([turn(2)], "judge")]
        return [Group(row(0), made)], None

    def gather(self, step: int, select: Any) -> tuple[list[Group], list[Group], None]:
        groups, report = self.next(step)
        return groups, select(self, groups), report

    def publish(self, version: int) -> None:
        self.log.append(("publish", version))

    def learners_of(self, role: str) -> list[Recorder]:
        return [x for x in self.learners if x.goal.rows == role]

    def advantage(self, batch: Any) -> torch.Tensor:
        return batch.mask_BT

    def tell(self, *args: Any) -> None: ...

    def evaluate(self, step: int) -> dict[str, float]:
        self.log.append(("evaluate", step))
        return {}

    def record(self, step: int, groups: Any, kept: Any, report: Any, seen: dict[str, float]) -> None:
        self.seen.append(seen)


def test_every_role_has_its_own_learner_its_own_rows_and_its_own_rhythm() -> None:
    loop = Wires()
    train(loop)  # type: ignore[arg-type]
    policy = [("annotate", "policy", 1), ("update", "policy", 1)]
    judge = [("annotate", "judge", 2), ("update", "judge", 2)]
    both = [*policy, *judge]
    assert loop.log == [
        *both, ("publish", 1), ("evaluate", 0),
        *policy, judge[0], ("publish", 2), ("evaluate", 1),
        *both, ("publish", 3), ("evaluate", 2),
    ]  # fmt: skip
    assert loop.seen[0] == {"loss": 1.0, "judge/loss": 2.0} and loop.seen[1] == {"loss": 1.0}


def test_credit_goes_back_to_the_turns_it_belongs_to() -> None:
    """Two turns of 2 and 3 actions with 2 ids observed in between, after a context of its own; then another rollout."""
    first = rollout([turn(4), turn(2), turn(3, seen=2, continues=True)])
    other = rollout([turn(2)])
    groups = [Group(row(0), [first, other])]
    rows, batch = assemble(groups)
    assert [len(r) for r in rows] == [4, 7, 2]
    adv_BT = torch.arange(21.0).view(3, 7)
    keep_credit(groups, batch.but(adv_BT=adv_BT))
    assert "adv" not in first.turns[0].streams_T
    assert first.turns[1].streams_T["adv"].tolist() == [7.0, 8.0]
    assert first.turns[2].streams_T["adv"].tolist() == [11.0, 12.0, 13.0]
    assert other.turns[0].streams_T["adv"].tolist() == [14.0, 15.0]
    assert first.stream("adv").tolist() == [7.0, 8.0, 0.0, 0.0, 11.0, 12.0, 13.0]  # type: ignore[union-attr]
    first.set_stream("adv", None)
    assert all("adv" not in t.streams_T for t in first.turns)


def test_a_row_keeps_versions_and_masks_of_its_turns_and_nothing_observed_is_its_own() -> None:
    made = rollout([turn(2, version=3), turn(1, seen=2, continues=True, version=5)])
    joined = made.row
    assert joined.mask_T.tolist() == [True, True, False, False, True]
    assert joined.version_T.tolist()[:2] == [3, 3] and joined.version_T.tolist()[4] == 5
    assert made.versions == (3, 5) and joined.streams_T["turn"].tolist() == [0, 0, 1, 1, 1]


def test_pairs_are_better_and_worse_in_this_order() -> None:
    group = Group(row(0), [rollout([turn(1)]), rollout([turn(2), turn(1)]), rollout([turn(1)])], pairs=((2, 1), (0, 2)))
    _, batch = assemble([group])
    assert batch["chosen_P"].tolist() == [3, 0] and batch["rejected_P"].tolist() == [2, 3]


def test_a_stream_of_the_answers_stands_in_their_rows_alone() -> None:
    _, batch = assemble([Group(row(0), [rollout([turn(4), turn(2)]), rollout([turn(2)])])])
    judged = answers(batch)
    assert judged["length_B"].tolist() == [2, 2]
    stream_AT = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert placed(stream_AT, batch).tolist() == [[0, 0, 0, 0], [1, 2, 0, 0], [3, 4, 0, 0]]


def test_one_policy_that_plays_every_role_learns_from_all_of_them(tmp_path: Path) -> None:
    class Judged(Hints):
        def first_role(self, prompt: pt.Prompt) -> str:
            return "judge"

    summary = pt.run(
        model=tiny_run.policy(), env=Judged(), method=pt.find_method("grpo").but(advantage="turns", terms=()), steps=2, prompts=2,
        num_generations=4, eval_problems=2, sampling={"max_tokens": 6}, runs=tmp_path,
    )  # fmt: skip
    assert summary["steps_without_learning"] == 0
