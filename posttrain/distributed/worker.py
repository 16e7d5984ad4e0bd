"""A worker: a process that makes shards, or scores answers, from the same settings as the run that it works for.

Run as a script by `distributed/process.py`; Ray's actors (`distributed/ray_pool.py`) hold the same `Worker`. It is asked one thing at a
time and keeps nothing but weights, so it may be killed at any moment. Nothing that crosses the pipe is pickled.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class Worker:
    """What is asked of a worker, by name: `make` a shard, `score` answers."""

    def __init__(self, setup: bytes, index: int = 0) -> None:
        from posttrain.distributed.setup import check, restored
        from posttrain.runs.wire import unpack

        self.told: dict[str, Any] = unpack(setup)
        check(self.told)
        self.config, self.rollout = restored(self.told, index)
        self.version, self.number = "", -1  # the hash of the weights that it has, and which version they are
        self.policy: Any = None
        self.taker: Any = None  # where weights come from memory
        self.env: Any = None
        self.scorer: Any = None
        self._begin_rewards() if self.told["role"] == "reward" else self._begin_rollouts(index)

    def _begin_rollouts(self, index: int) -> None:
        from posttrain.core.method import find_method
        from posttrain.core.protocols import Environment
        from posttrain.runs.build import asked_environment, load_policy
        from posttrain.runs.fit import fit

        self.policy = load_policy(self.config).eval()
        if self.config.engine:
            from posttrain.policies.vllm.choose import engine_for

            self.policy.outside = engine_for(self.policy, self.config, Path(self.told["folder"]), index)
        self.env = Environment()
        if self.told["env"]:
            method = find_method("grpo").but(rollout=self.rollout)
            self.env = fit(asked_environment(self.config), self.policy, method, self.config.sampling)

    def _begin_rewards(self) -> None:
        from posttrain.rewards.scorers.spec import build_scorer
        from posttrain.runs.build import asked_environment

        env = asked_environment(self.config)
        self.scorer = build_scorer(self.config.reward, env, self.config.reward_timeout, self.config.device)

    def reply(self, message: bytes, weights: Any = None) -> bytes:
        """The answer to a message. weights: their bytes, where they are not read from the disk."""
        from posttrain.core.errors import UserError
        from posttrain.distributed.pool import ERROR, MISTAKE, OK, REFUSED, NotTaken
        from posttrain.runs.wire import Unsendable, pack, unpack

        try:
            asked = unpack(message)
            return OK + pack(self.score(asked) if asked["do"] == "score" else self.make(asked, weights))
        except NotTaken as error:
            return REFUSED + str(error).encode()
        except UserError as error:
            return MISTAKE + str(error).encode()
        except Unsendable as error:
            return MISTAKE + f"the answers hold {error}, which a worker cannot send; use --sampler local".encode()
        except Exception:  # told to the run, which ends with it
            return ERROR + traceback.format_exc().encode()

    def make(self, asked: dict[str, Any], weights: Any) -> dict[str, Any]:
        """A shard: load the weights of its version unless they are there, then answer its prompts."""
        from posttrain.core.protocols import RolloutRequest
        from posttrain.distributed import midway
        from posttrain.distributed.shards import Shard, make, record

        self.loaded(asked, weights)
        prompts, step, c = asked["prompts"], asked["step"], self.config
        ask = RolloutRequest({"policy": self.policy}, prompts, c.sampling, c.seed, step, self.env)
        if c.max_staleness and midway.divisible(self.rollout, self.env):
            groups = midway.made(self.rollout, ask, asked["version"], partial(self.renewed, asked))
        else:
            groups = make(self.rollout, ask, asked["version"])
        return record(Shard(step, 0, 0, asked["version"], tuple(prompts)), groups, asked["weights"])

    def loaded(self, asked: dict[str, Any], weights: Any = None) -> None:
        """The weights that a shard is to be made by, unless they are there. What is sent from memory is taken in any case: somebody sends it,
        also to a worker that has found it in the run's folder in the middle of the shard before."""
        from posttrain.core.errors import UserError
        from posttrain.distributed.versions import load

        if "ticket" in asked or self.version != asked["weights"]:
            self.version = ""  # half loaded is none
            try:
                if "ticket" in asked:
                    self.taken(asked["ticket"])
                else:
                    load(self.policy, asked["path"], weights)
            except FileNotFoundError:
                raise UserError(
                    f"a worker cannot read {asked['path']}, the weights of version {asked['version']}: somebody removed them, or the disk is not "
                    "the run's; the same command goes on from the last checkpoint"
                ) from None
            self.version = asked["weights"]
        self.number = asked["version"]

    def taken(self, ticket: dict[str, Any]) -> None:
        """The weights from the memory of the process that trains."""
        from posttrain.distributed.direct import Taker

        self.taker = self.taker or Taker()
        self.taker.take(ticket, self.policy)

    def renewed(self, asked: dict[str, Any]) -> int:
        """Take newer weights than the ones that a shard was to be made by, where the run's folder has some; the version that is there now."""
        from posttrain.distributed.versions import load, newest

        found = newest(Path(asked["path"]).parents[1])
        if found is not None and found.digest != self.version and found.number > self.number:
            was, self.version = self.version, ""  # half loaded is none
            try:
                load(self.policy, found.path)
                self.version, self.number = found.digest, found.number
            except FileNotFoundError:  # a newer one has come meanwhile, and this one went: nothing was changed
                self.version = was
        return self.number

    def score(self, asked: dict[str, Any]) -> list[Any]:
        """What one reward says of each answer."""
        from posttrain.rewards.runtime.conventions import Answers

        answers = Answers(asked["prompts"], asked["texts"], lambda: [[] for _ in asked["texts"]])
        found: list[Any] = self.scorer.outcomes(asked["name"], answers)
        return found


def serve(connection: Connection, index: int) -> None:
    """Answer until the run closes the pipe."""
    from posttrain.core.errors import UserError
    from posttrain.distributed.pool import ERROR, MISTAKE, OK

    try:
        worker = Worker(connection.recv_bytes(), index)
    except UserError as error:
        return connection.send_bytes(MISTAKE + str(error).encode())
    except EOFError:
        return None
    except Exception:
        return connection.send_bytes(ERROR + traceback.format_exc().encode())
    connection.send_bytes(OK)
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return None
        connection.send_bytes(worker.reply(message))


def outlived() -> None:
    """End with the run, also in the middle of a shard: nobody would take it."""

    def watch() -> None:
        os.read(0, 1)  # nothing is ever written: this returns when the run is gone
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C, and a cluster that stops the job, are for the run itself
        signal.signal(number, signal.SIG_IGN)
    channel, index, path = sys.argv[1:4]
    sys.path[:] = json.loads(path)
    os.dup2(2, 1)  # what user code prints must not mix with the JSON of a run
    outlived()
    with suppress(BrokenPipeError, ConnectionResetError):  # the run ended before it read the reply
        serve(Connection(int(channel)), int(index))
    os._exit(0)  # threads of a reward that were given up do not hold it


if __name__ == "__main__":
    main()
