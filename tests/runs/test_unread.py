"""Settings that were given and that nothing reads with these phases, this method or these options are refused before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.cli import main
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Do, Phase, Plan
from posttrain.core.registry import find
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_pairs, asked_task
from posttrain.runs import plans as recipe
from posttrain.runs.plans import Asked
from tests.runs import tiny_run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"say {x}", "chosen": x * 3, "rejected": "no"} for x in "abcdefghijkl"]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("dr-po --plan.pairs pairs.jsonl --critic /nosuch", "so it does not use --critic; leave it away"),
        ("summarize-hf --plan.pairs pairs.jsonl --critic /nosuch", "begins its critic as the reward model"),
        ("mixed-preference-opt --critic shared", "begins its critic as the reward model"),
        ("qwenlong-stages --task arithmetic", "its rows have no column `document`"),
        ("sdpo --task arithmetic", "arithmetic"),
        ("grpo --rounds 7", "leave --rounds away, or add --select zero-variance"),
        (
            "dapo --reference ema(decay=0.3)",
            "nothing in dapo reads a reference, so ema(decay=0.3) would change nothing",
        ),
        ("rm-ensemble-conservative --plan.pairs pairs.jsonl --chosen a", "does not use --chosen"),
    ],
)
def test_a_setting_of_the_run_that_nothing_reads(
    words: str, told: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "load_policy", lambda config: pytest.fail("loaded"))
    assert main(["run", *words.split(), "--runs", "runs"]) == 2
    assert told in capsys.readouterr().err and not Path("runs").exists()


def test_the_rate_and_the_warm_up_of_a_critic_that_a_phase_brings_are_read() -> None:
    plan = find("dr-po", "plan").fn(pairs="pairs.jsonl")
    recipe.refuse_of_plan(plan, {"critic_lr", "critic_warmup", "critic_max_norm"})
    recipe.refuse_of_plan(find("dr-po", "plan").fn(), {"critic"})


def test_what_was_given_is_known_from_what_is_as_it_would_be_anyway() -> None:
    told, silent = Context(None, Config(), {}, asked={"task"}), Context(None, Config(), {}, asked=())
    assert told.gave("task") and not silent.gave("task")
    assert Context(None, Config(task="x"), {}).gave("task") and not Context(None, Config(), {}).gave("task")
    assert asked_pairs(silent).graded
    with pytest.raises(UserError):
        asked_pairs(told)


def test_what_no_phase_can_read_is_told_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "load_policy", lambda config: pytest.fail("loaded"))
    plan = Plan((Phase("x", grpo, 1, asked_task),), "toy", uses=("task", "reward"))
    rewarded = {"env": tiny_run.Count(), "scorer": object()}
    with pytest.raises(UserError, match="toy does not read --reward with these options; leave it away"):
        recipe.run_plan(plan, tiny_run.config(name="p"), tmp_path, asked=Asked((), rewarded))
    later = Plan((*plan.parts, Do("y", asked_task)), "toy", uses=("task", "reward"))
    monkeypatch.setattr(recipe, "load_policy", lambda config: tiny_run.policy(config.seed))
    recipe.run_plan(
        later, tiny_run.config(name="q"), tmp_path, asked=Asked((), rewarded)
    )  # it could be read by the work
