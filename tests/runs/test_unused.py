"""A setting that was given and that nothing reads is refused before anything is loaded, for methods and for plans."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.cli import main
from posttrain.core.config import ELSEWHERE, Config
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.plan import Context, Do, Phase, Plan, Stopped
from posttrain.core.registry import find, parts
from posttrain.core.sampling import Sampling
from posttrain.environments.task import of_rows
from posttrain.methods.grpo import grpo
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_demonstrations, asked_rewards, asked_task, shown
from posttrain.methods.sft import sft
from posttrain.runs import plans as recipe
from posttrain.runs.build import scorer_of
from posttrain.runs.plans import Asked
from posttrain.runs.unused import (
    DRAWN,
    READS,
    differing,
    drawn_by,
    drawn_by_plan,
    refuse_of_method,
    refuse_of_plan,
    used,
)
from tests.runs import tiny_run

PAIRS = [{"prompt": f"say {x}", "chosen": x * 3, "rejected": "no"} for x in "abcdefghijkl"]
LOGS = [
    {"prompt": f"say {x}", "response": y, "reward": r, "answer": x}
    for x in "abcdefgh"
    for y, r in ((x, 1.0), ("no", 0.0))
]


def nothing(context: Context) -> Any:
    return tiny_run.Count()


def test_every_setting_is_read_by_some_plan_or_told() -> None:
    """A plan of one phase that reads task and reward takes all settings but --steps, the columns of pairs, and who samples where."""
    plan = Plan((Phase("x", grpo, 1, nothing),), "toy", options={"steps": 60}, uses=("task", "reward"))
    every = {f.name for f in dataclasses.fields(Config)}
    of_a_critic = {"critic", "critic_lr", "critic_warmup", "critic_max_norm"}
    other = {"steps", "chosen", "rejected", "method", "sampling", "tools", "user"} | of_a_critic | set(ELSEWHERE)
    assert every - used(plan) == other and used(plan) >= DRAWN
    assert of_a_critic <= used(dataclasses.replace(plan, parts=(Phase("x", ppo, 1, nothing),)))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"uses": ("task",)}, "reward"), ({"uses": ("reward",)}, "task"), ({"uses": ("reward",)}, "level"),
        ({"uses": ("reward",)}, "system"), ({}, "steps"), ({"parts": (Do("x", nothing),)}, "lr"),
        ({"parts": (Phase("x", sft, 1, nothing),)}, "num_generations"),
        ({"parts": (Phase("x", grpo.but(rollout="logged"), 1, nothing),)}, "num_generations"),
        ({"parts": (Phase("x", grpo, 1, nothing, role="judge"),)}, "eval_every"),
        ({"parts": (Phase("x", grpo, 1, nothing, changes={"lr": 1.0}),)}, "lr"),
    ],
)  # fmt: skip
def test_what_a_plan_does_not_read_is_refused_with_its_own_options(changes: dict[str, Any], key: str) -> None:
    plain = Plan((Phase("x", grpo, 1, nothing),), "toy", options={"steps": 60}, uses=("task", "reward"))
    dash = key.replace("_", "-")
    with pytest.raises(UserError, match=rf"toy is a plan that does not use --{dash}; .*--plan.steps 60"):
        refuse_of_plan(dataclasses.replace(plain, **changes), {key})
    if changes:
        refuse_of_plan(plain, {key})


def test_a_learning_rate_that_one_phase_of_two_sets_is_used_by_the_other() -> None:
    two = Plan((Phase("x", grpo, 1, nothing, changes={"lr": 1.0}), Phase("y", grpo, 1, nothing)), "toy")
    refuse_of_plan(two, {"lr"})


@pytest.mark.parametrize(
    ("name", "key", "told"),
    [
        ("sft", "reward", "learns from written answers"), ("dpo", "reward", "learns from written answers"),
        ("dpo", "think", "no --think"), ("reward-model", "level", "no --level"), ("sft", "num_generations", "demonstrations has no"),
        ("copg", "level", "logged answers, which have no --level"), ("copg", "think", "no --think"),
    ],
)  # fmt: skip
def test_what_a_method_does_not_read_is_refused(name: str, key: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        refuse_of_method(find_method(name), {key})
    refuse_of_method(find_method("grpo"), {"reward", "think", "level", "num_generations"})


def test_the_number_of_answers_is_said_once(tmp_path: Path) -> None:
    """A rollout that was changed to another number than --num-generations; the same number, or the method's own, is no conflict."""
    how: dict[str, Any] = {
        "model": tiny_run.policy(),
        "env": tiny_run.Count(),
        "reward": lambda prompt, text: float(len(text)),
        "steps": 1,
        "prompts": 1,
        "runs": tmp_path,
        "eval_problems": 0,
    }
    changed = find_method("grpo").but(rollout="sample(n=3)")
    with pytest.raises(UserError, match=r"--num-generations 5 and --rollout sample\(n=3\) both say how many"):
        posttrain.run(method=changed, num_generations=5, name="both", **how)
    posttrain.run(method=changed, num_generations=3, name="same", **how)
    posttrain.run(method="grpo", num_generations=2, name="own", **how)


def test_questions_that_are_read_as_a_log_are_told_so() -> None:
    env = of_rows([{"question": f"{i}+1?", "answer": str(i + 1)} for i in range(12)], "logs")
    with pytest.raises(
        UserError, match=r'read as a log, and its answers come without rewards.*--rollout "sample\(n=2\)"'
    ):
        scorer_of(Config(), find_method("copg"), env)


def test_at_the_terminal_nothing_is_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, told in (
        (["reft", "--steps", "40"], "reft is a plan that does not use --steps; "),
        (["sft", "--reward", "numeric"], "does not use --reward"),
        (["reft", "--steps=40", "--model", "nowhere"], "does not use --steps"),
    ):
        assert main(["run", *words, "--runs", str(tmp_path)]) == 2
        assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "row", "told"),
    [
        ("adacot", {"question": "2+2?", "answer": "4"}, "give its rows a column 'cot' of true and false"),
        ("autothink", {"prompt": "Say hi"}, "has no gold answers, so it cannot grade itself"),
        ("dr-irl", {"prompt": "Say hi"}, "has no demonstration, which DR-IRL learns from"),
        ("open-rs", {"prompt": "Say hi"}, "has no gold answers, so it cannot grade itself"),
        ("reward-robust-rlhf", {"question": "2+2?", "answer": "4"}, "has no chosen column"),
        ("rm-ensemble-conservative", {"question": "2+2?", "answer": "4"}, "has no chosen column"),
        ("autorule(served='http://127.0.0.1:1/v1', rules='nowhere.txt')", {"prompt": "Say hi"}, "a rule per line"),
        ("one-shot-rlvr(epochs=1.0)", {"question": "2+2?", "answer": "4"}, "variance takes 2 passes at least"),
    ],
)
def test_data_that_a_plan_cannot_learn_from_is_told_before_anything_is_loaded(
    name: str, row: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "load_policy", lambda config: pytest.fail("loaded"))
    asked = next(k for k in ("question", "prompt") if k in row)
    rows = [row | {asked: f"{i}: {row[asked]}"} for i in range(12)]
    with pytest.raises(UserError, match=told):
        recipe.run_plan(find(name, "plan")(), context(tmp_path, rows).config, tmp_path)


def test_a_file_of_settings_gives_those_that_differ() -> None:
    assert differing(Config(steps=3, level=2)) == {"steps", "level"} and differing(Config()) == set()


def test_what_was_to_be_read_and_was_not_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recipe, "load_policy", lambda config: tiny_run.policy(config.seed))
    plan = Plan((Do("x", asked_task),), "toy", uses=("task", "reward"))
    rewarded = {"env": tiny_run.Count(), "scorer": object()}
    with caplog.at_level("WARNING", "posttrain"):
        recipe.run_plan(plan, tiny_run.config(name="p"), tmp_path, asked=Asked((), rewarded))
    assert "toy never read --reward" in caplog.text and "--task" not in caplog.text


def test_what_was_read_before_a_restart_or_behind_a_gate_is_not_called_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recipe, "load_policy", lambda config: tiny_run.policy(config.seed))

    def read(context: Context) -> None:
        asked_task(context), asked_rewards(context)

    def stop(context: Context) -> None:
        raise Stopped("enough")

    rewarded = {"env": tiny_run.Count(), "scorer": object()}
    whole = Plan((Do("x", read),), "toy", uses=("task", "reward"))
    gated = Plan((Do("y", stop), Do("x", read)), "toy", uses=("task", "reward"))
    with caplog.at_level("WARNING", "posttrain"):
        for plan, name in ((whole, "p"), (whole, "p"), (gated, "q")):  # the second finds everything done
            recipe.run_plan(plan, tiny_run.config(name=name), tmp_path, asked=Asked((), rewarded))
    assert "never read" not in caplog.text


# ---- what the settings ask for


def context(tmp_path: Path, rows: list[dict[str, Any]], **changes: Any) -> Context:
    import json

    file = tmp_path / "my.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Context(None, Config(task=str(file), **changes), {})


def test_a_task_is_read_once_with_its_columns_and_system_message(tmp_path: Path) -> None:
    made = context(
        tmp_path,
        [{"ask": f"{i}: 2+2?", "said": "4"} for i in range(12)],
        question="ask",
        answer="said",
        system="Be brief.",
    )
    env = asked_task(made)
    assert asked_task(made) is env and made.read == {"task"}
    assert [m["role"] for m in env.prompt(0).content] == ["system", "user"] and env.prompt(0).answer == "4"
    assert asked_rewards(made) is asked_rewards(made) and made.read == {"task", "reward"}


def test_rows_from_python_have_the_system_message_and_the_prefill_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In training and on held-out problems."""
    env = of_rows([{"question": f"{i}: 2+2?", "answer": "4"} for i in range(12)])
    made = Context(None, Config(system="Be brief.", prefill="So: "), {"policy": object()}, given={"env": env})
    measured: list[Any] = []
    monkeypatch.setattr(recipe, "measure", lambda policy, config, how, env, scorer: measured.append(env))
    recipe.look(find("rlmt", "plan")(), made)(None)  # type: ignore[misc, arg-type]
    for one in (asked_task(made), *measured):
        prompt = one.prompt(0)
        assert [m["role"] for m in prompt.content] == ["system", "user"] and prompt.info["prefill"] == "So: "
    assert len(measured) == 1


def test_prompts_without_answers_need_a_reward(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot grade itself; say what is good with --reward"):
        asked_rewards(context(tmp_path, [{"prompt": f"Say {i}"} for i in range(12)]))


@pytest.mark.parametrize(
    ("row", "there"),
    [
        ({"question": "2+2?", "answer": "4"}, False), ({"question": "2+2?", "answer": "2 and 2 make 4 #### 4"}, True),
        ({"question": "2+2?", "answer": "4", "solution": "two and two"}, True), ({"question": "2+2?", "answer": 4}, False),
        ({"question": "Sum up.", "answer": "A man lost his keys twice."}, True),
        ({"question": "Name it.", "answer": "the red one"}, False),
    ],
)  # fmt: skip
def test_a_bare_answer_is_not_imitated_silently(tmp_path: Path, row: dict[str, Any], there: bool) -> None:
    rows = [row | {"question": f"{i}: {row['question']}"} for i in range(20)]
    made = context(tmp_path, rows)
    if there:
        env = asked_demonstrations(made, 5)
        assert env.size == 5 and shown(env.prompt(0))
        return
    with pytest.raises(UserError, match=r"no written solution to imitate, only its answer .*--plan.warmup 0"):
        asked_demonstrations(made, 5)


@pytest.mark.parametrize("name", [p.name for p in parts("plan")])
def test_every_plan_says_what_it_reads(name: str) -> None:
    made = find(name, "plan")()
    assert made.uses is not None and set(made.uses) <= set(READS)
    refuse_of_plan(made, {"seed", "model", "device", "eval_problems"})


# ---- how answers are drawn: what is accepted changes something, in training or where it is measured

OTHER = {"max_tokens": 3, "temperature": 0.5, "top_k": 2, "top_p": 0.3, "min_p": 0.4, "stop": "a|b|c", "raw_logp": True}
SAMPLED, HOT = ("grpo", "sft", "copg"), {"max_tokens": 8, "temperature": 2.0}


def digits(name: str, rows: Any, folder: Path, **settings: Any) -> tuple[Any, ...]:
    """All that came out of two steps: weights, figures of each step, the measurements before and after, and what was answered."""
    policy = tiny_run.policy()
    given = {"task": rows} if rows else {"env": tiny_run.Count()}
    settings = {"sampling": HOT if name in SAMPLED else {}} | settings
    seen: list[dict[str, float]] = []
    texts: list[str] = []

    class Steps:
        def on_begin(self, loop: Any, before: Any) -> None:
            texts.extend(r.text for r in before.rollouts)

        def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
            seen.append({k: v for k, v in metrics.items() if "seconds" not in k and "per_second" not in k})

    summary = posttrain.run(
        model=policy, method=name, steps=2, prompts=4, eval_problems=8, lr=1e-2, warmup=0, runs=folder, fresh=True, callbacks=[Steps()],
        **given, **settings,
    )  # fmt: skip
    told = {k: v for k, v in summary.items() if k != "seconds"}
    return repr(seen), repr(told), texts, float(sum(p.double().sum() for p in policy.parameters()).detach())


@pytest.mark.parametrize("name", ["grpo", "sft", "copg", "dpo", "reward-model"])
def test_a_setting_of_sampling_that_is_accepted_changes_something(name: str, tmp_path: Path) -> None:
    """And one that would change nothing is refused, with a sentence that names it."""
    method = find_method(name)
    rows = {"logs": LOGS, "pairs": PAIRS}.get(method.rollout.card.data)
    plain = digits(name, rows, tmp_path)
    for key, value in OTHER.items():
        how = {"sampling": (HOT if name in SAMPLED else {}) | {key: value}}
        if f"sampling.{key}" in drawn_by(method):
            assert digits(name, rows, tmp_path, **how) != plain, key
        else:
            with pytest.raises(UserError, match=f"--sampling.{key.replace('_', '-')}"):
                digits(name, rows, tmp_path, **how)


def test_written_answers_that_nothing_measures_are_drawn_by_nothing(tmp_path: Path) -> None:
    bare = [{k: v for k, v in row.items() if k != "answer"} for row in LOGS]
    with pytest.raises(UserError, match=r"nothing here can grade .*, so it does not use --sampling\.max-tokens"):
        digits("copg", bare, tmp_path)
    digits("copg", bare, tmp_path, sampling={"temperature": 2.0})
    with pytest.raises(UserError, match=r"with --eval-problems 0 nothing is measured, .* --sampling\.max-tokens"):
        posttrain.run(
            model=tiny_run.policy(), method="sft", env=tiny_run.Count(), sampling={"max_tokens": 8}, eval_problems=0, steps=1,
            runs=tmp_path,
        )  # fmt: skip


@pytest.mark.parametrize("name", [p.name for p in parts("method")])
def test_every_method_reads_what_its_answers_come_from(name: str) -> None:
    method = find_method(name)
    reads = {key.removeprefix("sampling.") for key in drawn_by(method)}
    drawn = {"": set(OTHER), "demonstrations": set(OTHER) - {"raw_logp"}, "logs": set(OTHER) - {"raw_logp"}}
    compared = set() if method.scores else {"temperature"}
    assert reads == drawn.get(method.rollout.card.data, compared)
    refuse_of_method(method, drawn_by(method))
    for key in DRAWN - drawn_by(method):
        with pytest.raises(UserError, match=re.escape(f"--{key.replace('_', '-')}")):
            refuse_of_method(method, {key})


@pytest.mark.parametrize("name", [p.name for p in parts("plan")])
def test_every_plan_that_samples_reads_how(name: str) -> None:
    made = find(name, "plan")()
    few = {"rl-pgd-robustness": {"sampling.max_tokens"}, "rlprompt": {"sampling.temperature"}}
    learns = any(phase.method.rollout.card.data in ("", "logs") for phase in made.phases())
    assert drawn_by_plan(made) == few.get(name, DRAWN if learns else DRAWN - {"sampling.raw_logp"})
    for key in DRAWN - drawn_by_plan(made):
        with pytest.raises(UserError, match="does not use --sampling"):
            refuse_of_plan(made, {key})


def test_at_the_terminal_and_in_python_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, told in (
        (["reward-model", "--sampling.top-p", "0.9"], "reward-model scores written answers and samples none, so it does not use --sampling.top-p"),
        (["dpo", "--sampling.max-tokens", "9"], "dpo compares written answers, in training and on held-out pairs"),
        (["dpo", "--reward-timeout", "9"], "does not use --reward-timeout"),
        (["sft", "--sampling.raw-logp"], "no log-probability is recorded; leave --sampling.raw-logp away"),
        (["rlprompt", "--sampling.max-tokens", "9"], "rlprompt is a plan that does not use --sampling.max-tokens"),
    ):  # fmt: skip
        assert main(["run", *words, "--runs", str(tmp_path)]) == 2
        assert told in capsys.readouterr().err
    with pytest.raises(UserError, match=r"so it does not use --sampling\.top-k"):
        posttrain.run(model=tiny_run.policy(), method="dpo", task=PAIRS, sampling=Sampling(top_k=3), runs=tmp_path)
    assert not list(tmp_path.iterdir())
