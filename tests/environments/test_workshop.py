"""The workshop: the right way earns everything, habits do not, problems are a function of (index, split), scenes answer by their rules."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import pytest
import torch

from posttrain.core import rng as draws
from posttrain.core.errors import UserError
from posttrain.core.protocols import Step
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import STOPS, Prompt
from posttrain.environments import base
from posttrain.environments.task import WORKSHOP, task
from posttrain.environments.workshop import (
    SKILLS,
    consultation,
    escape_room,
    hermes,
    one_liners,
    table_sql,
    treasure,
    workshop,
)
from posttrain.environments.workshop.facts_world import world
from posttrain.environments.workshop.scene import LEVELS, WORDINGS, Played, Scene, Workshop, conversation
from posttrain.sandbox.available import why_not
from posttrain.tools.tool import ToolError

TURNS = [name for name, module in SKILLS.items() if hasattr(module, "Scene")]
EVERY = [(skill, level) for skill in SKILLS for level in LEVELS]
needs_sandbox = pytest.mark.skipif(bool(why_not()), reason=f"programs are graded in a sandbox: {why_not()}")


def prompts(skill: str, level: int, n: int = 16) -> list[Prompt]:
    env = workshop(skill, level)
    return [env.prompt(i, base.SPLITS[i % 2]) for i in range(n)]


def worth(skill: str, prompt: Prompt, habit: str, seed: int = 0) -> float:
    """What the expert earns, whether the task has turns or one answer."""
    said, earned = conversation(SKILLS[skill], prompt, habit, Random(seed))
    if skill in TURNS:
        return earned
    return float(SKILLS[skill].check(prompt, said[-1]["content"]))


def few(skill: str) -> int:
    return 2 if skill == "one_liners" else 16


@needs_sandbox
@pytest.mark.parametrize(("skill", "level"), EVERY)
def test_the_right_way_earns_everything(skill: str, level: int) -> None:
    for i, prompt in enumerate(prompts(skill, level, few(skill))):
        assert worth(skill, prompt, "", i) == pytest.approx(1.0), prompt.content


@needs_sandbox
@pytest.mark.parametrize("skill", SKILLS)
def test_habits_lose(skill: str) -> None:
    for habit in SKILLS[skill].HABITS:
        some = [(level, i, p) for level in LEVELS for i, p in enumerate(prompts(skill, level, few(skill)))]
        right = sum(worth(skill, p, habit, i) > 0.99 for _, i, p in some)
        assert right / len(some) <= 0.5, (skill, habit)


@pytest.mark.parametrize(("skill", "level"), EVERY)
def test_problems_are_a_function_of_index_and_split(skill: str, level: int) -> None:
    env, again = workshop(skill, level), workshop(skill, level)
    train, test = ([env.prompt(i, split) for i in range(12)] for split in base.SPLITS)
    assert train == [again.prompt(i, "train") for i in range(12)]
    assert len({p.id for p in train + test}) == 24
    asked, held_out = ({json.dumps([p.content, p.info]) for p in some} for some in (train, test))
    assert not asked & held_out  # the question with its tables; the same words over other tables are another problem
    assert workshop(skill, level, seed=1).prompt(0) != train[0]
    for p in train:
        assert json.loads(json.dumps(p.info))["wording"] in range(len(WORDINGS))
        assert p.info["task"] == skill and p.info["level"] == level


@pytest.mark.parametrize(("skill", "level"), EVERY)
def test_no_problem_is_held_out_in_other_words_only(skill: str, level: int) -> None:
    """What a problem is made of, its wording left out: drawn often enough that small worlds come round."""
    seen: dict[str, set[str]] = {split: set() for split in base.SPLITS}
    for k in range(60 if skill in ("table_sql", "fact_search") else 400):
        problem = SKILLS[skill].make(draws.python("apart", skill, level, k), level)
        wording = WORDINGS[problem.info["wording"]].split("{}")
        asked = problem.question.removeprefix(wording[0]).removesuffix(wording[1])
        hidden = {n: problem.info.get(n) for n in ("rows", "prices", "distances", "world")}
        seen[base.split_of(problem)].add(json.dumps([asked, problem.answer, hidden]))
    assert seen["test"] and not seen["train"] & seen["test"]


@needs_sandbox
@pytest.mark.parametrize("skill", SKILLS)
def test_graders_grade_themselves(skill: str) -> None:
    assert workshop(skill).validate(few(skill)) == []


def test_a_grader_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    env = workshop("treasure")
    monkeypatch.setattr(treasure, "towards", lambda at, goal: "north")
    assert isinstance(env, Workshop)
    found = env.validate.__func__  # type: ignore[attr-defined]
    prompt = Prompt.text("p", "q", "1,1", start=(1, 2), treasure=(1, 1), size=3, level=1, budget=4, wording=0)
    monkeypatch.setattr(Workshop, "prompt", lambda self, i, split="train": prompt)
    assert found(env, 1) == ["p: the right way earns 0.0, not 1"]


# ---- names


def test_every_task_has_a_name() -> None:
    assert tuple(SKILLS) == WORKSHOP
    assert task("treasure", level=1).name == "workshop-treasure-1" == task("workshop/treasure(level=1)").name
    assert task("fact-search").name == "workshop-fact_search-2"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("treasur", "did you mean 'treasure'?"),
        ("workshop/treasur", "did you mean 'workshop/treasure'?"),
        ("treasure(level=4)", "expected 1 to 3; try treasure(level=1)"),
        ("treasure(depth=4)", "it has: level, seed, allow_unsafe_code"),
        ("treasure(allow_unsafe_code=True)", "runs no programs"),
    ],
)
def test_mistakes_in_names_are_told(spec: str, said: str) -> None:
    with pytest.raises(UserError) as told:
        task(spec)
    assert said in str(told.value)


def test_a_mixture_has_turns_if_any_of_it_has() -> None:
    env = task("number_guess + arithmetic")
    assert env.opens and not env.graded
    assert not task("counting + arithmetic").opens
    guess, answer = env.prompt(0), env.prompt(1)
    first = env.open(guess, 0)
    assert isinstance(first, Played)
    second = env.open(answer, 0)
    assert second is not None
    done = second.step(said(str(answer.answer)))
    assert isinstance(done, Step) and done.messages is None and done.reward == 1.0


# ---- scenes by hand


def said(text: str) -> Turn:
    turn = Turn.empty(Observation(torch.zeros(0, dtype=torch.long)))
    turn.text, turn.stopped = text, True
    return turn


def told(scene: Scene, *texts: str) -> list[tuple[str | None, float]]:
    replies = [scene.reply(text) for text in texts]
    return [(r.text, r.reward) for r in replies]


def tool_prompt(**info: Any) -> Prompt:
    return Prompt.text("t", "q", "42", **({"prices": {"lamp": 14}, "distances": {"Arle-Bost": 30}} | info))


FORM = 'write {"name": "...", "arguments": {...}}'
CALLS = [
    (hermes.call("calculator", expression="6*7"), "42"),
    ("<tool_call>\n" + json.dumps({"name": "find_price", "arguments": {"item": "lamp"}}) + "\n</tool_call>", "14"),
    (hermes.call("find_distance", start="Bost", end="Arle"), "30"),
    (hermes.call("calculator", expression="1/0"), "error: division by zero"),
    (hermes.call("calculator", expression="__import__('os')"), "error: \"__import__('os')\" is not arithmetic; it takes numbers, + - * / // % **, and functions such as sqrt"),
    (hermes.call("find_price", item="moon"), "error: no price of 'moon'; there are: lamp"),
]  # fmt: skip
FAULTY = [
    (hermes.call("calculator", expr="6*7"), "calculator has no argument 'expr'; did you mean 'expression'?"),
    (hermes.call("find_prices", item="lamp"), "there is no tool 'find_prices'; did you mean 'find_price'?"),
    ('<tool_call>["calculator"]</tool_call>', f"the call has no name; {FORM}"),
    ('<tool_call>{"name": "calculator"}</tool_call>', f"the call of calculator has no arguments; {FORM}"),
    ('<tool_call>{"name": "calculator", "arguments": "6*7"}</tool_call>', f"the arguments of calculator are no JSON object; {FORM}"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "observed"), CALLS)
def test_calls(text: str, observed: str) -> None:
    reply = SKILLS["tool_calls"].Scene(tool_prompt()).reply(text)
    assert (reply.text, reply.role, reply.reward) == (observed, "tool", 0.0)
    assert reply.calls[0]["result"] == observed and not reply.faults


@pytest.mark.parametrize(("text", "fault"), FAULTY)
def test_faulty_calls(text: str, fault: str) -> None:
    reply = SKILLS["tool_calls"].Scene(tool_prompt()).reply(text)
    assert (reply.text, reply.role, reply.faults, reply.calls) == (f"error: {fault}", "tool", (fault,), ())


def test_a_call_that_is_not_json_and_one_that_never_ends() -> None:
    reply = SKILLS["tool_calls"].Scene(tool_prompt()).reply("<tool_call>calculator(6*7)</tool_call>")
    assert (reply.text or "").startswith("error: the call is not JSON") and FORM in (reply.text or "")
    reply = SKILLS["tool_calls"].Scene(tool_prompt()).reply('<tool_call>{"name": "calculator"')
    assert reply.text is None and reply.stop == "structural" and reply.reward == 0.0


def test_a_call_in_a_thought_is_not_made_and_an_answer_ends_it() -> None:
    scene = SKILLS["tool_calls"].Scene(tool_prompt())
    reply = scene.reply(f"<think>{hermes.call('calculator', expression='1')}</think>42")
    assert reply.text is None and reply.reward == 1.0 and not reply.calls
    assert SKILLS["tool_calls"].Scene(tool_prompt()).reply("41").reward == 0.0
    assert (
        SKILLS["tool_calls"].Scene(tool_prompt()).reply("<think>42").reward == 0.0
    )  # a thought that never ends is no answer


def test_three_faults_in_a_row_and_too_many_calls_end_it() -> None:
    bad, good = "<tool_call>x</tool_call>", hermes.call("calculator", expression="1")
    scene = SKILLS["tool_calls"].Scene(tool_prompt())
    assert [scene.reply(t).text is None for t in (bad, bad, good, bad, bad)] == [False] * 5  # a good call forgives
    last = scene.reply(bad)
    assert last.text is None and last.stop == "content" and last.reward == 0.0
    scene = SKILLS["tool_calls"].Scene(tool_prompt())
    stops = [scene.reply(good) for _ in range(scene.most + 1)]
    assert stops[-2].text == "1" and stops[-1].text is None and stops[-1].stop == "max_calls"


def test_two_calls_in_a_turn_are_answered_in_order_and_kept_by_turn() -> None:
    both = hermes.call("calculator", expression="1+1") + hermes.call("find_price", item="lamp")
    episode = Played(SKILLS["tool_calls"].Scene(tool_prompt()))
    step = episode.step(said(both))
    assert isinstance(step.messages, list) and step.messages[0] == {"role": "tool", "content": "2\n14"}
    last = episode.step(said("<tool_call>x</tool_call>"))
    first, second = last.info["tools"]
    assert [c["name"] for c in first["calls"]] == ["calculator", "find_price"] and not first["faults"]
    assert not second["calls"] and len(second["faults"]) == 1


def test_a_turn_that_was_cut_off_earns_nothing_and_calls_nothing() -> None:
    for text in ("42", hermes.call("calculator", expression="6*7"), "<tool_call>{"):
        turn = said(text)
        turn.stopped = False
        step = Played(SKILLS["tool_calls"].Scene(tool_prompt())).step(turn)
        assert step == Step(None, 0.0, stop="length")


def test_search_finds_in_its_own_world_and_counts() -> None:
    prompt = workshop("fact_search", 1).prompt(3)
    scene = SKILLS["fact_search"].Scene(prompt)
    name = prompt.info["chain"][0]
    found = scene.reply(f"<search>{name}</search>")
    assert found.role == "tool" and name in (found.text or "") and prompt.answer in (found.text or "")
    assert scene.reply("<search>zzz</search>").text == "nothing was found; try other words"
    replies = [scene.reply("<search>x</search>") for _ in range(4)]
    assert replies[-1].text is None and replies[-1].stop == "max_calls"
    assert SKILLS["fact_search"].Scene(prompt).reply(prompt.answer).reward == 1.0


def test_worlds_are_divided_between_the_splits() -> None:
    train, test = ({workshop("fact_search").prompt(i, s).info["world"] for i in range(60)} for s in base.SPLITS)
    assert not train & test and len(test) > 20
    known = world(5)
    assert known.facts == world.__wrapped__(5).facts and len(known.people) == 14
    assert all(known.facts[p]["home"] in known.towns for p in known.people)


def test_queries_read_and_never_write() -> None:
    info = {"table": "shop", "columns": ["item", "price", "stock"], "rows": [["pen", 12, 3], ["cup", 30, 5]]}
    assert table_sql.queried(info, "SELECT price FROM shop WHERE item = 'cup'") == "price\n30"
    assert (
        table_sql.bare("SELECT a FROM t WHERE b > 1 ORDER BY c DESC LIMIT 1")
        == "SELECT a FROM t ORDER BY c DESC LIMIT 1"
    )
    assert table_sql.bare("SELECT a FROM t ORDER BY c DESC LIMIT 1") == "SELECT a FROM t"
    scene = SKILLS["table_sql"].Scene(Prompt.text("s", "q", "30", **info))
    refused = scene.reply(hermes.call("sql", query="DELETE FROM shop"))
    assert "read-only" in (refused.text or "") and refused.calls[0]["result"] == refused.text
    assert told(scene, hermes.call("sql", query="SELECT COUNT(*) FROM shop"), "30") == [
        ("COUNT(*)\n2", 0.0),
        (None, 1.0),
    ]


@needs_sandbox
def test_programs_are_run_on_held_out_calls() -> None:
    prompt = workshop("one_liners", 1).prompt(0, "test")
    gold = str(prompt.answer)
    assert one_liners.check(prompt, f"```python\n{gold}\n```") == 1.0
    assert one_liners.check(prompt, f"<think>so</think>{gold}") == 1.0
    for wrong in ("", "exit(0)", "def f(x): return 0", prompt.info["wrong"], f"<think>{gold}"):
        assert one_liners.check(prompt, wrong) == 0.0
    assert not any(str(t["args"]) in prompt.last for t in prompt.info["tests"])


def test_treasure_by_hand() -> None:
    # 4x4, from 1,1 to 3,2, told distances: 3 steps allow 1,4 2,3 3,2 4,1; the first is north. At 1,2 it is 2 steps: 1,4 2,3 3,2, so
    # north; at 1,3 it is 3: of 2,3 (1 away), 3,2 (3 away) only 3,2 is left: east, east, south
    assert list(treasure.walk((1, 1), (3, 2), 4, 2)) == ["north", "north", "east", "east", "south"]
    info = {"start": [1, 1], "treasure": [3, 1], "size": 3, "level": 1, "budget": 4}
    scene = treasure.Scene(Prompt.text("t", "q", "", **info))
    assert told(scene, "south", "dance", "East.", "east") == [
        ("You are at 1,1. The treasure lies east.", 0.0),  # a fence
        ("Say north, east, south or west. You are at 1,1. The treasure lies east.", 0.0),
        ("You are at 2,1. The treasure lies east.", 0.0),
        (None, 1.0),
    ]
    scene = treasure.Scene(Prompt.text("t", "q", "", **info))
    assert [scene.reply("north").text is None for _ in range(4)] == [False, False, False, True]


def test_guesses_by_hand() -> None:
    prompt = Prompt.text("g", "q", "6", low=1, high=7, tries=3)
    scene = SKILLS["number_guess"].Scene(prompt)
    assert told(scene, "I say 4", "well", "7") == [("higher", 0.0), ("Say a number.", 0.0), (None, 0.0)]
    messages, earned = conversation(SKILLS["number_guess"], prompt, "", Random(0))
    assert [m["content"] for m in messages[1:]] == ["4", "higher", "6"] and earned == 1.0


def test_rooms_by_hand() -> None:
    ways = {"hall": {"north": "attic"}, "attic": {"south": "hall", "east": "tower"}, "tower": {"west": "attic"}}
    info = {"map": ways, "start": "hall", "key": "attic", "chest": "tower", "budget": 9}
    scene = escape_room.Scene(Prompt.text("e", "q", "coin", **info))
    assert told(scene, "take key", "go up", "go north", "take key", "take key", "go east", "open chest", "take coin") == [
        ("That does nothing.", 0.0), ("There is no way.", 0.0), ("You are in the attic. You see a key.", 0.0), ("You have the key.", 0.25),
        ("That does nothing.", 0.0), ("You are in the tower. You see a chest.", 0.0), ("The chest is open. You see a coin.", 0.25), (None, 0.5),
    ]  # fmt: skip
    assert escape_room.commands(info) == ["go north", "take key", "go east", "open chest", "take coin"]
    scene = escape_room.Scene(Prompt.text("e", "q", "coin", **(info | {"start": "tower", "budget": 3})))
    assert told(scene, "open chest", "take coin", "open chest") == [
        ("It is locked.", 0.0),
        ("That does nothing.", 0.0),
        (None, 0.0),
    ]


def test_a_second_try_keeps_both_grades() -> None:
    scene = SKILLS["second_try"].Scene(Prompt.text("s", "q", "85"))
    assert told(scene, "75", "<think>7+8=15</think>85") == [(SKILLS["second_try"].AGAIN, 0.0), (None, 1.0)]
    assert scene.told == {"first": 0.0, "second": 1.0}
    scene = SKILLS["second_try"].Scene(Prompt.text("s", "q", "85"))
    assert told(scene, "85", "84")[-1] == (None, 0.0) and scene.told == {"first": 1.0, "second": 0.0}


def test_a_consultation_by_hand() -> None:
    info = {"illness": "moon rash", "complaint": "rash", "level": 2, "budget": 4}
    scene = consultation.Scene(Prompt.text("c", "q", "", **info))
    asked = ("Do you have fever?", "Do you have a fever?", "How are you?", "Do you have chills?")
    assert [scene.reply(t).text for t in asked] == [
        "Yes.",
        "Yes.",
        "Sorry, I do not understand.",
        "No. My time is up. What is it?",
    ]
    last = scene.reply("Diagnosis: moon rash. Advice: tea.")
    assert last.text is None and last.reward == 0.5
    assert scene.told == {"questions": 4, "repeated": 1, "not_understood": 1, "diagnosis": 1.0}
    assert scene.reply("hm").stop == "max_turns"
    signs = [frozenset(s) for s, _ in consultation.ILLNESSES.values()]
    assert len(set(signs)) == len(signs) and len({a for _, a in consultation.ILLNESSES.values()}) == len(signs)


@pytest.mark.parametrize("skill", TURNS)
def test_an_episode_ends_whatever_is_said_and_can_be_copied(skill: str) -> None:
    env = workshop(skill)
    nonsense = (
        "",
        "<think>",
        "<tool_call>",
        "<search></search>",
        "go",
        "12",
        "north",
        "Do you have ?",
        "\x00",
        "9" * 400,
    )
    for k in range(len(nonsense)):
        episode = env.open(env.prompt(k), 0)
        assert isinstance(episode, Played)
        for turn in range(20):
            other = copy.deepcopy(episode)
            step = episode.step(said(nonsense[(k + turn) % len(nonsense)]))
            again = other.step(said(nonsense[(k + turn) % len(nonsense)]))
            assert step == again
            if step.messages is None:
                assert step.stop in STOPS
                break
        else:
            pytest.fail("it does not end")


def test_no_query_takes_long() -> None:
    """The database looks at the clock between its steps alone; what takes long inside of one is refused by its size."""
    info = {"table": "t", "columns": ["a", "b", "c"], "rows": [["x", 1, 2]]}
    with pytest.raises(ToolError, match="too big"):
        table_sql.queried(info, "select instr(hex(zeroblob(900000)), hex(zeroblob(200000)) || '1')")
