"""OSP, CycleAlign and self-rewarding: rounds in which the policy judges, or teaches its judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.rewards.scorers.policy_judge import PolicyJudge
from posttrain.systems.preference import cyclealign
from posttrain.systems.preference.cyclealign import agreement, next_examples, student_order
from posttrain.systems.preference.osp import labelled
from tests.wiring.spies import traced

ASKS = [{"question": f"tell {i}"} for i in range(16)]


def longer(prompt: Any, a: str, b: str) -> float:
    return 0.7 if len(a) > len(b) else 0.3


# ---- OSP


def test_osp_asks_every_two_in_both_orders_and_learns_as_surely_as_the_judge_was() -> None:
    trace = traced("osp(rounds=2, prompts=4, n=3, pairing='all', beta=0.2)", rows=ASKS, reward={"judge": longer})
    assert {p.method.loss.params["beta"] for p in trace.phases} == {0.2}
    assert trace.parts == ["policy->start", "collect.1", "osp.1", "collect.2", "osp.2"]
    for i in (1, 2):
        calls = [c for c in trace.calls if c.phase == f"collect.{i}"]
        asked = {(c.args[0].id, c.args[1], c.args[2]) for c in calls}
        assert all((p, b, a) in asked for p, a, b in asked) and {c.args[0].id for c in calls}
    assert not {c.args[0].id for c in trace.calls if c.phase == "collect.1"} & {
        c.args[0].id for c in trace.calls if c.phase == "collect.2"
    }, "each round has new prompts"
    assert trace.summary["judge_calls"] == len(trace.calls)
    made = trace.of(phase="osp")
    preferred = {round(float(x), 6) for u in made for x in u.batch["preferred_P"]}
    assert preferred <= {0.7, 0.5} and 0.7 in preferred
    for u in made:
        for c, r, p in zip(u.batch["chosen_P"], u.batch["rejected_P"], u.batch["preferred_P"], strict=True):
            gap = len(u.rows[int(c)].text) - len(u.rows[int(r)].text)
            assert gap > 0 if p > 0.6 else gap == 0
    assert {u.reference for u in made} == {made[0].before}, "the reference is the start in every round"


def test_osp_judges_itself_by_the_probability_of_its_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    plain = PolicyJudge.prefer

    def prefer(self: PolicyJudge, *asked: Any) -> list[float]:
        said = plain(self, *asked)
        heard.append((self.policy, said))
        return said

    monkeypatch.setattr(PolicyJudge, "prefer", prefer)
    trace = traced("osp(rounds=1, prompts=4, n=2)", rows=ASKS)
    ((policy, said),) = heard
    assert (
        policy is trace.roles["policy"] and all(0 < p < 1 for p in said) and len(said) == trace.summary["judge_calls"]
    )
    # (P(a, b) + 1 - P(b, a)) / 2, the first half of the questions in one order, the second in the other
    both = [(x + 1 - y) / 2 for x, y in zip(said[: len(said) // 2], said[len(said) // 2 :], strict=True)]
    strengths = sorted(max(p, 1 - p) for p in both)
    learned = sorted(float(x) for u in trace.of(phase="osp") for x in u.batch["preferred_P"])
    assert learned == pytest.approx(strengths, abs=1e-6)


def test_osp_may_be_taught_to_judge_and_may_take_labels_for_certain(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(
        "".join(json.dumps({"prompt": f"say {i}", "chosen": "good", "rejected": "bad"}) + "\n" for i in range(4))
    )
    trace = traced(f"osp(rounds=1, prompts=4, n=2, pairs={str(file)!r}, labels='hard')", rows=ASKS)
    assert trace.parts == ["judging", "policy->start", "collect.1", "osp.1"]
    assert {r.text for s in trace.steps if s.phase == "judging" for r in s.rollouts} == {"A", "B", "good"}
    assert {float(x) for u in trace.of(phase="osp") for x in u.batch["preferred_P"]} == {1.0}
    assert trace.of(phase="osp")[0].reference == trace.of(phase="judging")[-1].after
    rows = [{"id": 1, "preferred": 0.5}, {"id": 2, "preferred": 0.9}]
    assert [r["preferred"] for r in labelled(rows, "even")] == pytest.approx([0.7, 0.7])  # (0.5 + 0.9) / 2
    assert [r["preferred"] for r in labelled(rows, "soft")] == [0.5, 0.9]
    even = traced("osp(rounds=1, prompts=4, n=3, pairing='all', labels='even')", rows=ASKS, reward={"judge": longer})
    (sure,) = {round(float(x), 6) for u in even.of(phase="osp") for x in u.batch["preferred_P"]}
    assert 0.5 < sure <= 0.7
    with pytest.raises(pt.UserError, match="not by both"):
        traced(f"osp(pairs={str(file)!r})", rows=ASKS, reward={"judge": longer})
    with pytest.raises(pt.UserError, match="did you mean 'ends'"):
        traced("osp(pairing='end')", rows=ASKS)


# ---- CycleAlign


def by_length(prompt: Any, texts: list[str], demonstrations: list[Any]) -> list[float]:
    return [float(len(t)) for t in texts]


def test_agreement_is_the_longest_common_subsequence() -> None:
    assert agreement((0, 1, 2, 3), (0, 2, 1, 3)) == (0, 1, 3), "of two as long, the first by the judge's order"
    assert agreement((3, 1, 2), (1, 2, 3)) == (1, 2) and agreement((1, 0), (0, 1)) == (1,)
    assert agreement((0, 3, 1, 2), (3, 1, 2, 0)) == (3, 1, 2), "the first of the judge's is not where they agree"
    assert agreement((), (0, 1)) == () and agreement((2, 0, 1), (2, 0, 1)) == (2, 0, 1)
    p = [({"id": i}, ["a", "b", "c"]) for i in range(3)]

    class Asked:
        def __init__(self, name: str) -> None:
            self.id, self.content = name, ()

    known = [(Asked(f"p{i}"), texts) for i, (_, texts) in enumerate(p)]
    rows = next_examples(known, [(1, 0), (2, 1, 0), (0,)], 2)  # type: ignore[arg-type]
    assert [(r["id"], r["ranked"]) for r in rows] == [("p1", ["c", "b", "a"]), ("p0", ["b", "a"])]


def test_cyclealign_shows_its_judge_what_both_agreed_on_and_learns_whole_rankings(tmp_path: Path) -> None:
    file = tmp_path / "static.jsonl"
    file.write_text(json.dumps({"prompt": "say", "responses": ["x", "y"], "ranks": [2, 1]}) + "\n")
    plan = f"cyclealign(rounds=2, prompts=4, n=3, static={str(file)!r}, nll=0.5)"
    trace = traced(plan, rows=ASKS, reward={"judge": by_length}, sampling={"max_tokens": 10})
    assert trace.parts == ["cycle.1", "learn.1", "cycle.2", "learn.2"]
    first, second = ([c for c in trace.calls if c.phase == f"cycle.{i}"] for i in (1, 2))
    assert len(first) == len(second) == 4 and trace.summary["judge_calls"] == 8
    assert all([d["ranked"] for d in c.args[2]] == [["y", "x"]] for c in first)
    shown = [d["ranked"] for d in second[0].args[2]]
    assert shown[0] == ["y", "x"] and len(shown) == 2 and all(c.args[2] == second[0].args[2] for c in second)
    # the example is in the judge's order, and made of answers of one prompt of the round before
    assert shown[1] == sorted(shown[1], key=len, reverse=True) and 1 < len(shown[1]) <= 3
    assert any(set(shown[1]) <= set(c.args[1]) for c in first)
    made = trace.of(phase="learn")
    for u in made:
        for row in u.batch["ranked_LK"]:
            texts = [u.rows[int(i)].text for i in row if i >= 0]
            assert len(texts) > 1 and texts == sorted(texts, key=len, reverse=True)
    assert {p.method.loss.params["nll"] for p in trace.phases} == {0.5} and set(trace.summary["agreement"]) == {
        "round 1",
        "round 2",
    }


def test_the_student_ranks_by_the_mean_over_an_answers_tokens() -> None:
    class Student:
        training = True

        def eval(self) -> None: ...
        def train(self, on: bool) -> None: ...
        def forward(self, rows: Any, needs: Any) -> dict[str, torch.Tensor]:
            # sums -1, -2 and -4 of 1, 4 and 2 tokens: means -1, -0.5 and -2
            return {"logp_BT": torch.tensor([[-1.0, 0, 0, 0], [-0.5, -0.5, -0.5, -0.5], [-2, -2, 0, 0]])}

    assert student_order(Student(), [[0], [0] * 4, [0] * 2]) == (1, 0, 2)  # type: ignore[list-item]


def test_cyclealign_shows_agreements_of_the_round_before_and_asks_new_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cyclealign, "student_order", lambda policy, some: tuple(range(len(some))))
    plan = "cyclealign(rounds=3, prompts=4, n=3)"
    trace = traced(plan, rows=ASKS, reward={"judge": by_length}, says=["aaa", "a", "aa"], sampling={"max_tokens": 10})
    cycles = [[c for c in trace.calls if c.phase == f"cycle.{i}"] for i in (1, 2, 3)]
    asked = [{c.args[0].id for c in calls} for calls in cycles]
    assert not asked[0] & asked[1] and not asked[1] & asked[2] and not asked[0] & asked[2]
    for before, calls in zip(asked, cycles[1:], strict=False):
        (shown,) = calls[0].args[2]
        # the judge: aaa, aa, a; the student: aaa, a, aa: they agree on two of three
        assert shown["ranked"] in (["aaa", "aa"], ["aaa", "a"]) and shown["prompt"].id in before


def test_cyclealign_without_updates_shows_nothing_new_and_by_the_judge_shows_its_whole_ranking() -> None:
    for update, shown, size in (("none", 1, 0), ("judge", 1, 1), ("judge", 2, 2)):
        plan = f"cyclealign(rounds=2, prompts=4, n=3, update={update!r}, shown={shown})"
        trace = traced(plan, rows=ASKS, reward={"judge": by_length}, sampling={"max_tokens": 10})
        second = [c for c in trace.calls if c.phase == "cycle.2"]
        assert all(len(c.args[2]) == size for c in second)
        if size:
            assert len(second[0].args[2][0]["ranked"]) == 3


def test_cyclealign_wants_a_judge_that_reads_examples() -> None:
    with pytest.raises(pt.UserError, match="def judge\\(prompt, texts, demonstrations\\)"):
        traced("cyclealign", rows=ASKS, reward={"judge": lambda prompt, texts: [0.0] * len(texts)})
    with pytest.raises(pt.UserError, match="cyclealign learns from a judge"):
        traced("cyclealign", rows=ASKS)
    with pytest.raises(pt.UserError, match="did you mean 'agreement'"):
        traced("cyclealign(update='agrement')", rows=ASKS, reward={"judge": by_length})


# ---- self-rewarding


def test_self_rewarding_grades_each_answer_three_times_in_words_and_takes_best_against_worst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[tuple[str, str]] = []

    def said(self: PolicyJudge, questions: Any, system: str, attempt: int = 0) -> list[str]:
        found = [q.partition("<answer>\n")[2].rpartition("\n</answer>")[0] for q in questions]
        heard.extend((system, t) for t in found)
        return [f"Reasons.\nScore: {min(len(t), 5)}" for t in found]

    monkeypatch.setattr(PolicyJudge, "said", said)
    trace = traced("self-rewarding(rounds=2, prompts=4)", rows=ASKS, sampling={"max_tokens": 6})
    assert trace.parts == ["collect.1", "dpo.1", "collect.2", "dpo.2"]
    assert len(heard) == 2 * 4 * 4 * 3 == trace.summary["judge_calls"]
    assert all("points that add up" in system and "from 0 (worst) to 5 (best)" in system for system, _ in heard)
    for u in trace.of(phase="dpo"):
        for c, r in zip(u.batch["chosen_P"], u.batch["rejected_P"], strict=True):
            assert min(len(u.rows[int(c)].text), 5) > min(len(u.rows[int(r)].text), 5)
    first, second = trace.of(phase="dpo.1"), trace.of(phase="dpo.2")
    assert second[0].reference == first[-1].after, "each round is held to where it began"
    drawn = [[d for d in trace.samples if d.phase == f"collect.{i}"] for i in (1, 2)]
    asked = [{p for d in some for p in d.prompts} for some in drawn]
    assert asked[0] and not asked[0] & asked[1], "each round has new prompts"
    for made, some in zip((first, second), drawn, strict=True):
        assert {r.text for u in made for r in u.rows} <= {t for d in some for t in d.texts}, "and its own pairs"


def test_self_rewarding_learns_nothing_from_answers_that_got_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyJudge, "said", lambda self, questions, system, attempt=0: ["Score: 3" for _ in questions])
    with pytest.raises(pt.UserError, match="preferred no answer to another"):
        traced("self-rewarding(rounds=1, prompts=4)", rows=ASKS)


def test_self_rewarding_says_when_nothing_can_be_read() -> None:
    with pytest.raises(pt.UserError, match="not one grading could be read"):
        traced("self-rewarding(rounds=1, prompts=2)", rows=ASKS)


def test_self_rewarding_imitates_a_file_first_for_so_many_passes(tmp_path: Path) -> None:
    file = tmp_path / "sft.jsonl"
    file.write_text("".join(json.dumps({"question": f"do {i}", "answer": "it is done so"}) + "\n" for i in range(12)))
    name = f"self-rewarding(rounds=1, prompts=4, sft={str(file)!r}, warmup=2, epochs=3)"
    trace = traced(name, rows=ASKS, reward={"judge": lambda prompt, text: float(len(text))}, sampling={"max_tokens": 6})
    assert trace.parts == ["sft", "collect.1", "dpo.1"]
    assert {r.text for s in trace.steps if s.phase == "sft" for r in s.rollouts} == {"it is done so"}
    assert [len(trace.of(phase=p.name)) for p in trace.phases] == [
        round(k * p.loop.env.size / 2) for k, p in zip((2, 3), trace.phases, strict=True)
    ]
