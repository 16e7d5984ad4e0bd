"""Workers as actors of a real local Ray: the same run, also when an actor is killed."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.distributed.ray_pool import Weights
from tests.distributed import small
from tests.distributed.test_workers import files, learned
from tests.runs.test_resume import same

__all__ = ["files"]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install "posttrain[ray]"'
)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster of two CPUs on this machine."""
    import ray

    ray.init(
        address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=80_000_000
    )
    yield ray
    ray.shutdown()


class Killer:
    """Ends the process of an actor while step 1 is learned from."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray

    def on_rollouts(self, loop: Any, step: int, groups: Any) -> None:
        if step == 1:
            handle = loop.source.sampler.pool.handles[0]
            handle = getattr(handle, "inner", handle)
            pid = self.ray.get(handle.actor.pid.remote())
            os.kill(pid, signal.SIGKILL)


def test_actors_make_the_run_that_one_process_makes_and_one_is_killed(ray: Any, files: Path, tmp_path: Path) -> None:
    small.start(files, tmp_path / "local", steps=3)
    small.start(files, tmp_path / "ray", (Killer(ray),), steps=3, sampler="ray", rollout_workers=1)
    same(learned(tmp_path / "ray/small"), learned(tmp_path / "local/small"))


def test_actors_are_handed_weights_from_memory(
    ray: Any, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over gloo, and not by the object store, also after one was killed."""
    stored: list[str] = []
    monkeypatch.setattr(Weights, "of", lambda self, path, digest: stored.append(path))
    small.start(files, tmp_path / "local", lag=1, steps=3, device="cpu")
    how: dict[str, Any] = {"sampler": "ray", "weights_over": "gloo", "lag": 1, "steps": 3, "device": "cpu"}
    small.start(files, tmp_path / "ray", (Killer(ray),), **how)
    same(learned(tmp_path / "ray/small"), learned(tmp_path / "local/small"))
    assert not stored


def test_more_workers_than_the_cluster_has_places_for(ray: Any, files: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"need a CPU each, and this Ray cluster has 2; use --rollout-workers 2"):
        small.start(files, tmp_path, sampler="ray", rollout_workers=3)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_an_address_where_no_cluster_is(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray as library

    from posttrain.distributed.ray_pool import connected

    monkeypatch.setattr(library, "is_initialized", lambda: False)
    with pytest.raises(UserError, match=f"no Ray cluster answers at {address} .*start one with: ray start --head"):
        connected(address, 1)
