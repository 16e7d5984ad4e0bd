"""1-shot RLVR: the record of a run over the whole set chooses the example that the policy then learns from alone."""

from __future__ import annotations

from statistics import pstdev
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.systems.curriculum_data.one_shot_rlvr import ranked, recorded
from tests.wiring.spies import ROWS, traced

NAME = "one-shot-rlvr(steps=2,epochs=3)"


def share(prompt: Any, text: str) -> float:
    return float("1" in text or "5" in text)


@pytest.mark.parametrize(("rank", "keep"), [(1, 1), (2, 2)])
def test_the_most_variable_example_is_repeated_or_the_next_ones(rank: int, keep: int) -> None:
    asked = NAME.replace(")", f",rank={rank},keep={keep})")
    trace = traced(asked, rows=ROWS[:6], reward=lambda prompt, text: float(len(text) > 2), num_generations=4, prompts=3)
    assert [(p.name, p.role) for p in trace.phases] == [("whole-set", "whole-set"), ("one-shot", "policy")]
    history: dict[str, list[float]] = {}
    for s in trace.steps:
        for g in s.groups if s.phase == "whole-set" else []:
            history.setdefault(g.prompt.id, []).append(sum(r.reward or 0 for r in g.rollouts) / 4)
    assert all(len(told) == 3 for told in history.values()), "every example once a pass"
    best = sorted(history, key=lambda name: (-pstdev(history[name]), name))[rank - 1 : rank - 1 + keep]
    chosen = trace.summary["examples"]
    assert [x["id"] for x in chosen] == best
    assert [x["std"] for x in chosen] == pytest.approx([pstdev(history[name]) for name in best])
    for s in trace.steps:
        if s.phase == "one-shot":
            assert [g.prompt.id.split("#")[0] for g in s.groups] == (best * 3)[:3], "in turn"
            assert len({g.prompt.id for g in s.groups}) == 3, "every copy is a group of its own"
            assert len({tuple(r.text for r in g.rollouts) for g in s.groups}) > 1, "and has answers of its own"
    first, (one, two) = trace.of("whole-set")[0], trace.of("policy")
    assert one.before == first.before, "the policy did not learn in the first run"
    assert one.after == two.before and two.reference == one.before
    terms = {t.name: t.params for t in trace.phases[1].method.terms}
    assert terms["kl"] == {"coef": 0.001, "kind": "k3"} and terms["entropy"] == {"coef": 0.001}


def test_nothing_varied_or_too_little_was_seen() -> None:
    with pytest.raises(UserError, match="no example's accuracy varied"):
        traced(NAME, rows=ROWS[:6], reward=lambda prompt, text: 1.0, num_generations=2, prompts=3)
    with pytest.raises(UserError, match="2 passes at least"):
        traced("one-shot-rlvr(epochs=1)", rows=ROWS[:6], reward=share)


@pytest.mark.derived("prompts/recorded")
def test_the_rank_is_by_standard_deviation() -> None:
    # (0, 1): std .5;  (0, .5, 1): sqrt(1/6) = .408248;  constant: 0;  seen once: no variance, left out
    found = ranked({"a": [0.0, 0.5, 1.0], "b": [0.0, 1.0], "c": [1.0, 1.0], "d": [0.5]})
    assert [name for name, _ in found] == ["b", "a", "c"]
    assert [x for _, x in found] == pytest.approx([0.5, 0.408248, 0.0], abs=1e-5)
    live: Any = recorded.but().live()  # type: ignore[attr-defined]
    live.load_state_dict({"history": {"a": [1.0]}})
    assert live.state_dict() == {"history": {"a": [1.0]}}
