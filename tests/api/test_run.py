"""The front door with the objects of a stranger: what is another run, what goes on, what is refused in one sentence."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.identity import identity
from posttrain.rewards.runtime.score import RewardSum
from tests.runs import tiny_run

ROWS = [{"question": f"{a} plus {b}", "answer": str(a + b)} for a in range(5) for b in range(5)]
PAIRS = [{"prompt": f"write {c}", "chosen": c * 3, "rejected": "z"} for c in "abcdefghijklmnopqrst"]


def run(tmp_path: Path, **given: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "model": tiny_run.policy(), "steps": 1, "prompts": 2, "eval_problems": 2, "num_generations": 2,
        "sampling": {"max_tokens": 4}, "runs": tmp_path,
    }  # fmt: skip
    return pt.run(**{k: v for k, v in (plain | given).items() if v is not None})


def f(prompt: pt.Prompt, text: str) -> float:
    return float(len(text))


def g(prompt: pt.Prompt, text: str) -> float:
    return -float(len(text))


def scaled(by: float) -> Callable[[pt.Prompt, str], float]:
    def worth(prompt: pt.Prompt, text: str) -> float:
        return by * len(text)

    return worth


# ---- what is another run


def test_another_reward_is_refused_and_the_same_goes_on(tmp_path: Path) -> None:
    first = run(tmp_path, env=tiny_run.Count(), reward=f)
    assert run(tmp_path, env=tiny_run.Count(), reward=f)["tokens"] == first["tokens"]
    with pytest.raises(pt.UserError, match=r"objects.reward was \"f .*is now \"g .*another --name"):
        run(tmp_path, env=tiny_run.Count(), reward=g)
    run(tmp_path, env=tiny_run.Count(), reward=g, name="other")
    assert {p.name for p in tmp_path.iterdir()} == {"grpo-count", "other"}


def test_other_rows_are_refused_and_the_same_go_on(tmp_path: Path) -> None:
    run(tmp_path, task=ROWS)
    run(tmp_path, task=[dict(row) for row in ROWS])
    with pytest.raises(pt.UserError, match=r"objects.task was"):
        run(tmp_path, task=[*ROWS[:-1], {"question": "4 plus 4", "answer": "9"}])


def test_an_environment_with_other_settings_is_refused(tmp_path: Path) -> None:
    class Counting(tiny_run.Count):
        def __init__(self, top: int) -> None:
            self.top, self._asked = top, 0

        def prompt(self, index: int, split: str = "train") -> pt.Prompt:
            self._asked += 1  # state, which is nobody's setting
            return super().prompt(index, split)

    env = Counting(3)
    run(tmp_path, env=env)
    run(tmp_path, env=env)
    with pytest.raises(pt.UserError, match=r"objects.task was \"count .*is now \"count "):
        run(tmp_path, env=Counting(4))


def test_identity_tells_code_and_values_apart_and_nothing_else() -> None:
    assert identity(f) == identity(f) and identity(f).startswith("f ")
    assert identity(f) != identity(g)
    assert identity(scaled(1.0)) == identity(scaled(1.0)) != identity(scaled(2.0))
    short, long = (lambda p, t: 1.0, lambda p, t: 2.0)
    assert identity(short) != identity(long)
    assert identity(functools.partial(f, text="a")) != identity(functools.partial(f, text="b"))
    assert identity(RewardSum([("f", f, 1.0)])) == identity(RewardSum([("f", f, 1.0)]))
    assert identity(RewardSum([("f", f, 1.0)])) != identity(RewardSum([("f", f, 2.0)]))
    assert identity(RewardSum([("f", f, 1.0)])) != identity(RewardSum([("f", g, 1.0)]))
    assert identity({"x": torch.ones(2)}) != identity({"x": torch.zeros(2)})


def test_identity_is_the_same_in_another_process(tmp_path: Path) -> None:
    import subprocess
    import sys

    file = tmp_path / "mine.py"
    file.write_text("def polite(prompt, text):\n    return float(text in {'please', 'thanks', 'sorry', 'hello'})\n")
    code = "import mine; from posttrain.core.identity import identity; print(identity(mine.polite))"
    found = set()
    for seed in ("1", "2"):  # under which the four words stand in another order
        env = {"PYTHONPATH": f"{Path(pt.__file__).parent.parent}:{tmp_path}", "PYTHONHASHSEED": seed}
        found.add(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
    assert len(found) == 1


# ---- rows


def test_rows_of_pairs_are_learned_from(tmp_path: Path) -> None:
    summary = run(tmp_path, task=PAIRS, method="dpo", num_generations=None, sampling={})
    assert summary["task"] == "rows" and 0 <= summary["accuracy_after"] <= 1


def test_rows_of_a_log_are_learned_from(tmp_path: Path) -> None:
    rows = [{"prompt": p["prompt"], "response": p[k], "reward": float(k == "chosen")} for p in PAIRS for k in ("chosen", "rejected")]  # fmt: skip
    method = pt.find_method("reinforce").but(rollout="logged(logp=False)", terms=())
    assert run(tmp_path, task=rows, method=method, num_generations=None, sampling={})["steps"] == 1


@pytest.mark.parametrize("rows", [[], [{}], [{"x": 1}], [1, 2], "nowhere.jsonl", 7, [{"prompt": "a", "chosen": "b"}]])
@pytest.mark.parametrize("method", ["grpo", "dpo"])
def test_odd_rows_are_refused_in_a_sentence(tmp_path: Path, rows: Any, method: str) -> None:
    with pytest.raises(pt.UserError):
        run(tmp_path, task=rows, method=method, num_generations=None, sampling={})


# ---- what belongs elsewhere


def test_a_stage_of_the_method_is_no_setting(tmp_path: Path) -> None:
    with pytest.raises(pt.UserError, match=r"method=pt.find_method\(\"grpo\"\).but\(advantage='turns'\)"):
        run(tmp_path, env=tiny_run.Count(), advantage="turns")


def test_a_plan_takes_objects_as_a_method_does(tmp_path: Path) -> None:
    """Rows, a reward and a policy from Python: they are what is learned from, paid and trained, and it is measured on held-out rows."""
    asked: list[str] = []
    seen: list[str] = []

    def counted(prompt: Any, text: str) -> float:
        asked.append(prompt.answer)
        return float(len(text))

    class Watch:
        def on_begin(self, loop: Any, before: Any) -> None:
            seen.append(f"begin {before.problems}")

        def on_eval(self, loop: Any, step: int, found: Any) -> None:
            seen.append(f"eval {loop.phase}")

        def on_end(self, loop: Any, before: Any, after: Any, summary: Any) -> None:
            seen.append(f"end {summary['accuracy_after'] == after.accuracy}")

    summary = run(
        tmp_path, task=ROWS, reward=counted, method="rlmt(steps=1)", name="p", eval_every=1, steps=None, callbacks=(Watch(),)
    )  # fmt: skip
    assert asked and set(asked) <= {row["answer"] for row in ROWS}
    assert seen == ["begin 2", "eval rlmt", "end True"] and summary["eval_problems"] == 2
    assert len(json.loads((tmp_path / "p" / "held_out.json").read_text())["after"]) == 2


def test_a_judge_is_a_function_too_where_a_plan_learns_from_comparisons(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def prefer(prompt: Any, a: str, b: str) -> float:
        asked.append((a, b))
        return float(len(a) > len(b))

    run(tmp_path, task=ROWS, reward=prefer, method="spo-minimaximalist(steps=1)", name="j", steps=None)
    assert asked
    for name in ("prime(steps=1)", "adacot(warmup=0, skewed=0, mixed=1)"):
        with pytest.raises(pt.UserError, match=r"a judge of .* compares two; give"):
            run(tmp_path, task=[r | {"cot": True} for r in ROWS], reward=prefer, method=name, name="k", steps=None)


# ---- what a language model can read


class Pictures(tiny_run.Count):
    content: Any = [{"type": "image", "image": "x.png"}, {"type": "text", "text": "what is it"}]

    def prompt(self, index: int, split: str = "train") -> pt.Prompt:
        return pt.Prompt(f"{split}-{index}", ({"role": "user", "content": self.content},), "a")


@pytest.mark.parametrize("model", ["tiny", "pocket"])
def test_a_picture_is_refused_in_a_sentence(tmp_path: Path, model: str) -> None:
    with pytest.raises(pt.UserError, match="a part of the kind 'image', and this model reads text alone"):
        run(tmp_path, env=Pictures(), model=tiny_run.policy() if model == "tiny" else model)


def test_text_parts_read_as_one_text() -> None:
    policy = pt.load_model("pocket", "cpu")
    parts = [{"type": "text", "text": "what is "}, {"type": "text", "text": "2+3?"}]
    made = policy.encode(pt.Prompt("a", ({"role": "user", "content": parts},)))
    assert torch.equal(made, policy.encode(pt.Prompt.text("a", "what is 2+3?")))


@pytest.mark.parametrize("message", ["hello", {"role": "user"}, 3])
def test_a_message_that_is_none_is_refused(message: Any) -> None:
    with pytest.raises(pt.UserError, match="a message is"):
        tiny_run.policy().encode(pt.Prompt("a", (message,)))


@pytest.mark.parametrize(("name", "close"), [("logp", "logp_BT"), ("entropy", "entropy_BT"), ("scored_B", "score_B")])
def test_an_unknown_stream_is_refused_with_the_nearest(name: str, close: str) -> None:
    policy = tiny_run.policy()
    row = policy.written(pt.Prompt.text("a", "b"), "c")
    with pytest.raises(pt.UserError, match=f"no stream of a language model named '{name}'; did you mean '{close}'"):
        policy.forward([row], (name,))


# ---- environments that are none


class Bare:
    name = "bare"

    def prompt(self, index: int, split: str = "train") -> Any:
        return "a question"


class Narrow(Bare):
    def prompt(self, index: int) -> Any:  # type: ignore[override]
        return pt.Prompt.text("a", "b")


@pytest.mark.parametrize(
    ("env", "told"),
    [(Bare(), r"Bare.prompt gave str, expected a Prompt"), (Narrow(), r"Narrow.prompt\(0, 'train'\) failed: TypeError"),
     (Bare, r"Bare is a class; give an environment made of it: Bare\(\)"), (5, "int is no environment")],
)  # fmt: skip
def test_what_is_no_environment_is_refused(tmp_path: Path, env: Any, told: str) -> None:
    with pytest.raises(pt.UserError, match=told):
        run(tmp_path, env=env)


def test_a_policy_that_was_loaded_by_name_is_asked_for_what_it_provides(tmp_path: Path) -> None:
    """A reward model's score is a stream of language models, but not of one that has no score head."""
    kl = pt.find_method("grpo").but(terms="kl").terms[0]
    scored = dataclasses.replace(kl, card=dataclasses.replace(kl.card, name="scored", reads=("score_B",)))
    with pytest.raises(pt.UserError, match="scored reads score_B, which no part of grpo provides"):
        run(tmp_path, model="pocket", task="arithmetic", method=pt.find_method("grpo").but(terms=(scored,)))
    assert not list(tmp_path.iterdir())
