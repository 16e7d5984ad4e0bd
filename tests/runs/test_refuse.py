"""Settings that could only be silently wrong are refused before anything is loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from posttrain.core.config import Config, from_dict
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.registry import parts
from posttrain.core.sampling import Sampling
from posttrain.policies.load import load_model
from posttrain.runs.rate import largest_rate, suggested_lr
from posttrain.runs.refuse import refuse
from tests.cli.conftest import call


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--loss", "dpo", "--num-generations", "2"], "nothing here says which of two is better"),
        (["--loss", "dpo"], "--select best_worst"),
        (["--num-generations", "1"], "there is 1 per prompt"),
        (["--sampling.temperature", "0"], "at temperature 0 all answers to a prompt are the same"),
        (["--terms", "value_loss"], "value-loss reads return_BT, which no part of grpo provides"),
        (["--loss", "bradley_terry"], "says which of two is better"),
    ],
)
def test_the_command_is_refused_with_a_sentence(argv: list[str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("posttrain.runs.start.load_policy", loaded)
    said = call("run", "grpo", *argv)
    assert said.code == 2 and told in said.err and "Traceback" not in said.err


ROWS = [{"question": f"say {x}"} for x in ("hi", "ho", "hu")]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["grpo", "--min-lr", "1"], "more than the learning rate of pocket, which is 0.000207 at most"),
        (["grpo", "--min-lr", "1", "--model", "who/knows"], "which is 0.0003 at most where none is given"),
        (["grpo", "--min-lr", "1", "--lora", "4"], "which is 0.00207 at most where none is given"),
        (["par", "--reward", "numeric", "--min-lr", "1"], "more than the learning rate of pocket"),
        (["grpo", "--min-lr", "2e-4", "--lr", "1e-4"], "more than the learning rate 0.0001 that it is the least of"),
        (["grpo", "--task", "one.jsonl"], "one has no test questions; .*, or train without a look at any: --eval-problems 0"),
        (["sft", "--task", "one.jsonl"], "one has no test questions"),
        (["par", "--reward", "numeric", "--task", "one.jsonl"], "one has no test questions"),
        (["mrt", "--task", "open.jsonl", "--reward", "length"], "mrt grades answers on the way, .* open has no gold answers"),
        (["hc-rlhf"], "holds a cost below a limit, and none is given"),
        (["constrained-rlhf"], "give the points"),
        (["constrained-rlhf", "--plan.points", "a=1", "--reward", "numeric"], "no component of --reward named 'a'"),
        (["gold", "--task", "open.jsonl", "--loss", "gold(kind='x')"], "no reward of GOLD .kind. named 'x'"),
        (["ift", "--task", "open.jsonl", "--rollout", "intuition(mix=2)"], "mix is 2; it is the share"),
        (["hft", "--plan.method", "gold(loss=\"gold(kind='x')\")"], "no reward of GOLD .kind. named 'x'"),
        (["weighted-sft", "--task", "heavy.jsonl"], "prompt 'heavy-[0-8]' has the weight 'much'; it is a number of 0 or more"),
        (["hft", "--task", "open.jsonl"], "sft learns from written answers, and the first prompt of open has none"),
        (["osp", "--reward", "judge(url='ftp://x')"], "give the address of an OpenAI-compatible server"),
        (["self-rewarding", "--reward", "judge(url='ftp://x')"], "give the address of an OpenAI-compatible server"),
        (["dpa", "--reward", "numeric"], "--reward gives numeric, and not helpful; name what it gives: --plan.rewards"),
    ],
)  # fmt: skip
def test_nothing_is_loaded_before_it_is_told(
    argv: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it said that something is being loaded, nor is a folder left behind."""
    for place in ("start", "plans"):
        monkeypatch.setattr(f"posttrain.runs.{place}.load_policy", lambda *args: pytest.fail("a model was loaded"))
    (tmp_path / "one.jsonl").write_text(json.dumps({"question": "1+1?", "answer": "2"}) + "\n")
    (tmp_path / "open.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    heavy = [{"question": f"{i}+1?", "answer": str(i + 1), "weight": i if i % 2 else "much"} for i in range(9)]
    (tmp_path / "heavy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in heavy))
    monkeypatch.chdir(tmp_path)
    said = call("run", *argv)
    assert said.code == 2 and re.search(told, said.err) and "Traceback" not in said.err
    assert "loading" not in said.out and not Path("runs").exists()


@pytest.mark.parametrize("argv", [["grpo"], ["par", "--reward", "numeric"]])
def test_what_can_run_says_that_it_loads(argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(*args: object) -> None:
        raise UserError("so far")

    for place in ("start", "plans"):
        monkeypatch.setattr(f"posttrain.runs.{place}.load_policy", loads)
    said = call("run", *argv, "--runs", str(tmp_path))
    assert said.out.startswith("loading pocket") and "so far" in said.err


def test_the_least_rate_is_compared_with_the_one_that_would_be_chosen() -> None:
    """At most what the policy itself would be given, adapters or not; one below it is no mistake."""
    pocket = load_model("pocket", "cpu")
    most = largest_rate(Config())
    assert suggested_lr(pocket) <= most <= 1.002 * suggested_lr(pocket)  # by the shape alone: norms are left out
    refuse(Config(min_lr=most * 0.99), find_method("grpo"))
    with pytest.raises(UserError, match="more than the learning rate"):
        refuse(Config(min_lr=most * 1.01), find_method("grpo"))


def test_every_registered_method_can_run_as_it_is() -> None:
    for part in parts("method"):
        method = find_method(part.name)
        if method.reference.name == "teacher":
            with pytest.raises(UserError, match="a teacher is needed, and none was named"):
                refuse(from_dict(Config, method.own({})), method)
            method = method.but(reference="teacher(model='pocket')")
        refuse(from_dict(Config, method.own({})), method)  # with the settings that are the method's own


def test_an_advantage_without_a_group_needs_no_siblings() -> None:
    reinforce = find_method("reinforce")
    refuse(Config(num_generations=1, sampling=Sampling(temperature=1.0)), reinforce)


def test_ranked_answers_are_pairs() -> None:
    refuse(Config(), find_method("grpo").but(loss="dpo", select="best_worst", aggregate="token_mean"))
    with pytest.raises(UserError, match="in pairs"):
        refuse(Config(), find_method("grpo").but(loss="dpo"))


def test_short_lists_and_batches_of_one_are_told_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("posttrain.runs.start.load_policy", loaded)
    file, labels = tmp_path / "lists.jsonl", tmp_path / "labels.jsonl"
    lists = [
        {"prompt": f"{k}?", "responses": ["a", "b", "c"][: 2 + k % 2], "scores": [2, 1, 0][: 2 + k % 2]}
        for k in range(20)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in lists))
    rows = [{"prompt": f"{k}?", "completion": "a", "label": k % 2 == 0} for k in range(20)]
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = call("run", "tpo", "--task", str(file), "--runs", str(tmp_path))
    assert said.code == 2 and "lists of at least 3 answers" in said.err, said.err
    said = call("run", "kto", "--task", str(labels), "--prompts", "1", "--runs", str(tmp_path))
    assert said.code == 2 and "--prompts 1 has none" in said.err, said.err


def test_a_critic_that_nothing_trains_is_refused() -> None:
    """--terms takes the place of PPO's own, and the loss of its critic was among them. One that was trained before may stay as it is."""
    alone = find_method("ppo").but(terms="kl(coef=0.04)")
    with pytest.raises(UserError, match=re.escape('add the loss of values: --terms "value-loss + kl"')):
        refuse(Config(), alone)
    with pytest.raises(UserError, match=r"terms: none.*--terms \"value-loss\""):
        refuse(Config(), find_method("ppo").but(terms=()))
    refuse(Config(critic="runs/values"), alone)
    refuse(Config(), find_method("ppo").but(terms=("value-loss", "kl(coef=0.04)")))
