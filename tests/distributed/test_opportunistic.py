"""Opportunistic sampling: no answer is older than asked, none is lost or trained on twice, late shards join the next step."""

from __future__ import annotations

import time
import types
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import find
from posttrain.core.sampling import Sampling
from posttrain.distributed import choose, midway
from posttrain.distributed.versions import Versions
from posttrain.policies.load import load_model
from posttrain.runs.run import Run
from tests.distributed import small
from tests.distributed.test_lag import Nursery, nursery
from tests.distributed.test_workers import files
from tests.models import tiny

__all__ = ["files", "nursery"]


def rows(folder: Path) -> list[Any]:
    with Run.open(folder) as run:
        return list(run.store.rollouts())


def whole(folder: Path, most: int, steps: int, oldest: list[tuple[int, int]] | None = None) -> None:
    """Every prompt of the run once, four answers each, by weights that are at most so old and never of the future. oldest: (step, version) of
    the first token of each, where it is known."""
    found = rows(folder)
    assert all(0 <= step - version <= most for step, version in oldest or ()), oldest
    assert Counter(r["step"] for r in found) == {k: 16 for k in range(steps)}
    assert all(0 <= r["step"] - r["version"] <= most for r in found), {(r["step"], r["version"]) for r in found}
    assert set(Counter(r["prompt_id"] for r in found).values()) == {4}


class Late(small.Inside):
    """A worker whose first shard is late: another could have made all of steps 0 and 1 by then, so that step 1 must wait for it."""

    made = 0
    every: list[small.Inside] = []

    def __init__(self, setup: bytes, index: int) -> None:
        super().__init__(setup, index)
        Late.every.append(self)

    def ask(self, message: bytes, timeout: float) -> bytes:
        reply = super().ask(message, timeout)
        Late.made += 1
        first = self.index == 0 and not hasattr(self, "waited")
        while first and Late.made < 10:
            time.sleep(0.005)
        self.waited = True
        return reply


def test_late_shards_join_the_next_step(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(choose, "Process", Late)
    small.start(files, tmp_path, sampler="process", rollout_workers=2, max_staleness=1, shards=4, steps=6)
    whole(tmp_path / "small", 1, 6)
    assert "cannot be repeated to the bit; --lag 1 can" in capfd.readouterr().err
    versions = {(r["step"], r["version"]) for r in rows(tmp_path / "small")}
    assert any(step > version for step, version in versions)
    assert len(Late.every) == 2 and all(one.killed and not one.busy.locked() for one in Late.every), (
        "they end with the run"
    )


def test_a_kill_loses_no_prompt_and_repeats_none(nursery: Nursery, files: Path, tmp_path: Path) -> None:
    how = {"files": str(files), "sampler": "process", "max_staleness": 2, "shards": 4, "steps": 6}
    for at in (30, 60):
        assert nursery.run(tmp_path / "run", at, **how) == -9
    assert nursery.run(tmp_path / "run", **how) == 0
    whole(tmp_path / "run/small", 2, 6)


def test_it_needs_workers_and_no_lag(files: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="add --sampler process"):
        small.start(files, tmp_path, max_staleness=1)
    with pytest.raises(UserError, match="use one of the two"):
        small.start(files, tmp_path, max_staleness=1, lag=1, sampler="process")


class Published(small.Inside):
    """A worker between whose pieces an update is published: it waits, at the first look of each shard, for weights newer than its own."""

    waited = 0

    def ask(self, message: bytes, timeout: float) -> bytes:
        assert self.worker is not None
        renewed, looks = type(self.worker).renewed, [0]

        def patient(worker: Any, asked: dict[str, Any]) -> int:
            looks[0] += 1
            end = time.monotonic() + (1.0 if looks[0] == 1 and Published.waited < 3 else 0.0)
            before = asked["version"]
            while (now := renewed(worker, asked)) == before and time.monotonic() < end:
                time.sleep(0.005)
            Published.waited += now > before
            return now

        self.worker.renewed = partial(patient, self.worker)  # type: ignore[method-assign]
        return super().ask(message, timeout)


def test_answers_go_on_with_new_weights(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "Process", Published)
    monkeypatch.setattr(midway, "LEAST", 2)
    seen: list[Any] = []
    watch = types.SimpleNamespace(on_rollouts=lambda loop, step, groups: seen.extend((step, r, loop.policy) for g in groups for r in g.rollouts))  # fmt: skip
    how = {"sampling": Sampling(max_tokens=16), "lr": 3e-2, "warmup": 0}
    small.start(
        files, tmp_path, (watch,), sampler="process", rollout_workers=2, max_staleness=1, shards=4, steps=6, **how
    )
    whole(tmp_path / "small", 1, 6, oldest=[(step, r.versions[0]) for step, r, _ in seen])
    mixed = [r for _, r, _ in seen if r.versions[0] != r.versions[1]]
    assert mixed and all((r.row.version_T.diff() >= 0).all() for r in mixed), "newer as it goes on, never older"
    with Run.open(tmp_path / "small") as run:
        kept = [x["versions"] for x in run.store.rollouts() if x["versions"] is not None]
    assert sorted(map(tuple, kept)) == sorted(tuple(r.row.version_T.tolist()) for r in mixed)


def test_each_token_is_of_the_weights_that_it_says(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two policies stand for two versions: the log-probabilities before the change are the first's, those after it the second's."""
    policy, other = (load_model(str(files / "model"), "cpu") for _ in range(2))
    with torch.no_grad():
        for p in other.model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    monkeypatch.setattr(midway, "LEAST", 8)
    before, looks = policy.clone(), [0]

    def renew() -> int:
        looks[0] += 1
        if looks[0] == 2:
            policy.load_state_dict(other.state_dict())
        return 3 if looks[0] < 2 else 5

    act, drawn = policy.act, []
    monkeypatch.setattr(policy, "act", lambda pending, keys, *rest, **more: drawn.extend(k for row in keys for k in row) or act(pending, keys, *rest, **more))  # fmt: skip
    ask = RolloutRequest({"policy": policy}, tiny.prompts("abc", "write d"), Sampling(32), 0, 4)
    groups = midway.made(find("sample", "rollout").but(n=4), ask, 3, renew)
    rollouts = [r for g in groups for r in g.rollouts]
    assert {v for r in rollouts for v in r.row.version_T.tolist()} == {3, 5} and max(map(len, rollouts)) == 32
    old, new = (p.forward(rollouts)["logp_BT"].detach() for p in (before, policy))
    for b, r in enumerate(rollouts):
        expected = torch.where(r.row.version_T == 3, old[b, : len(r)], new[b, : len(r)])
        torch.testing.assert_close(r.logp_T, expected, atol=1e-4, rtol=0)
        assert (r.stop == "stop") == (int(r.actions[-1]) == 1) and r.text == policy.decode(r.actions)
    assert len(drawn) > 16 and len(set(drawn)) == len(drawn), "no piece repeats the draws of another"
    first = policy_draws(before, ask)
    assert [r.actions[:8].tolist() for r in rollouts] == [a[:8] for a in first], "the beginning is what it always was"
    assert len({tuple(r.actions[8:].tolist()) for r in rollouts}) > 1


def policy_draws(policy: Any, ask: RolloutRequest) -> list[list[int]]:
    return [r.actions.tolist() for g in policy.sample(ask.prompts, 4, ask.sampling, 0, 4) for r in g]


def test_weights_of_versions_to_come_that_a_kill_left_are_not_taken(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "Process", small.Inside)
    monkeypatch.setattr(midway, "LEAST", 2)
    later = load_model(str(files / "model"), "cpu")
    with torch.no_grad():
        later.model.lm_head.weight.mul_(2.0)  # type: ignore[union-attr, operator]
    Versions(tmp_path / "small" / "versions").publish(99, later)
    small.start(files, tmp_path, sampler="process", max_staleness=1, shards=4, steps=2)
    whole(tmp_path / "small", 1, 2)
