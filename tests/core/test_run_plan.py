"""`run_plan` on a decoder of 20k parameters: roles, rounds, restarts, and what a finished plan is good for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Cycle, Do, Gate, Phase, Plan
from posttrain.core.types import Prompt
from posttrain.methods.grpo import grpo
from posttrain.methods.ppo import ppo
from posttrain.methods.reward_model import reward_model
from posttrain.methods.sft import sft
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.runs import plans as recipe
from tests.core.test_plan import nothing
from tests.runs import tiny_run


class Pairs(tiny_run.Count):
    def prompt(self, index: int, split: str = "train") -> Prompt:
        p = super().prompt(index, split)
        other = "abcd"[(index + 1) % 4]
        return Prompt(p.id, p.content, p.answer, {**p.info, "chosen": p.answer * 6, "rejected": other * 6})


def env(context: Context) -> Pairs:
    return Pairs()


def given(context: Context) -> Prescored:
    return Prescored()


def whole(done: list[str]) -> Plan:
    """SFT, a copy of it, a reward model of its own, then PPO and GRPO near the SFT policy, two rounds."""

    def note(context: Context) -> None:
        done.append(context.phase)
        context.notes[context.phase] = float(context.role("policy").model.lm_head.weight.detach().sum())

    small = {"prompts": 2}
    rl = grpo.but(rollout=grpo.rollout.but(n=2))
    actor_critic = ppo.but(rollout=grpo.rollout.but(n=2))
    return Plan(
        (
            Phase("sft", sft, 2, env, rewards=given, after=note),
            Copy("policy", "start"),
            Phase(
                "rm", reward_model, 2, env, role="judge", make=lambda c: c.role("start").as_reward_model(),
                rewards=given, changes=small,
            ),
            Do("look", note),
            Cycle(
                (
                    Phase("ppo", actor_critic, 2, env, reference="start", changes=small),
                    Phase("rl", rl, 2, env, reference="start", changes=small, after=note),
                ),
                times=2,
            ),
        ),
        "tiny-plan",
        options={"rounds": 2},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def tiny_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "load_policy", lambda config: tiny_run.policy(config.seed))


def weights(run: Path, phase: str) -> dict[str, torch.Tensor]:
    from posttrain.runs.checkpoint import newest

    found = newest(run / "checkpoints", phase)
    assert found is not None
    return found.tables


def test_roles_and_references(tmp_path: Path) -> None:
    """The reward model grows from the SFT policy, and round two is still held to it, not to where round one ended."""
    done: list[str] = []
    summary = recipe.run_plan(whole(done), tiny_run.config(name="p"), tmp_path)
    assert done == ["sft", "look", "rl.1", "rl.2"] and summary["sft"] == summary["look"]
    end = weights(tmp_path / "p", "sft")["weights"]
    for phase in ("ppo.1", "rl.2"):
        reference = weights(tmp_path / "p", phase)["reference"]
        assert all(torch.equal(reference[k], end[k]) for k in reference)
    moved = weights(tmp_path / "p", "rl.2")["weights"]
    assert not any(torch.equal(moved[k], end[k]) for k in end)
    assert "score.out.weight" in weights(tmp_path / "p", "rm")["weights"]
    assert any(k.startswith("critic.") for k in weights(tmp_path / "p", "ppo.2")["weights"])
    assert not any(k.startswith("critic.") for k in weights(tmp_path / "p", "rl.2")["weights"])


def test_chat_and_export_take_the_policy_by_its_role(tmp_path: Path) -> None:
    """A plan keeps what each phase trained; the weights meant are those of the newest phase that answers."""
    from posttrain.runs.run import Run
    from posttrain.runs.trained import last_phase

    recipe.run_plan(whole([]), tiny_run.config(name="p"), tmp_path)
    with Run.open(tmp_path / "p") as run:
        assert run.store.roles() == {
            "sft": ("policy", True), "rm": ("judge", False), "ppo.1": ("policy", True), "rl.1": ("policy", True),
            "ppo.2": ("policy", True), "rl.2": ("policy", True),
        }  # fmt: skip
        assert last_phase(run) == "rl.2"


def rivals(*names: str) -> Plan:
    """SFT of the policy, then roles that branch off it, then perhaps the policy again."""
    phases = [
        Phase(
            n, sft, 1, env, role="policy" if n == "again" else n, rewards=given, make=lambda c: c.role("policy").clone()
        )
        for n in names
    ]
    return Plan((Phase("sft", sft, 1, env, rewards=given), *phases), "rivals")


def test_where_several_roles_answer_the_user_says_which(tmp_path: Path) -> None:
    from posttrain.runs.run import Run
    from posttrain.runs.trained import last_phase

    recipe.run_plan(rivals("left", "right"), tiny_run.config(name="p"), tmp_path)
    told = r"--phase sft \(the policy\), --phase left \(the left\), --phase right \(the right\)"
    with Run.open(tmp_path / "p") as run, pytest.raises(UserError, match=told):
        last_phase(run)
    recipe.run_plan(rivals("left", "again"), tiny_run.config(name="q"), tmp_path)
    with Run.open(tmp_path / "q") as run:
        assert last_phase(run) == "again"


def test_runs_from_before_roles_were_kept(tmp_path: Path) -> None:
    """Without the table a score head tells the reward model from the policy."""
    import sqlite3

    from posttrain.runs.run import Run
    from posttrain.runs.trained import last_phase

    parts = whole([]).parts[:3]  # SFT, the copy, the reward model
    recipe.run_plan(Plan(parts, "p"), tiny_run.config(name="p"), tmp_path)
    with sqlite3.connect(tmp_path / "p" / "run.sqlite") as db:
        db.execute("DROP TABLE roles")
    with Run.open(tmp_path / "p") as run:
        assert run.store.roles() == {} and last_phase(run) == "sft"


def test_rounds_see_other_prompts(tmp_path: Path) -> None:
    from posttrain.runs.run import Run

    recipe.run_plan(whole([]), tiny_run.config(name="p"), tmp_path)
    run = Run.open(tmp_path / "p")
    first, second = ({r["prompt_id"] for r in run.store.rollouts() if r["phase"] == f"rl.{i}"} for i in (1, 2))
    assert first and second and first != second


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("at", ["rm", "look", "ppo.1", "rl.1", "ppo.2"])
def test_a_restart_does_nothing_twice_and_ends_the_same(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off as the part `at` has done its work but is not finished: the second run goes on from there."""
    from posttrain.runs.run import Run

    settings = tiny_run.config(name="p", save_every=1)
    want = recipe.run_plan(whole([]), settings, tmp_path / "whole")
    finish = Run.finish

    def cut(self: Run, phase: str) -> None:
        if phase == at:
            raise Interrupted
        finish(self, phase)

    done: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(Run, "finish", cut)
        with pytest.raises(Interrupted):
            recipe.run_plan(whole(done), settings, tmp_path / "cut")
    before = list(done)
    summary = recipe.run_plan(whole(done), settings, tmp_path / "cut")
    assert done[len(before) :] == [d for d in ("sft", "look", "rl.1", "rl.2") if d not in before]
    assert summary | {"seconds": want["seconds"]} == want
    for phase in ("rm", "ppo.2", "rl.2"):
        a, b = weights(tmp_path / "whole" / "p", phase), weights(tmp_path / "cut" / "p", phase)
        assert a.keys() == b.keys()
        assert all(torch.equal(x, b[table][k]) for table in a for k, x in a[table].items())


def test_a_finished_plan_is_only_read(tmp_path: Path) -> None:
    first = recipe.run_plan(whole([]), tiny_run.config(name="p"), tmp_path)
    done: list[str] = []
    assert recipe.run_plan(whole(done), tiny_run.config(name="p"), tmp_path) == first and done == []


def test_other_options_are_another_run(tmp_path: Path) -> None:
    recipe.run_plan(Plan((Do("a", nothing),), "p", options={"n": 1}), tiny_run.config(name="p"), tmp_path)
    with pytest.raises(UserError, match=r"options\.n was 1, is now 2"):
        recipe.run_plan(Plan((Do("a", nothing),), "p", options={"n": 2}), tiny_run.config(name="p"), tmp_path)


def test_another_file_under_the_same_name_is_another_run(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("{}\n")
    named = Plan((Do("a", nothing),), "p", options={"pairs": f"{file}(chosen='good')"})
    recipe.run_plan(named, tiny_run.config(name="p"), tmp_path)
    file.write_text("{}\n{}\n")
    with pytest.raises(UserError, match=r"learns from has changed since it began \(.*pairs.jsonl was"):
        recipe.run_plan(named, tiny_run.config(name="p"), tmp_path)


def test_a_role_nobody_makes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not say how to make it"):
        recipe.run_plan(Plan((Phase("x", sft, 1, env, role="judge"),), "p"), tiny_run.config(name="p"), tmp_path)


def test_a_gate_that_stops_is_in_the_summary(tmp_path: Path) -> None:
    stopped = Plan((Do("a", nothing), Gate("safe", lambda c: False, "not safe"), Do("b", nothing)), "p")
    assert recipe.run_plan(stopped, tiny_run.config(name="p"), tmp_path)["stopped"] == "not safe"
