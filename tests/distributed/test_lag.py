"""A fixed lag is exact: step k is made by version max(0, k - S), a run is a function of its seed, and no kill changes a bit of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.runs.run import Run
from posttrain.train import train
from tests.distributed import lag_run
from tests.runs import tiny_run
from tests.runs.test_resume import ROOT, ending, same


class Nursery:
    """Forks runs for us: torch is imported once."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.distributed.lag_run", "--serve"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, folder: Path, kill_at: int = 0, files: str = "", **settings: Any) -> int:
        assert self.process.stdin and self.process.stdout
        request = {"folder": str(folder), "kill_at": kill_at, "files": files, "settings": settings}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline())["code"])


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    assert made.process.stdin
    made.process.stdin.close()
    made.process.wait(10)


@pytest.fixture(scope="module")
def wholes(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What undisturbed runs leave behind, by lag."""
    out = {}
    for lag in (0, 1, 2):
        folder = tmp_path_factory.mktemp("whole") / "run"
        assert nursery.run(folder, lag=lag, shards=2) == 0
        out[lag] = ending(folder)
    return out


def test_the_plain_source_is_one_shard_without_a_lag(nursery: Nursery, tmp_path: Path) -> None:
    """Through the code of shards and ledgers come the bits of `LocalSource`."""
    tiny_run.start(tmp_path / "plain")
    assert nursery.run(tmp_path / "sharded", shards=1) == 0
    plain, sharded = ending(tmp_path / "plain"), ending(tmp_path / "sharded")
    for key in (k for k in plain if k.startswith("state")):  # the settings differ, and so do their fingerprints
        plain[key].pop("config"), sharded[key].pop("config")
    same(plain, sharded)


@pytest.mark.parametrize("lag", [1, 2])
def test_a_step_is_made_by_the_weights_of_exactly_lag_steps_before(wholes: dict[int, Any], lag: int) -> None:
    versions = {(r["step"], r["version"]) for r in wholes[lag]["rollouts"]}
    assert versions == {(k, max(0, k - lag)) for k in range(7)}
    assert {(r["step"], r["version"]) for r in wholes[0]["rollouts"]} == {(k, k) for k in range(7)}


def test_answers_are_those_of_the_older_weights(tmp_path: Path) -> None:
    """The log-probabilities that a step carries are its version's own: those weights give them again, to the bit."""
    states: dict[int, Any] = {}
    seen: dict[int, Any] = {}

    class Keep:
        def on_rollouts(self, loop: Any, step: int, groups: Any) -> None:
            states[step] = {k: x.clone() for k, x in loop.policy.state_dict().items()}
            seen[step] = groups

    with Run(tmp_path / "run", {}) as run:
        loop = lag_run.build(run, tmp_path / "run", lag=2, steps=5)
        loop.callbacks.append(Keep())
        train(loop)
    policy = tiny_run.policy()
    for step, groups in seen.items():
        policy.load_state_dict(states[max(0, step - 2)])
        rollouts = [r for g in groups for r in g.rollouts]
        with torch.no_grad():
            logp_BT = policy.forward(rollouts)["logp_BT"]
        for b, r in enumerate(rollouts):
            torch.testing.assert_close(logp_BT[b, : len(r)], r.logp_T, atol=1e-5, rtol=0)
    moved = policy.state_dict()
    assert any(not torch.equal(states[0][k], moved[k]) for k in moved)


def test_twice_the_same_bits(nursery: Nursery, tmp_path: Path, wholes: dict[int, Any]) -> None:
    assert nursery.run(tmp_path / "again", lag=1, shards=2) == 0
    same(ending(tmp_path / "again"), wholes[1])
    assert wholes[1]["train 6 weights.safetensors"] != wholes[0]["train 6 weights.safetensors"]


@pytest.mark.parametrize(("lag", "seed"), [(0, 0), (1, 1), (2, 2)])
def test_killed_at_dangerous_moments(
    nursery: Nursery, tmp_path: Path, wholes: dict[int, Any], lag: int, seed: int
) -> None:
    """Flushes and renames of ledger and checkpoints, rollouts, optimiser steps: the next 1 to 60 of them end in SIGKILL."""
    random, kills, folder = Random(seed), 0, tmp_path / "run"
    while (code := nursery.run(folder, random.randint(1, 60), lag=lag, shards=2)) != 0:
        assert code == -signal.SIGKILL
        kills += 1
        assert kills < 200, "the run never gets anywhere"
    assert kills > 2
    same(ending(folder), wholes[lag])


def test_a_damaged_or_missing_ledger_is_a_sentence_where_the_weights_are_gone(nursery: Nursery, tmp_path: Path) -> None:
    """With a lag of 2 the checkpoint after step 3 needs steps 4 and 5 by weights that no longer exist; step 6 is made again."""
    import shutil

    folder = tmp_path / "run"
    at = 1
    while not (folder / "checkpoints" / "train-000003").is_dir():  # somewhere between the checkpoints 3 and 5
        shutil.rmtree(folder, ignore_errors=True)
        assert nursery.run(folder, at := at + 20, lag=2, shards=2) == -signal.SIGKILL
    kept = sorted(p.name for p in (folder / "ledger").iterdir())
    assert kept[0] > "000001", "steps that every checkpoint has passed are dropped"
    (scored,) = (folder / "ledger" / "000004").iterdir()
    scored.write_bytes(scored.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"answers by version 2 of the weights are missing in .*ledger"):
        lag_run.start(folder, lag=2, shards=2)


def test_refills_in_shards_are_those_of_the_plain_source(tmp_path: Path) -> None:
    """A method that asks more prompts within a step: rounds of shards, each with a place of its own in the ledger."""
    method, found = tiny_run.method().but(rounds=3), []
    for name in ("plain", "sharded"):
        seen: list[Any] = []
        with Run(tmp_path / name, {}) as run:
            settings = tiny_run.config(steps=2)
            loop = tiny_run.build(run, settings, method)
            if name == "sharded":
                loop = lag_run.build(run, tmp_path / name, method, steps=2)
            loop.select = [_few]
            loop.tell = lambda event, *args, seen=seen: seen.extend(args[1] if event == "on_rollouts" else [])  # type: ignore[method-assign]
            train(loop)
        found.append([(r.prompt.id, r.text, r.reward) for g in seen for r in g.rollouts])
    assert found[0] == found[1] and len(found[0]) == 2 * 3 * 3 * 4, "steps, rounds, prompts, answers"
    assert {p.name for p in (tmp_path / "sharded/ledger/000000").iterdir()} == {"0-scored", "1-scored", "2-scored"}


def _few(groups: Any) -> Any:
    """A selection that leaves too little, so that every step is refilled to the end."""
    return groups[1:2] if groups[0].prompt.answer == "a" else []


def test_a_damaged_checkpoint_leads_back_to_the_one_before(
    nursery: Nursery, tmp_path: Path, wholes: dict[int, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """The ledger keeps what the oldest checkpoint needs, not only the newest."""
    assert nursery.run(tmp_path / "run", lag=1, shards=2) == 0
    weights = tmp_path / "run/checkpoints/train-000006/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + b"damaged!")
    assert nursery.run(tmp_path / "run", lag=1, shards=2) == 0
    same(ending(tmp_path / "run"), wholes[1])


class Counting:
    """A curriculum that says what it knew when it proposed."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.steps, self.knew = inner, 0, {}  # type: ignore[var-annotated]

    def start(self, env: Any, seed: int) -> None:
        self.inner.start(env, seed)

    def propose(self, n: int, step: int, policy: Any = None) -> Any:
        self.knew[step] = self.steps
        return self.inner.propose(n, step, policy)

    def observe(self, groups: Any) -> None:
        self.steps += 1


def test_a_curriculum_knows_results_up_to_the_lag(tmp_path: Path) -> None:
    with Run(tmp_path / "run", {}) as run:
        loop = lag_run.build(run, tmp_path / "run", lag=2, steps=6)
        source: Any = loop.source
        source.curriculum = Counting(source.curriculum)
        train(loop)
    assert source.curriculum.knew == {0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 3}


def test_scoring_happens_beside_training(tmp_path: Path) -> None:
    """With a lag the reward of the next step is asked in another thread, and every step's once."""
    import threading

    threads: list[str] = []
    with Run(tmp_path / "run", {}) as run:
        loop = lag_run.build(run, tmp_path / "run", lag=1, steps=3)
        scorer: Any = loop.source.scorer  # type: ignore[attr-defined]
        plain = scorer.score

        def score(groups: Any) -> Any:
            threads.append(threading.current_thread().name)
            return plain(groups)

        scorer.score = score
        train(loop)
    assert threads == ["step 0", "step 1", "step 2"]


def test_an_error_of_a_reward_comes_out_at_its_step(tmp_path: Path) -> None:
    with Run(tmp_path / "run", {}) as run:
        loop = lag_run.build(run, tmp_path / "run", lag=1, steps=3)

        def broken(groups: Any) -> Any:
            raise UserError("the judge is not there")

        loop.source.scorer.score = broken  # type: ignore[attr-defined]
        with pytest.raises(UserError, match="the judge is not there"):
            train(loop)


def test_a_run_with_a_lag_is_not_made_longer(tmp_path: Path) -> None:
    """Step 3 would be made by version 2, which is gone by the time that somebody asks for it."""
    same_settings = {"lag": 1, "schedule": "constant"}
    lag_run.start(tmp_path / "run", steps=3, **same_settings)
    with pytest.raises(
        UserError, match=r"was to end after step 2; with --lag 1 step 3 would be made by the weights after step 1"
    ):
        lag_run.start(tmp_path / "run", steps=5, **same_settings)
    lag_run.start(tmp_path / "without", steps=3, schedule="constant", shards=2)
    lag_run.start(tmp_path / "without", steps=5, schedule="constant", shards=2)


def test_starting_over_forgets_the_ledger(tmp_path: Path) -> None:
    for folder in ("ledger/000001", "versions/000001"):
        (tmp_path / "run" / folder).mkdir(parents=True)
    with Run(tmp_path / "run", {}, fresh=True) as run:
        assert not list((run.folder / "ledger").iterdir()) and not list((run.folder / "versions").iterdir())


@pytest.mark.parametrize(("version", "found"), [(5, False), (4, True), (3, True), (2, False)])
def test_the_guard_expects_answers_as_old_as_the_lag(version: int, found: bool) -> None:
    from posttrain.runs.guard import lagging

    turn = tiny_run.policy().sample([tiny_run.Count().prompt(0)], 2, tiny_run.config().sampling, step=version)
    assert lagging(turn[0], 5, tiny_run.config(lag=2)) is found
    assert not lagging(turn[0], 5, tiny_run.config())
