"""What sets EEF and Agent-R apart, on the registered plans in a real game with turns.

Claims to come, on text games with the embedded model that plays them, against baselines with the same episodes and updates:
eef: arms SFT on the expert's successes, RFT, RFT with six times the samples, eef; wins on tasks that the expert lost; eef above RFT by 15
points there, and imitating lost runs without the mask below RFT.
agent-r: arms SFT on good runs, splicing at the end of the bad run, agent-r; success from injected wrong beginnings of 1 to 4 steps, and steps
until it corrects itself; agent-r above SFT by 15 points, and earlier than splicing at the end.
"""

from __future__ import annotations

import json
from pathlib import Path as File
from typing import Any

import pytest

import posttrain as pt
from posttrain.core.types import Prompt
from posttrain.environments.task import task
from posttrain.rollouts.retraced import Path, retrace
from posttrain.systems.agents_multiturn.agent_r import (
    THOUGHTS,
    Node,
    add,
    first_error,
    leaf,
    pairs,
    shared,
    spliced,
    ucb,
)
from posttrain.systems.agents_multiturn.eef import selected, states
from tests.wiring.spies import traced

GAME = '''
from posttrain.core.protocols import Environment, Episode, Limits, Step
from posttrain.core.types import Prompt


class Door(Environment):
    """Say k (take the key) before o (open the door); four turns."""

    name, limits, size = "door", Limits(turns=4), 6

    def prompt(self, index, split="train"):
        return Prompt.text(f"door-{split}-{index}", f"{index} door")

    def open(self, prompt, key):
        return Room()


class Room(Episode):
    def __init__(self):
        self.key, self.turns = False, 0

    def step(self, turn):
        said = turn.text[:1]
        self.key |= said == "k"
        self.turns += 1
        if said == "o":
            return Step(None, float(self.key))
        return Step([{"role": "user", "content": f"t{self.turns}{'key' if self.key else ''}"}], 0.0)
'''


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("game") / "door_game.py"
    file.write_text(GAME)
    return f"{file}:Door"


def path(*texts: str, worth: float = 0.0, prompt: str = "p") -> Path:
    replies = tuple(({"role": "user", "content": f"after {t}"},) for t in texts[:-1]) + ((),)
    return Path(Prompt.text(prompt, "go"), texts, replies, (0.0,) * (len(texts) - 1) + (worth,), True)


def played(name: str, door: str, says: list[str], **settings: Any) -> Any:
    return traced(name, rows=door, says=says, positions=2048, sampling={"max_tokens": 60}, **settings)


def test_a_run_is_made_again_and_cut(door: str) -> None:
    env = task(door)
    whole = retrace(env, env.prompt(0), ["x", "k", "o", "x"])
    assert whole.texts == ("x", "k", "o") and whole.worth == 1.0 and whole.ended and whole.replies[-1] == ()
    begun = whole.first(2)
    assert not begun.ended and begun.worth == 0.0
    assert [m["content"] for m in begun.messages] == ["0 door", "x", "t1", "k", "t2key"]
    assert retrace(env, env.prompt(0), ["x"] * 9).ended, "four turns at most"


# ---- EEF


def test_eef_learns_the_moves_that_turn_failure_into_success() -> None:
    """The expert e1 e2 e3 e4 e5; the policy takes over behind 0, 2 and 4 moves, loses, wins, loses: e1 e2 turned it, and are learned with what
    the policy did from there. Won behind 4 and lost behind 2: e3 e4 are learned, e1 e2 only read."""
    lost, won = path("a", "b"), path("e1", "e2", "x", "y", worth=1.0)
    late = path("e1", "e2", "e3", "e4", "x", worth=1.0)
    assert selected({0: lost, 2: won, 4: path("e1", "e2", "e3", "e4", "z")}) == [(won, [True] * 4)]
    assert selected({0: lost, 2: path("e1", "e2", "z"), 4: late}) == [(late, [False, False, True, True, True])]
    assert selected({0: path("x", worth=1.0), 2: won}) == [(path("x", worth=1.0), [True])]
    assert selected({0: lost, 2: lost}) == [] and selected({0: lost}, success=0.0) == [(lost, [True, True])]
    assert states(5, 2) == [0, 2, 4] and states(1, 3) == [0]


def test_eef_clones_then_explores_from_the_experts_states(door: str, tmp_path: File) -> None:
    file = tmp_path / "expert.jsonl"
    runs = [(0, ["x", "k", "o"]), (1, ["x", "k", "x", "x"]), (2, ["x", "x", "x", "x"])]
    file.write_text("".join(json.dumps({"index": i, "actions": a}) + "\n" for i, a in runs))
    trace = played(f"eef(expert={str(file)!r}, rounds=2, every=2)", door, says=["o"])
    assert trace.parts == ["clone", "explore.1", "learn.1", "explore.2", "learn.2"]
    cloned = [r for s in trace.steps if s.phase == "clone" for r in s.rollouts]
    assert {tuple(t.text for t in r.turns) for r in cloned} == {("x", "k", "o")}, "only what the expert won"
    rows = {tuple(t.text for t in r.turns): r for s in trace.steps if s.phase.startswith("learn") for r in s.rollouts}
    # "o" loses from the start and behind x x; behind x k it wins, also where the expert itself lost
    assert set(rows) == {("x", "k", "o")}
    texts = [r.prompt.content[0]["content"] for s in trace.steps if s.phase.startswith("learn") for r in s.rollouts]
    assert {t[0] for t in texts} == {"0", "1"}, "the expert's lost run too, never the hopeless one"
    seen = [p for d in trace.samples if d.phase.startswith("explore") for p in d.prompts]
    assert any(p.count("x") >= 1 and "t2key" in p for p in seen) and any(p.strip() == "2 door" for p in seen)
    assert trace.summary["won_by_round"] == [0.0, 0.0] and "reward_before" in trace.summary


def test_eef_masks_the_experts_other_moves(door: str, tmp_path: File) -> None:
    file = tmp_path / "expert.jsonl"
    file.write_text(json.dumps({"index": 0, "actions": ["x", "k", "x", "x"]}) + "\n")
    trace = played(f"eef(expert={str(file)!r}, rounds=1, every=1, warmup=0)", door, says=["o"], prompts=1)
    (made,) = {u.phase: u for u in trace.updates}.values()
    policy = trace.phases[0].loop.policy
    own = {
        policy.decode(row.actions[m[: len(row.actions)] > 0])
        for row, m in zip(made.rows, made.batch["mask_BT"], strict=True)
    }
    assert own == {"ko"}, "x before the key is read, not learned"


def test_eef_takes_the_best_of_its_runs_and_keeps_what_earlier_rounds_found(door: str, tmp_path: File) -> None:
    """Of two runs from each state the second opens; from then on nobody does: what round 1 found is learned in round 2 as well."""
    file = tmp_path / "expert.jsonl"
    file.write_text(json.dumps({"index": 0, "actions": ["x", "k", "x", "x"]}) + "\n")
    name = f"eef(expert={str(file)!r}, rounds=2, every=2, warmup=0, n=2)"
    trace = played(name, door, says=["z", "o", "z", "o", *["z"] * 40], eval_problems=0)
    assert trace.parts == ["explore.1", "learn.1", "explore.2", "learn.2"]
    for phase in ("learn.1", "learn.2"):
        learned = {tuple(t.text for t in r.turns) for s in trace.steps if s.phase == phase for r in s.rollouts}
        assert learned == {("x", "k", "o")}


def test_eef_takes_for_won_what_it_is_told(tmp_path: File) -> None:
    """Opening without the key is worth 1/2, which is success enough: the policy's run from the start is learned, and nothing of the expert's."""
    game, file = tmp_path / "half_game.py", tmp_path / "expert.jsonl"
    game.write_text(GAME.replace("float(self.key)", "0.5 + 0.5 * self.key"))
    file.write_text(json.dumps({"index": 0, "actions": ["x", "k", "x", "x"]}) + "\n")
    name = f"eef(expert={str(file)!r}, rounds=1, every=2, warmup=0, success=0.5, epochs=6)"
    trace = played(name, f"{game}:Door", says=["o"], eval_problems=0)
    assert {tuple(t.text for t in r.turns) for s in trace.steps for r in s.rollouts} == {("o",)}
    assert len(trace.updates) == 3, "six passes over one row, two rows in a step"


def test_eef_says_what_it_needs(door: str, tmp_path: File) -> None:
    with pytest.raises(pt.UserError, match=r"--plan\.expert FILE\.jsonl"):
        played("eef", door, says=["o"])
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"index": 9, "actions": ["o"]}\n')
    with pytest.raises(pt.UserError, match=r"a whole number below 6"):
        played(f"eef(expert={str(bad)!r})", door, says=["o"])
    bad.write_text('{"index": 0, "actions": ["o"]}\n')
    with pytest.raises(pt.UserError, match="no turns, so none can be made again"):
        traced(f"eef(expert={str(bad)!r})")
    trace = played(f"eef(expert={str(bad)!r})", door, says=["o"])
    assert "no run of the expert succeeded" in trace.summary["stopped"]


# ---- Agent-R


def test_the_tree_of_agent_r() -> None:
    """Three runs a b (1), a c (0), d (0): root 3 visits, worth 1; a 2 visits, 1; UCB of a: 1/2 + 0.25 sqrt(ln 3 / 2) = 0.6853; of d:
    0.25 sqrt(ln 3) = 0.2620. With 2 samples the root is full, a is better and full, and of b and c, visited once each, b."""
    root = Node()
    for p in (path("a", "b", worth=1.0), path("a", "c"), path("d")):
        add(root, p)
    a = root.children["a"]
    assert (root.visits, root.value, a.visits, a.value) == (3, 1.0, 2, 1.0) and a.children["b"].ended
    assert ucb(a, root) == pytest.approx(0.68529, abs=1e-4) and ucb(root.children["d"], root) == pytest.approx(
        0.26204, abs=1e-4
    )
    assert leaf(root, 2, 10) is a.children["b"] and leaf(root, 3, 10) is root and leaf(root, 2, 1) is a


def test_a_revision_of_agent_r() -> None:
    good, bad, close = path("s", "k", "o", worth=1.0), path("s", "x", "y", "o"), path("q", worth=0.9)
    assert pairs([good, bad, close], 0.5, 0.2) == [(good, bad), (close, bad)]
    assert pairs([good, bad], 1.0, 0.0) == [], "more than alpha"
    assert shared(good, bad) == 1 and shared(good, good) == 3
    messages, learned = spliced(good, bad, 2, "oh")
    said = [m["content"] for m in messages if m["role"] == "assistant"]
    assert said == ["s", "x", "Thought: oh\nAction: wait", "k", "o"] and learned == [False, False, True, True, True]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["go", "after s", "after x", "ok.", "after k"]
    whole, flags = spliced(good, bad, 4, "oh")
    assert (
        flags == [False] * 4 + [True] * 3
        and whole[-7]["content"] == "o"
        and whole[-6] == {"role": "user", "content": "failed."}
    )
    asked: list[Prompt] = []

    def critic(prompts: Any) -> list[str]:
        asked.extend(prompts)
        return ["Judgement: good", "hm. Judgement: Uncertain", "Judgement: bad"][: len(prompts)]

    assert first_error(bad, 1, critic) == 4 and first_error(bad, 3, critic) == 4
    assert first_error(bad, 1, lambda prompts: ["bad", *["good"] * 2]) == 2
    assert (
        "Next step:\nx" in asked[0].last
        and "Action: s" in asked[0].last
        and "the end, without success" in asked[2].last
    )


def test_agent_r_searches_judges_itself_and_learns_the_correction(door: str) -> None:
    trace = played(
        "agent-r(rounds=2, tasks=2, iterations=2, samples=2)",
        door,
        says=["k", "o", "x", "x", "x", "o", "Judgement: bad"],
    )
    assert trace.parts == ["search.1", "learn.1", "search.2", "learn.2"]
    revised = [
        r
        for s in trace.steps
        if s.phase == "learn.1"
        for r in s.rollouts
        if any("Action: wait" in t.text for t in r.turns)
    ]
    assert revised
    for r in revised:
        at = next(i for i, t in enumerate(r.turns) if "Action: wait" in t.text)
        assert not any(bool(t.mask_T.any()) for t in r.turns[:at]) and all(bool(t.mask_T.all()) for t in r.turns[at:])
        assert any(thought in r.turns[at].text for thought in THOUGHTS) and r.turns[-1].text[:1] == "o"
    policy = trace.phases[0].loop.policy
    waits = [(i, t) for r in revised for i, t in enumerate(r.turns) if "Action: wait" in t.text]
    early = [t for i, t in waits if i < 4 and "failed." not in policy.decode(t.observation.tokens)]
    assert early, "cut at the first bad step, where the bad run had not ended yet"
    judged = [d for d in trace.samples if d.phase == "search.1" and any("Judgement:" in p for p in d.prompts)]
    assert judged and all("policy" in d.roles for d in judged), "by the actor itself"
    good = [r for s in trace.steps if s.phase == "learn.1" for r in s.rollouts if r not in revised]
    assert good and all(t.mask_T.all() for r in good for t in r.turns), "good runs are learned whole, too"
    later = {d.weights for d in trace.samples if d.phase == "search.2"}
    assert later == {trace.of(phase="learn.1")[-1].after}, "the next search is by the new policy"
    assert len(trace.summary["success_by_round"]) == 2


def test_a_good_run_of_agent_r_is_worth_alpha_and_beta_more_than_the_bad_one(tmp_path: File) -> None:
    """Opening without the key is worth 1/2: with alpha 0.4 that is good, and with beta 0.6 it is neither bad beside 1 nor good beside 0."""
    file = tmp_path / "ajar_game.py"
    file.write_text(GAME.replace("float(self.key)", "0.5 + 0.5 * self.key"))
    name = "agent-r(rounds=1, tasks=3, iterations=2, samples=3, alpha=0.4, beta=0.6, epochs=3)"
    says = ["k", "o", "x", "o", "x", "x", "x", "x", "Judgement: good"]
    trace = played(name, f"{file}:Door", says=says, eval_problems=0)
    runs = [[t.text for t in r.turns] for s in trace.steps for r in s.rollouts]
    revised = [r for r in runs if any("Action: wait" in t for t in r)]
    assert revised and not any("o" in r[: r.index(t)] for r in revised for t in r if "Action: wait" in t), (
        "1/2 is not bad"
    )
    assert any(r[-1] == "o" and "k" not in r for r in runs), "1/2 is good"
    assert len(trace.updates) == round(3 * trace.phases[0].loop.env.size / 2), "three passes, of two rows a step"


def test_agent_r_says_what_it_needs(door: str) -> None:
    with pytest.raises(pt.UserError, match="no turns, so none can be made again"):
        traced("agent-r")
    trace = played("agent-r(rounds=1, tasks=1)", door, says=["o"])
    assert "nothing to learn from" in trace.summary["stopped"]
