"""Plans: the order of phases, cycles, gates and roles."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Cycle, Do, Gate, Plan, Stopped, alternate, plan
from posttrain.core.registry import _PARTS, find


class Memory:
    """A run that only remembers notes."""

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}

    def write_notes(self, notes: dict[str, Any]) -> None:
        self.notes = dict(notes)


def nothing(context: Context) -> None:
    pass


def walked(*parts: Any, context: Context | None = None) -> list[str]:
    context = context or Context(Memory(), None, {})
    return [p.name for p in Plan(parts, "test").walk(context)]


def test_sequence_and_cycles_name_their_rounds() -> None:
    inner = Cycle((Do("c", nothing),), times=2)
    assert walked(Do("a", nothing), Cycle((Do("b", nothing), inner), times=2)) == [
        "a", "b.1", "c.1.1", "c.1.2", "b.2", "c.2.1", "c.2.2",
    ]  # fmt: skip


def test_alternate_is_a_cycle() -> None:
    assert walked(alternate(Do("x", nothing), Do("y", nothing), times=2)) == ["x.1", "y.1", "x.2", "y.2"]


def test_a_cycle_ends_when_its_gate_passes() -> None:
    context = Context(Memory(), None, {})
    seen: list[str] = []
    for part in Plan((Cycle((Do("a", nothing),), 9, until=lambda c: c.notes["n"] >= 3), Do("b", nothing)), "test").walk(
        context
    ):
        seen.append(part.name)
        context.notes["n"] = context.notes.get("n", 0) + 1
    assert seen == ["a.1", "a.2", "a.3", "b"]


def test_a_gate_stops_the_plan() -> None:
    walk = Plan((Do("a", nothing), Gate("safe", lambda c: False, "not safe"), Do("b", nothing)), "test").walk(
        Context(Memory(), None, {})
    )
    assert next(walk).name == "a"
    with pytest.raises(Stopped, match="not safe"):
        next(walk)
    assert walked(Gate("safe", lambda c: True), Do("b", nothing)) == ["b"]


def test_decisions_are_made_once() -> None:
    """After a restart the notes know more than they did then; the answer of then counts."""
    parts = (
        Cycle((Do("a", nothing),), 3, until=lambda c: c.notes.get("good", False)),
        Gate("g", lambda c: c.notes["n"] < 5),
    )
    first = Context(Memory(), None, {}, notes={"n": 1})
    assert walked(*parts, context=first) == ["a.1", "a.2", "a.3"]
    again = Context(Memory(), None, {}, notes={**first.run.notes, "good": True, "n": 9})
    assert walked(*parts, context=again) == ["a.1", "a.2", "a.3"]


def test_two_phases_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="are named 'a'"):
        walked(Do("a", nothing), Do("a", nothing))


def test_strange_parts_are_refused() -> None:
    with pytest.raises(UserError, match="not str"):
        walked("sft")


def test_a_missing_role_is_told() -> None:
    with pytest.raises(UserError, match="no phase has made the role 'judge' yet; there are: policy"):
        Context(Memory(), None, {"policy": 1}).role("judge")


def test_plans_are_found_by_name() -> None:
    @plan(paper="arXiv:1", title="Toy")
    def toy_plan(rounds: int = 2) -> Plan:
        """Toy: goes round."""
        return Plan((Cycle((Do("a", nothing),), rounds),), "toy-plan")

    try:
        part = find("toy_plan(rounds=1)", "plan")
        assert (part.card.paper, part.card.title) == ("arXiv:1", "Toy")
        assert [p.name for p in part().walk(Context(Memory(), None, {}))] == ["a.1"]
        with pytest.raises(UserError, match="did you mean 'rounds'"):
            find("toy_plan(round=1)", "plan")
    finally:
        del _PARTS["plan"]["toy-plan"]


def test_a_plan_is_told_what_it_is() -> None:
    """Name, title, paper and page from the decorator and the function; options as it was called, defaults included."""

    @plan(paper="arXiv:1", title="Toy")
    def told_plan(rounds: int = 2, how: str = "x") -> Plan:
        """Toy: goes round."""
        return Plan((Cycle((Do("a", nothing),), rounds),))

    @plan(paper="arXiv:2")
    def around(how: str = "y") -> Plan:
        """Around: another plan under another name."""
        return told_plan(1, how=how)

    try:
        made = told_plan(3)
        assert (made.name, made.title, made.paper, made.doc) == ("told-plan", "Toy", "arXiv:1", "Toy: goes round.")
        assert list(made.options.items()) == [("rounds", 3), ("how", "x")]
        assert find("told_plan(how='z')", "plan")().options == {"rounds": 2, "how": "z"}
        other = around()
        assert (other.name, other.title, other.paper) == ("around", "Around", "arXiv:2")
        assert other.options == {"how": "y"} and other.parts[0].times == 1
    finally:
        del _PARTS["plan"]["told-plan"], _PARTS["plan"]["around"]
