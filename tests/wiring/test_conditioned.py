"""Policies that are told in their prompt what is wanted: which row is told what, how much it counts, what they are asked for later."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.commands.policy import load
from posttrain.core.types import Prompt
from posttrain.environments.task import of_rows
from posttrain.methods.ratings import Ratings
from posttrain.systems.supervised_from_reward.openchat_crlft import classes_of
from tests.cli.conftest import call
from tests.wiring.spies import tiny_folder, traced

MIXED = [
    {"question": f"{a}+{b}=?", "answer": "9" * (1 + (a + b) % 3), "class": "expert" if a % 2 == 0 else "web"}
    for a in range(8)
    for b in range(6)
]


def used(runs: Path, name: str, prefer: str = "") -> Any:
    """The policy of a run, as `chat` and `eval` load it."""
    given = Namespace(model=name, runs=str(runs), phase=None, adapter="", device="", dtype=None, prefer=prefer)
    return load(given)[0]


# ---- OpenChat


def test_openchat_tells_every_row_its_class_and_weighs_it() -> None:
    trace = traced("openchat-crlft(epochs=0.5)", rows=MIXED, prompts=6)
    by_question = {r["question"]: r for r in MIXED}
    assert trace.parts == ["classes", "c-rlft"] and trace.updates
    seen = set()
    for step, made in zip(trace.steps, trace.updates, strict=True):
        policy = trace.roles["policy"]
        weights = []
        for r in step.rollouts:
            read = policy.decode(r.row.observation.tokens)
            name, _, question = read.partition(" User: ")
            assert name == by_question[question]["class"] and r.text == by_question[question]["answer"]
            weights.append(1.0 if name == "expert" else 0.1)
            seen.add(name)
        (only,) = made.passes
        w_BT = torch.tensor(weights).unsqueeze(-1) * made.batch["mask_BT"]
        torch.testing.assert_close(only.pull["logp_BT"], w_BT / w_BT.sum(), rtol=1e-5, atol=1e-7)
    assert seen == {"expert", "web"}


def test_openchat_may_count_answers_and_not_tokens() -> None:
    trace = traced("openchat-crlft(epochs=0.2, per='answer', weight=0.5)", rows=MIXED, prompts=6)
    for step, made in zip(trace.steps, trace.updates, strict=True):
        w_B1 = torch.tensor([[1.0 if r.prompt.info["class"] == "expert" else 0.5] for r in step.rollouts])
        share_BT = made.batch["mask_BT"] / made.batch["mask_BT"].sum(-1, keepdim=True)
        want = w_B1 * share_BT / w_B1.sum()
        torch.testing.assert_close(made.passes[0].pull["logp_BT"], want, rtol=1e-5, atol=1e-7)


def test_openchat_asks_for_the_best_class_also_where_no_held_out_row_is_of_it(tmp_path: Path) -> None:
    for name, rows in (("train", MIXED), ("test", [r | {"class": "web"} for r in MIXED[:4]])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    trace = traced("openchat-crlft(epochs=0.1)", rows=str(tmp_path))
    read = {p for d in trace.samples for p in d.prompts}
    assert read and all(p.startswith("expert User: ") for p in read)


def test_the_best_class_is_the_one_that_is_named_and_not_the_first_by_letter() -> None:
    env = of_rows([{**row, "class": "zeal" if row["class"] == "expert" else "web"} for row in MIXED])
    assert classes_of(env, "class", "zeal").names == ("zeal", "web") and classes_of(env, "class", "web").names == (
        "web",
        "zeal",
    )
    assert classes_of(env, "class", "zeal").asked() == "zeal"


def test_openchat_is_measured_as_an_expert_on_rows_of_experts() -> None:
    trace = traced("openchat-crlft(epochs=0.1)", rows=MIXED)
    read = {p for d in trace.samples for p in d.prompts}
    best = {r["question"] for r in MIXED if r["class"] == "expert"}
    assert read and all(p.startswith("expert User: ") and p.removeprefix("expert User: ") in best for p in read)
    assert trace.summary["told"] == ["expert", "web"] and "accuracy_after" in trace.summary


def test_classes_may_be_numbers() -> None:
    rows = [r | {"class": 4 if r["class"] == "expert" else 3} for r in MIXED]
    trace = traced("openchat-crlft(epochs=0.1, expert='4')", rows=rows, eval_problems=20)
    best = {r["question"] for r in rows if r["class"] == 4}
    read = {p for d in trace.samples for p in d.prompts}
    assert read and {p.removeprefix("4 User: ") for p in read} <= best


@pytest.mark.parametrize(
    ("name", "rows", "told"),
    [
        ("openchat-crlft(column='source')", MIXED, r"has no class in the column 'source'; .* --plan.column NAME"),
        ("openchat-crlft(expert='gpt4')", MIXED, r"no row .* has the class 'gpt4' .* are expert, web: .* --plan.expert NAME"),
        ("openchat-crlft", [r | {"class": "expert"} for r in MIXED], "plain imitation: run sft"),
        ("openchat-crlft(weight=2)", MIXED, "weight is 2; .* from 0 to 1"),
        ("openchat-crlft(per='row')", MIXED, "way to count"),
        ("openchat-crlft(epochs=0)", MIXED, "more than 0 passes"),
        ("openchat-crlft", "arithmetic", "learns from rows that say their class"),
    ],
)  # fmt: skip
def test_openchat_asks_for_classes(name: str, rows: Any, told: str) -> None:
    with pytest.raises(pt.UserError, match=told):
        traced(name, rows=rows)


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    pt.run(model=tiny_folder(), task=MIXED, method="openchat-crlft(epochs=0.1)", runs=tmp_path, name="oc", threads=1,
           eval_problems=0, prompts=4)  # fmt: skip
    return tmp_path


def test_whoever_uses_the_run_asks_for_the_best_class_or_another(chat: Path) -> None:
    asked = Prompt.text("q", "1+1=?")
    assert used(chat, "oc").rendered(asked) == "expert User: 1+1=?"
    web = used(chat, "oc", "web")
    assert web.rendered(asked) == web.clone().rendered(asked) == "web User: 1+1=?"
    with pytest.raises(pt.UserError, match="did you mean 'web'"):
        used(chat, "oc", "wbe")
    with pytest.raises(pt.UserError, match="was not trained to be told"):
        used(chat, tiny_folder(), "web")


def test_a_run_that_begins_with_it_goes_on_as_it_was_told(chat: Path) -> None:
    pt.run(
        model=str(chat / "oc"), task=MIXED, method="sft", runs=chat, name="more", threads=1, eval_problems=0, steps=1
    )
    assert used(chat, "more").rendered(Prompt.text("q", "1+1=?")) == "expert User: 1+1=?"
    with pytest.raises(pt.UserError, match="would tell it twice"):
        pt.run(model=str(chat / "oc"), task=MIXED, method="openchat-crlft", runs=chat, name="twice", threads=1)


# ---- DPA


def long(prompt: Any, text: str) -> float:
    return float(len(text))


def vowels(prompt: Any, text: str) -> float:
    return float(sum(c in "aeiou" for c in text))


SAYS = ["aaaaa", "bcdfg", "a", "b"]  # (5 long, 5 vowels), (5, 0), (1, 1), (1, 0)
RATED = [
    {"question": f"{i} {j}", "answer": "a" * j, "long": float(j), "vowels": float(10 - j)}
    for i in range(8)
    for j in range(1, 5)
]
PLAN = "dpa(rewards='long,vowels', rounds=2, prompts=6, n=4, epochs=0.5)"


def weights_of(text: str) -> tuple[float, float]:
    said = text.splitlines()[0].partition(" = ")[2]
    return tuple(int(piece.rpartition("*")[2]) / 100 for piece in said.split(" + "))  # type: ignore[return-value]


def test_dpa_imitates_the_best_answer_in_the_direction_that_its_prompt_is_told() -> None:
    trace = traced(PLAN, reward={"long": long, "vowels": vowels}, says=SAYS, prompts=3)
    assert trace.parts == ["directions", "collect.1", "dpa.1", "look.1", "collect.2", "dpa.2", "look.2"]
    (long_mean, long_std), (vowel_mean, vowel_std) = trace.summary["scale"]
    policy, seen = trace.roles["policy"], set()
    for step in trace.steps:
        for r in step.rollouts:
            v = weights_of(policy.decode(r.row.observation.tokens))
            assert v[0] > 0.7 and abs(v[1]) < 0.72
            worth = {
                t: v[0] * (long(0, t) - long_mean) / long_std + v[1] * (vowels(0, t) - vowel_mean) / vowel_std
                for t in SAYS
            }
            assert r.text == max(worth, key=worth.__getitem__), "of all four, which every prompt got"
            seen.add(r.text)
    assert seen == {"aaaaa", "bcdfg"}, "to either side of the first reward"
    asked = {d.phase: d.prompts for d in trace.samples if d.phase.startswith("collect")}
    assert all("rating" not in p for p in asked["collect.1"]) and all("rating" in p for p in asked["collect.2"])
    assert trace.of(phase="dpa.2")[0].before == trace.of(phase="dpa.1")[-1].after
    assert {"vowels=-0.71", "vowels=+0.00", "vowels=+0.71"} <= set(trace.summary)


def test_rounds_of_dpa_have_new_prompts_and_the_units_of_the_first() -> None:
    """A reward that grows: in units of its own round 2 would call what it sees average."""
    scores = iter([0.0, 1.0] * 12 + [50.0, 60.0] * 200)

    def growing(prompt: Any, text: str) -> float:
        return next(scores)

    trace = traced(PLAN, reward={"long": growing, "vowels": vowels}, says=SAYS, prompts=3)
    mean, std = trace.summary["scale"][0]
    assert (mean, std) == (0.5, 0.5), "of the first round's 24 answers alone"
    plain = [
        {p.rpartition("\n")[2] for d in trace.samples if d.phase == f"collect.{k}" for p in d.prompts} for k in (1, 2)
    ]
    assert all(plain) and not plain[0] & plain[1], "each round has prompts of its own"
    assert trace.summary["vowels=+0.00"]["long"] > 90, "(50 - 0.5) / 0.5 = 99 at least"


def test_ratings_are_in_deviations_of_the_training_rows(tmp_path: Path) -> None:
    """Training: 1 and 3, mean 2 and deviation 1; a held-out 5 is three deviations above."""
    rows = [
        {"prompt": f"p{i}", "response": "a", "long": float(1 + 2 * (i % 2)), "vowels": float(i % 2)} for i in range(8)
    ]
    for name, some in (("train", rows), ("test", [{"prompt": "t", "response": "b", "long": 5.0, "vowels": 1.0}] * 2)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in some))
    env = Ratings(str(tmp_path), ("long", "vowels")).env(Namespace(made={}))  # type: ignore[arg-type]
    assert {p.info["ratings"][0] for p in env.train} == {-1.0, 1.0} and env.test[0].info["ratings"][0] == 3.0


def test_dpa_learns_its_rewards_from_ratings(tmp_path: Path) -> None:
    file = tmp_path / "rated.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in RATED))
    trace = traced(f"{PLAN[:-1]}, ratings={str(file)!r}, passes=2)", prompts=4)
    assert trace.parts[:2] == ["reward-model", "directions"] and not trace.calls
    made = trace.of("reward_model")[0]
    (only,) = made.passes
    torch.testing.assert_close(
        only.pull["scores_BK"],
        -2 * (only.batch["scores_BK"] - made.batch["rating_BK"]) / len(made.rows),
        rtol=1e-4,
        atol=1e-6,
    )
    length_B, told_BK = torch.tensor([float(len(r.text)) for r in made.rows]), made.batch["rating_BK"]
    assert (torch.sign(told_BK[:, 0]) == torch.sign(length_B - 2.5)).all() and torch.allclose(
        told_BK[:, 0], -told_BK[:, 1]
    )
    assert set(trace.summary["explained"]) == {"long", "vowels"}


def test_a_run_of_dpa_is_asked_for_a_direction(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def long(prompt, text):\n    return float(len(text))\ndef vowels(prompt, text):\n    return float(text.count('a'))\n"
    )
    pt.run(model=tiny_folder(), task=MIXED, method=PLAN, reward=f"{file}:long + {file}:vowels", runs=tmp_path, name="dpa", threads=1,
           eval_problems=2, prompts=3, sampling={"max_tokens": 4})  # fmt: skip
    asked = Prompt.text("q", "1+1=?")
    with pytest.raises(pt.UserError, match="this policy follows a direction among long, vowels; say which: --prefer"):
        used(tmp_path, "dpa")
    assert (
        used(tmp_path, "dpa", "long=0.8,vowels=-0.6").rendered(asked)
        == "Maximize the weighted rating = long*80 + vowels*-60\n1+1=?"
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{i}+1=?", "answer": str(i + 1)}) + "\n" for i in range(4)))
    of_run = ["--model", "dpa", "--runs", str(tmp_path)]
    for words in (["chat", "--say", "1+1=?"], ["generate", "--task", str(rows), "--out", str(tmp_path / "o.jsonl")],
                  ["eval", "--task", str(rows), "--json"]):  # fmt: skip
        without = call(*words, *of_run, "--max-tokens", "4")
        assert without.code == 2 and "say which: --prefer" in without.err
        said = call(*words, *of_run, "--max-tokens", "4", "--prefer", "long=0.8,vowels=-0.6")
        assert said.code == 0, said.err
    assert json.loads(said.out)["prefer"] == "long=0.8,vowels=-0.6"
    with pytest.raises(pt.UserError, match="training it further does not say which; write one: --system 'Maximize"):
        pt.run(model=str(tmp_path / "dpa"), task=MIXED, method="sft", runs=tmp_path, name="more", threads=1, steps=1)


@pytest.mark.parametrize(
    ("name", "reward", "told"),
    [
        ("dpa", None, r"dpa steers between rewards, and none is there: .* --plan.ratings rows.jsonl"),
        ("dpa(rewards='long')", None, "name two or more"),
        ("dpa(rounds=0)", None, "it takes 1 round"),
        (PLAN.replace("vowels", "warm"), {"long": long, "vowels": vowels}, r"--reward gives long, vowels, and not warm; .* --plan.rewards"),
    ],
)  # fmt: skip
def test_dpa_says_what_is_missing(name: str, reward: Any, told: str) -> None:
    with pytest.raises(pt.UserError, match=told):
        traced(name, reward=reward)


def test_a_row_without_a_rating_is_told(tmp_path: Path) -> None:
    file = tmp_path / "rated.jsonl"
    file.write_text("".join(json.dumps(r | {"vowels": "many"}) + "\n" for r in RATED))
    with pytest.raises(pt.UserError, match="has 'many' as 'vowels'; a rated row is a prompt, a response and a number"):
        traced(f"{PLAN[:-1]}, ratings={str(file)!r})")


def test_a_reward_model_of_several_scores_is_no_reward(tmp_path: Path) -> None:
    file = tmp_path / "rated.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in RATED))
    pt.run(model=tiny_folder(), task=MIXED, method=f"{PLAN[:-1]}, ratings={str(file)!r})", runs=tmp_path, name="dpa", threads=1,
           eval_problems=0, prompts=3, sampling={"max_tokens": 4})  # fmt: skip
    with pytest.raises(pt.UserError, match="gives 2 scores, and a reward is one"):
        pt.run(
            model=tiny_folder(), task=MIXED, reward=str(tmp_path / "dpa"), runs=tmp_path, name="x", threads=1, steps=1
        )
