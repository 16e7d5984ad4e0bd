"""Workers as actors of a Ray cluster: the same `Worker`, the same pool; Ray places them and brings weights and replies.

An actor holds only weights. Ray may run a constructor again or report a finished call as failed, so actors are made without restarts: the
pool replaces them, and what it gives out twice is the same bits twice. They end with the process that made them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import Any

import numpy as np

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.distributed.pool import REFUSED, Died, Handle
from posttrain.distributed.worker import Worker
from posttrain.runs.wire import unpack

_START = 600.0  # seconds to place an actor and load a model
_OURS: list[Any] = []  # Ray, where a run here has connected it
_CONNECT = 20.0  # seconds to reach a cluster


class Actor:
    """One actor; `start` makes it, and makes another after it died."""

    def __init__(self, setup: bytes, index: int, gpus: float, weights: Weights) -> None:
        self.setup, self.index, self.gpus, self.weights = setup, index, gpus, weights
        self.actor: Any = None
        self.has = ""  # the hash of the weights that it has

    @property
    def life(self) -> Any:
        """The actor that there is now."""
        return self.actor

    def start(self) -> bytes:
        import ray

        if self.actor is not None:
            return b"="
        kind = ray.remote(num_cpus=1, num_gpus=self.gpus, max_restarts=0, max_task_retries=0)(Remote)
        self.actor, self.has = kind.remote(self.index), ""
        return self._call(self.actor.begin.remote(self.setup), _START)

    def ask(self, message: bytes, timeout: float) -> bytes:
        want = unpack(message)
        if "path" not in want or want["weights"] == self.has:
            return self._call(self.actor.reply.remote(message, None), timeout)
        stored = None if "ticket" in want else self.weights.of(want["path"], want["weights"])
        reply = self._call(self.actor.reply.remote(message, stored), timeout)
        self.has = want["weights"] if reply[:1] != REFUSED else ""
        return reply

    def _call(self, future: Any, timeout: float) -> bytes:
        import ray

        try:
            reply: bytes = ray.get(future, timeout=timeout)
            return reply
        except ray.exceptions.GetTimeoutError:
            self.kill()
            raise Died(f"said nothing for {timeout:g} s") from None
        except ray.exceptions.RayError as error:  # its process, its node or its memory is gone
            self.kill()
            raise Died(f"was lost ({type(error).__name__})") from None

    def kill(self) -> None:
        import ray

        actor, self.actor = self.actor, None
        if actor is not None and ray.is_initialized():
            ray.kill(actor)


class Weights:
    """Weights in Ray's object store: each version is put there once, whoever asks first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: dict[str, Any] = {}

    def of(self, path: str, digest: str) -> Any:
        import ray

        with self.lock:
            if digest not in self.known:
                while len(self.known) > 3:
                    self.known.pop(next(iter(self.known)))  # who still has it to read holds it
                self.known[digest] = ray.put(np.fromfile(path, dtype=np.uint8))
            return self.known[digest]


class Remote:
    """The actor itself, in its own process."""

    def __init__(self, index: int) -> None:
        os.dup2(2, 1)  # what user code prints must not mix with the JSON of a run
        self.index = index
        self.worker: Worker | None = None

    def begin(self, setup: bytes) -> bytes:
        import traceback

        from posttrain.distributed.pool import ERROR, MISTAKE, OK

        try:
            self.worker = Worker(setup, self.index)
        except UserError as error:
            return MISTAKE + str(error).encode()
        except Exception:
            return ERROR + traceback.format_exc().encode()
        return OK

    def pid(self) -> int:
        return os.getpid()

    def reply(self, message: bytes, weights: Any) -> bytes:
        assert self.worker is not None
        return self.worker.reply(message, weights)


def actors(setup: bytes, workers: int, config: Config, sample: bool = True) -> list[Handle]:
    """So many actors, of the cluster that the settings name or of one that is started here; those that sample share its GPUs."""
    every = config.rollout_workers + config.reward_workers
    ray = connected(config.ray_address, every)
    resources = ray.cluster_resources()
    gpus = min(1.0, resources.get("GPU", 0.0) / workers) if sample else 0.0
    if (have := int(resources.get("CPU", 0))) < every:
        raise UserError(
            f"{config.rollout_workers} rollout and {config.reward_workers} reward workers need a CPU each, and this Ray cluster has {have}; "
            f"use --rollout-workers {max(1, have - config.reward_workers)}"
        )
    weights = Weights()
    return [Actor(setup, i, gpus, weights) for i in range(workers)]


def connected(address: str, workers: int) -> Any:
    """Ray, connected; a sentence where it is missing or nobody answers."""
    try:
        import ray
    except ImportError:
        raise UserError('--sampler ray needs Ray; install it with: pip install "posttrain[ray]"') from None
    if ray.is_initialized():
        return ray
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": True, "include_dashboard": False}
    if not address:
        ray.init(address="local", num_cpus=max(workers, 1), **quiet)
        _OURS.append(ray)
        return ray
    answered = silent(address) or _try(
        lambda: ray.init(address=address, **{k: v for k, v in quiet.items() if k != "include_dashboard"})
    )
    if answered:
        raise UserError(
            f"no Ray cluster answers at {address} ({answered}); start one with: ray start --head, and give its address, host:6379"
        )
    _OURS.append(ray)
    return ray


def here() -> str:
    """The address at which the cluster's machines reach this one."""
    import ray

    library: Any = ray
    found: str = library.util.get_node_ip_address()
    return found


def disconnect() -> None:
    """Leave the cluster, or end it, if it was joined or started here."""
    while _OURS:
        _OURS.pop().shutdown()


def silent(address: str) -> str:
    """Why nobody can be there; empty where somebody listens, or where the address is not of the form host:port."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return "" if address == "auto" else "not of the form host:port"
    try:
        socket.create_connection((host, int(port)), 5.0).close()
    except (OSError, OverflowError) as error:
        return str(error)
    return ""


def _try(connect: Any) -> str:
    """Connect; why not, where that fails or takes too long."""
    wrong: list[str] = []
    done = threading.Event()

    def work() -> None:
        try:
            connect()
        except BaseException as error:
            wrong.append(str(error).splitlines()[0][:120] or type(error).__name__)
        done.set()

    threading.Thread(target=work, daemon=True).start()
    if not done.wait(_CONNECT):
        return f"not within {_CONNECT:g} s"
    return wrong[0] if wrong else ""
