"""The tiny run in shards and with a lag, to be killed: `python -m tests.distributed.lag_run --serve` forks a run for each line of JSON.

`kill_at=n` makes the process kill itself with SIGKILL at the n-th dangerous moment (tests/runs/tiny_run.py); flushes of the ledger are
among them. With `files` (tests/distributed/small.py) the run has workers, in threads.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from posttrain.core.config import to_dict
from posttrain.core.loop import Loop
from posttrain.core.method import Method
from posttrain.core.protocols import RolloutRequest
from posttrain.distributed.ledger import Ledger
from posttrain.distributed.local import LocalSampler
from posttrain.distributed.sources import Schedule, ShardedSource
from posttrain.runs.build import load_policy
from posttrain.runs.run import Run
from posttrain.train import train
from tests.distributed import small
from tests.runs import tiny_run


def build(run: Any, folder: Path, method: Method | None = None, **changes: Any) -> Loop:
    """The tiny run with a source in shards."""
    loop = tiny_run.build(run, tiny_run.config(**changes), method)
    plain: Any = loop.source
    c, ledger = loop.config, Ledger(folder / "ledger")
    ask = RolloutRequest(plain.policies, (), c.sampling, c.seed, env=loop.env)
    sampler = LocalSampler(plain.rollout, ask, ledger)
    parts = (
        plain.policies,
        loop.env,
        plain.rollout,
        plain.scorer,
        loop.method.prompts.live(),
        (c.sampling, c.prompts, c.seed),
    )
    schedule = Schedule(c.steps, c.shards or 1, c.lag)
    loop.source = ShardedSource(*parts, schedule=schedule, sampler=sampler, ledger=ledger)
    loop.callbacks.append(loop.source)
    return loop


def start(folder: Path, **changes: Any) -> None:
    with Run(folder, to_dict(tiny_run.config(**changes))) as run:
        loop = build(run, folder, **changes)
        train(loop)
        run.finish("train")
        loop._saved()


def serve() -> None:
    import torch._dynamo  # noqa: F401 - once here, not in every child

    for line in sys.stdin:
        request = json.loads(line)
        if request.get("files"):
            load_policy(
                small.settings(Path(request["files"]))
            )  # and with it transformers: once here, not in every child
        child = os.fork()
        if child == 0:
            try:
                tiny_run.dangerous(request.get("kill_at", 0))
                folder = Path(request["folder"])
                if request.get("files"):
                    small.inside()
                    small.start(Path(request["files"]), folder, **request["settings"])
                else:
                    start(folder, **request["settings"])
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve()
