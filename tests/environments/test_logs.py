"""Answers that were given before, from files and from runs: what is read, what is learned from, what is said when it fails."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import torch

from posttrain.api import run_config
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.environments.logs import logs
from posttrain.environments.mixed import Mixed
from posttrain.environments.task import log_task, task
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rollouts.logged import logged
from posttrain.runs.build import environment, scorer_of
from tests.models.tiny import policy as tiny_policy


def rows(n: int = 6) -> list[dict]:
    """Two answers to each of n questions: the right one first."""
    said = [(i, f"{i}", 1.0) for i in range(n)] + [(i, "x", 0.0) for i in range(n)]
    return [
        {"prompt": f"say {i}", "response": text, "reward": r, "logp": [-0.5] * (len(text) + 1)} for i, text, r in said
    ]


def written(tmp_path: Path, some: list[dict]) -> str:
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(json.dumps(r) for r in some))
    return str(file)


def test_rows_with_the_same_prompt_are_one_group(tmp_path: Path) -> None:
    log = log_task(written(tmp_path, rows()))
    everything = [p for some in log.splits.values() for p in some]
    assert sorted(p.last for p in everything) == [f"say {i}" for i in range(6)]
    assert log.rewarded and not log.graded and log.given == {"answers": 12, "reward": 12, "logp": 12}
    first = next(p for p in everything if p.last == "say 3")
    assert [(a["text"], a["reward"]) for a in first.info["answers"]] == [("3", 1.0), ("x", 0.0)]
    assert {p.last for p in log.splits["train"]}.isdisjoint(p.last for p in log.splits["test"])


def test_a_column_named_answer_is_what_was_said_unless_there_is_another() -> None:
    said = logs([{"question": f"q{i}", "answer": "a", "score": 0.5} for i in range(3)])
    assert said.splits["train"][0].info["answers"] == [{"text": "a", "reward": 0.5}] and not said.graded
    gold = logs([{"question": f"q{i}", "answer": "7", "completion": "8"} for i in range(3)])
    assert gold.graded and not gold.rewarded and gold.splits["train"][0].answer == "7"
    assert gold.grade(gold.splits["train"][0], "7") == 1.0


def test_token_ids_are_used_as_they_are_with_their_mask_and_rewards() -> None:
    policy = tiny_policy()
    answers = [{"tokens": [5, 6, 7], "logp": [-1.0, -2.0, -3.0], "mask": [True, False, True], "reward": 2.5}]
    (group,) = logged(RolloutRequest({"policy": policy}, [Prompt.text("p", "hi", answers=answers)], Sampling(), 0, 0))
    (r,) = group.rollouts
    assert r.actions.tolist() == [5, 6, 7] and r.mask_T.tolist() == [True, False, True]
    assert r.logp_T.tolist() == [-1.0, -2.0, -3.0] and r.reward == 2.5 and r.rewards == {"logged": 2.5}


@pytest.mark.parametrize("column", [{"logp": [10**400]}, {"tokens": [float("nan")]}])
def test_a_number_that_is_none_is_told_with_its_row(column: dict) -> None:
    with pytest.raises(UserError, match="holds a number that is none here"):
        logs([{"prompt": "q", "response": "a", "reward": 1.0, **column}])


def test_an_end_that_was_not_logged_is_no_action() -> None:
    policy = tiny_policy()
    whole, cut = ({"text": "ab", "logp": [-1.0] * k} for k in (3, 2))
    groups = logged(
        RolloutRequest({"policy": policy}, [Prompt.text("p", "hi", answers=[whole, cut])], Sampling(), 0, 0)
    )
    assert [len(r) for r in groups[0].rollouts] == [3, 2] and groups[0].rollouts[1].truncated
    assert int(groups[0].rollouts[0].actions[-1]) == policy.tokenizer.eos_token_id


def test_a_run_is_a_log(tmp_path: Path) -> None:
    folder = tmp_path / "earlier"
    folder.mkdir()
    db = sqlite3.connect(folder / "run.sqlite")
    db.execute("CREATE TABLE rollouts (prompt, text, reward, failed, tokens, logp, mask)")
    for i in range(4):
        db.execute("INSERT INTO rollouts VALUES (?, 'a', ?, 0, '[5, 1]', '[-1.0, -0.5]', '[1, 1]')", (f"q{i}", 0.1 * i))
    db.execute("INSERT INTO rollouts VALUES ('q9', 'b', NULL, 1, '[5]', '[0]', '[1]')")  # its reward failed
    db.commit()
    db.close()
    log = log_task(str(folder))
    assert log.name == "earlier" and log.given == {"answers": 4, "reward": 4, "logp": 4}
    (group,) = logged(RolloutRequest({"policy": tiny_policy()}, [log.prompt(0)], Sampling(), 0, 0))
    assert group.rollouts[0].actions.tolist() == [5, 1] and group.rollouts[0].reward is not None


def test_a_method_takes_the_rewards_of_the_log_unless_told_otherwise(tmp_path: Path) -> None:
    method = find_method("topr").but(rollout="logged")
    config = Config(task=written(tmp_path, rows()))
    env = environment(config, method)
    assert isinstance(scorer_of(config, method, env), Prescored)
    assert not isinstance(scorer_of(Config(task=config.task, reward="format"), method, env), Prescored)
    part = [{k: v for k, v in r.items() if k != "reward"} for r in rows()]
    config = Config(task=written(tmp_path, part))
    with pytest.raises(UserError, match=r"come without rewards; give a column reward.*--rollout \"sample\(n=8\)\""):
        scorer_of(config, method, environment(config, method))


@pytest.mark.parametrize(
    ("some", "told"),
    [
        ([{"prompt": "q", "reward": 1.0}], "no response column"),
        ([{"response": "q", "reward": 1.0}], "no question column"),
        ([{"prompt": "q", "response": "a", "reward": "good"}], "'reward' is a number, got 'good'"),
        ([{"prompt": "q", "response": "a", "logp": 0.5}], "'logp' is a list of numbers, one a token, got 0.5"),
        ([{"prompt": "q", "response": None}], "no answer in it"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path, some: list[dict], told: str) -> None:
    with pytest.raises(UserError, match=told):
        log_task(written(tmp_path, some))


def test_names_of_columns_may_be_given(tmp_path: Path) -> None:
    some = [{"q": f"{i}", "said": "a", "worth": 0.5} for i in range(3)]
    file = written(tmp_path, some)
    log = log_task(f"{file}(question='q', response='said', earned='worth')")
    assert log.rewarded and log.given["answers"] == 3
    with pytest.raises(UserError, match="is no log; name a file"):
        log_task("arithmetic")
    with pytest.raises(UserError, match="has no option 'respons'; did you mean 'response'"):
        log_task(f"{file}(respons='said')")


def test_ids_of_another_model_are_refused() -> None:
    asked = Prompt.text("p", "hi", answers=[{"tokens": [5, 4000], "logp": [0.0, 0.0]}])
    with pytest.raises(UserError, match="not of this model"):
        logged(RolloutRequest({"policy": tiny_policy()}, [asked], Sampling(), 0, 0))


def test_a_run_learns_from_a_file(tmp_path: Path) -> None:
    config = Config(task=written(tmp_path, rows()), steps=2, prompts=2, eval_problems=2, name="offline", lr=1e-3)
    method = find_method("copg").but(rollout="logged(n=2, logp=False)")
    summary = run_config(config, tmp_path / "runs", method=method)
    assert summary["steps"] == 2 and summary["skipped_updates"] == 0
    again = log_task(str(tmp_path / "runs" / "offline"))  # and what it learned from is a log again
    assert again.given["answers"] == again.given["reward"] > 0


# ---- several tasks at once


def test_a_mixture_takes_turns_and_each_task_grades_its_own() -> None:
    both = task("arithmetic + counting", think=False)
    assert isinstance(both, Mixed) and both.name == "arithmetic+counting"
    prompts = [both.prompt(i) for i in range(4)]
    assert [p.info["task"] for p in prompts] == ["arithmetic", "counting"] * 2
    assert all(both.grade(p, str(p.answer)) == 1.0 for p in prompts) and not both.validate(4)
    with pytest.raises(UserError, match="two tasks or more"):
        task("arithmetic + arithmetic")
    with pytest.raises(UserError, match="did you mean"):
        task("arithmetic + countin")


def test_logged_rewards_reach_the_batch() -> None:
    from posttrain.core.assemble import assemble

    answers = [{"text": "a", "reward": 1.0}, {"text": "bc", "reward": -2.0}]
    groups = logged(
        RolloutRequest({"policy": tiny_policy()}, [Prompt.text("p", "hi", answers=answers)], Sampling(), 0, 0),
        logp=False,
    )
    _, batch = assemble(groups)
    torch.testing.assert_close(batch.returns_B, torch.tensor([1.0, -2.0]))
