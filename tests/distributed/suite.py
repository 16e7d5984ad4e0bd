"""What the tests of several processes run in each of them; results go to files of a folder.

`python -m tests.distributed.suite` forks them off one process for each request on its standard input: importing torch takes longer than all
that they do.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import posttrain
from posttrain.core import laws
from posttrain.core.batch import Batch
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.example_heads import HEADS
from posttrain.core.method import Method, find_method
from posttrain.core.ranks import Ranks
from posttrain.core.registry import LOSSES, Part
from posttrain.distributed.group import joined
from posttrain.losses.aggregate import UNITS, pair_mean
from posttrain.losses.objective import PAIRED
from posttrain.losses.regularisers.kl import kl
from posttrain.losses.supervised.sft import sft
from posttrain.models import rows as rows_module
from posttrain.models.rows import gather_into, local, own_rows, whole
from posttrain.policies.peft_folder import adapted
from posttrain.systems.policy_gradient.prorl import stalled
from posttrain.systems.supervised_from_reward.superhf import forward_kl
from posttrain.weights.learner import Learner
from posttrain.weights.parallel import ExactSums, Local
from posttrain.weights.reference import ema, reset
from posttrain.weights.sharded import Sharded
from tests.distributed import small
from tests.losses.test_partition import joined as joined_batches
from tests.models import tiny
from tests.package import package_parts

READ = {"dist_BTV", "score_B", "scores_BK"}  # not of this little model
LARGE = {"mixed_logp_BT", "hidden_BTD"}  # more than a number an action: rows are not divided where these are read
PARTS = [p for p in package_parts(*LOSSES, "term") if not READ & set(p.card.reads)]
WHOLE = [a for a in package_parts("aggregate") if a not in UNITS.values()]
CASES = [  # every loss and term once, every aggregation with each kind
    (part, pair_mean if part.card.stage in PAIRED else WHOLE[i % len(WHOLE)]) for i, part in enumerate(PARTS)
] + [(part, a) for part in PARTS[:1] for a in WHOLE]  # fmt: skip


class Still(Learner):
    """A learner that keeps its gradients and does not move."""

    def _step(self, step: int) -> dict[str, float]:
        self.found = {name: None if p.grad is None else p.grad.clone() for name, p in self.named_parameters()}
        return {}


def learner(parallel: Local, wide: bool = False) -> Still:
    """Of a tiny decoder with a critic; rows are padded, so that the numbers of a pass are the same however it is divided.

    24 tokens make 5 pieces of single rows and 6 of pairs: neither 2 nor 3 processes get equally many of the 5.
    """
    torch.manual_seed(0)
    policy = tiny.policy(tiny.decoder().double() if wide else None)
    policy.layout = "padded"
    return Still(policy, find_method("ppo"), micro_tokens=24, parallel=parallel)


def taught(one: Still, part: Part, aggregate: Part) -> dict[str, Tensor | None]:
    """The gradient of one loss, or of one term beside SFT."""
    length = aggregate.but(length=6) if aggregate.name == "constant" else aggregate
    loss, terms = (sft, (part,)) if part.card.stage == "term" else (part, ())
    one.goal = dataclasses.replace(one.goal, loss=loss, terms=terms, aggregate=length)
    rows, batch = batch_of(part.card.stage in PAIRED)
    one._first_pass = False
    one._one(rows, batch, torch.arange(len(rows)), 0)
    return one.found


@cache
def batch_of(paired: bool) -> tuple[list[Any], Batch]:
    """24 rows of tokens and everything that a loss may read of them, near the model's own numbers."""
    batch = joined_batches([laws.example(seed) for seed in range(3)])
    rows = tiny.rows([(3 + i % 2, int(n)) for i, n in enumerate(batch["length_B"])])
    with torch.no_grad():
        logp_BT = tiny.policy().forward(rows)["logp_BT"]
    draw = torch.Generator().manual_seed(0)
    near = {n: logp_BT + 0.2 * torch.randn(logp_BT.shape, generator=draw) for n in ("old_logp_BT", "ref_logp_BT")}
    plain = {n: batch[n].float() for n in (*laws.STREAMS, *HEADS, "mask_BT", "reward_BT") if n in batch}
    alone = {} if paired else {"chosen_P": None, "rejected_P": None, "ranked_LK": None}  # pairs are not cut apart
    return rows, batch.but(**(plain | near | alone))


def gradients(here: Ranks) -> dict[str, Any]:
    """By case, how far the gradient of all processes is from that of one, in its largest entry."""
    alone, exact, sharded = (learner(p) for p in (Local(), ExactSums(here), Sharded(here)))
    rows = {n: bool(p.rows) for n, p in sharded.named_parameters()}  # type: ignore[attr-defined]
    out: dict[str, Any] = {}
    for part, aggregate in CASES[:: {1: 7, 2: 1, 3: 3}[here.world]]:  # all of them on two
        want = taught(alone, part, aggregate)
        found = taught(exact, part, aggregate), taught(sharded, part, aggregate)
        largest = max(float(g.abs().max()) for g in want.values() if g is not None)
        off = {"largest": largest, "exact": 0.0, "sharded": 0.0}
        for key, g in want.items():
            whole = torch.zeros(1) if g is None else g
            mine = own_rows(whole, here.rank, here.world) if rows[key] and g is not None else whole
            off["exact"] = max(off["exact"], _off(found[0][key], whole, largest))
            off["sharded"] = max(off["sharded"], _off(found[1][key], mine, largest))
        out[f"{part.name}-{aggregate.name}"] = off
    return out


def divided(here: Ranks, size: int) -> dict[str, Any]:
    """By case, how far the gradient is from that of one process where rows are divided, in float32 and in float64. In the first the rounding of two
    layouts shows, in the second what is computed."""
    out: dict[str, Any] = {}
    for wide in (False, True):
        with computing_in_float64() if wide else nullcontext():
            alone, shared = learner(Local(), wide), learner(Sharded(here, size), wide)
            rows = {n: bool(p.rows) for n, p in shared.named_parameters()}  # type: ignore[attr-defined]
            known = [(part, a) for part, a in CASES if not set(part.card.reads) & LARGE]
            for part, aggregate in known[:: 1 if here.world == 2 and wide else 3]:
                want, found = taught(alone, part, aggregate), taught(shared, part, aggregate)
                largest = max(float(g.abs().max()) for g in want.values() if g is not None)
                off = 0.0
                for key, g in want.items():
                    whole = torch.zeros(1) if g is None else g
                    mine = own_rows(whole, here.rank, here.world) if rows[key] and g is not None else whole
                    off = max(off, _off(found[key], mine, largest))
                out[f"{part.name}-{aggregate.name}-{64 if wide else 32}"] = {"largest": largest, "off": off}
    return out


def copies(here: Ranks) -> None:
    """A whole copy, in half precision and not, is what torch gathers one weight at a time, however many messages it comes in."""
    one = learner(Sharded(here))
    rows = dict(one.policy.model.named_parameters())
    with torch.no_grad():
        for x in rows.values():
            local(x).normal_()
    assert here.world == 2 or any(len(x) % here.world for x in rows.values()), "some weights have no equal shares"
    for most in (1, 1000, 1 << 26):
        rows_module._BUCKET = most
        for dtype in (torch.bfloat16, torch.float32):
            made = [torch.full(x.shape, torch.nan, dtype=dtype) for x in rows.values()]
            gather_into(made, list(rows.values()))
            assert all(torch.equal(a, whole(x).to(dtype)) for a, x in zip(made, rows.values(), strict=True)), (
                most,
                dtype,
            )
    print(len(rows), "copied")


@contextmanager
def computing_in_float64() -> Iterator[None]:
    """What is computed in float32 whatever the weights are is computed in float64, except for FSDP's own sums."""
    before = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.float = before  # type: ignore[method-assign]


def _off(got: Tensor | None, want: Tensor, largest: float) -> float:
    if not want.numel():
        return 0.0
    gap = want if got is None else got - want
    return float(gap.nan_to_num(nan=torch.inf).abs().max()) / largest


ROWS = [{"question": word, "answer": str(i % 3)} for i, word in enumerate("abcdefghijkl")]
PAIRS = [
    {"prompt": a, "chosen": a + b, "rejected": b + b}
    for a, b in zip("abcdefghijklmnop", "ponmlkjihgfedcba", strict=True)
]
SETTINGS: dict[str, Any] = {
    "task": ROWS, "prompts": 6, "num_generations": 3, "eval_problems": 4, "save_every": 1, "lr": 1e-2, "warmup": 0, "schedule": "constant",
    "sampling": {"max_tokens": 6}, "micro_tokens": 24, "device": "cpu", "threads": 1, "eval_every": 2,
}  # fmt: skip


BARE: dict[str, Any] = {"eval_problems": 0, "eval_every": 0}


def worth(question: str, answer: str) -> float:
    return sum(c in "abc" for c in answer) / max(len(answer), 1)


def noted(file: Any, question: str, answer: str) -> float:
    """The same, with a note of who was asked; the second process's word on one question fails."""
    asked = str(getattr(question, "content", question))
    file.write(f"{asked}|{answer}\n")
    if os.environ["RANK"] == "1" and "'b'" in asked:
        raise ValueError("no idea")
    return worth(question, answer)


def run(folder: str, name: str, method: str | Method, **more: Any) -> None:
    torch.manual_seed(0)
    settings = {"model": tiny.policy(), "reward": worth} | SETTINGS | more
    posttrain.run(method=method, name=name, runs=folder, **{k: v for k, v in settings.items() if v is not None})


def half(folder: str, name: str, steps: int, **more: Any) -> None:
    """A run in half precision."""
    run(folder, name, "ppo", steps=steps, model=tiny.policy(tiny.decoder().bfloat16()), **more)


def long_runs(folder: str, **more: Any) -> None:
    """Methods with a reference and a critic, with adapters, with pairs, with a score for each answer."""
    ppo = find_method("ppo")
    near = ppo.but(terms=(*ppo.terms, kl.but(coef=0.5)))
    run(folder, "ppo", near, steps=3, **more)
    run(folder, "lora", "grpo", steps=2, model=adapted(tiny.policy(), Config(lora=4)), **more)
    pairs: dict[str, Any] = {"task": PAIRS, "reward": None, "num_generations": None, "sampling": None}
    for method in ("dpo", "reward-model"):
        run(folder, method, method, steps=2, **pairs, **more)


def kill_at(update: int, rank: int) -> None:
    """This process kills itself at that update, if it is the one."""
    step, done = Learner._step, [0]

    def counted(self: Learner, at: int) -> dict[str, float]:
        done[0] += 1
        if done[0] == update and int(os.environ["RANK"]) == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, at)

    Learner._step = counted  # type: ignore[method-assign]


def serve() -> None:
    """Fork the processes of each request (a line of JSON) off this one, which has imported torch once; a line with their exit codes."""
    import torch._dynamo  # noqa: F401 - FSDP imports it at its first parameter: once here, not in every child

    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        children = [fork(asked, rank) for rank in range(asked["world"])]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


def fork(asked: dict[str, Any], rank: int) -> int:
    """One process; what it prints goes to a file."""
    child = os.fork()
    if child:
        return child
    out = os.open(Path(asked["folder"], f"rank-{rank}.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    signal.alarm(400)  # nothing hangs for ever
    os.environ.update(asked["env"] | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    code = 1
    try:
        main(asked["folder"], *asked["todo"])
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(folder: str, *todo: str) -> None:
    for what in todo:
        if what == "gradients":
            with joined("cpu") as here:
                found = here.gather(gradients(here))
                if here.lead:
                    Path(folder, "gradients.json").write_text(json.dumps(found))
        elif what == "copies":
            with joined("cpu") as here:
                copies(here)
        elif what.startswith("divided-"):
            with joined("cpu") as here:
                found = here.gather(divided(here, int(what[8:])))
                if here.lead:
                    Path(folder, f"{what}.json").write_text(json.dumps(found))
        elif what == "context":
            long_runs(folder, context_parallel=2)
            half(folder, "half", 2, context_parallel=2)
        elif what == "context-refused":
            for size, more in (
                (3, {}),
                (2, {"exact_sums": True}),
                (2, {"method": find_method("grpo").but(terms=(forward_kl,))}),
            ):
                try:
                    run(folder, "refused", **({"method": "grpo"} | more), steps=1, context_parallel=size)
                except UserError as error:
                    print(error)
        elif what == "runs":
            for method in ("grpo", "ppo"):
                run(folder, f"exact-{method}", method, steps=3, exact_sums=True)
            run(folder, "fsdp", "grpo", steps=3)
        elif what == "lora":
            run(folder, "lora", "ppo", steps=2, model=adapted(tiny.policy(), Config(lora=4)))
        elif what == "pairs":
            for method in ("dpo", "reward-model"):
                for exact in (False, True):
                    run(
                        folder,
                        f"{method}-{exact}",
                        method,
                        steps=2,
                        task=PAIRS,
                        reward=None,
                        num_generations=None,
                        sampling=None,
                        exact_sums=exact,
                    )
        elif what == "half":
            half(folder, "half", 3)
        elif what == "references":
            for name, rule in (
                ("ema", ema.but(decay=0.2)),
                ("reset", reset.but(every=1)),
                ("stalled", stalled.but(patience=1)),
            ):
                for exact in (False, True):
                    near = find_method("grpo").but(terms=(kl.but(coef=0.5),), reference=rule)
                    run(folder, f"{name}-{exact}", near, steps=3, eval_every=1, lr=1e-4, exact_sums=exact)
        elif what == "lag":
            run(folder, "lag-exact", "grpo", steps=3, lag=1, exact_sums=True, **BARE)
            run(folder, "lag-rows", "grpo", steps=3, lag=1, **BARE)
        elif what == "lag-killed":
            kill_at(2, rank=1)
            run(folder, "lag-killed", "grpo", steps=3, lag=1, **BARE)
        elif what == "lag-rest":
            run(folder, "lag-killed", "grpo", steps=3, lag=1, **BARE)
        elif what == "shares":
            with open(Path(folder, f"asked-{os.environ['RANK']}.txt"), "w") as file:
                run(folder, "shares", "grpo", steps=2, reward=partial(noted, file), **BARE)
        elif what == "few":
            run(folder, "few", "grpo", steps=3, prompts=1)
        elif what == "led":
            for name, more in (("led-exact", {"exact_sums": True}), ("led-rows", {})):
                small.start(
                    Path(folder), Path(folder), name=name, sampler="process", lag=1, steps=3, device="cpu", **more
                )
        elif (
            what == "looked-at"
        ):  # a monitor goes through the model after the update of step 2, and no checkpoint is due
            small.start(
                Path(folder),
                Path(folder),
                name=what,
                warmup=0,
                steps=5,
                save_every=10,
                eval_problems=0,
                device="cpu",
                sampler="process",
            )
        elif what == "killed":
            kill_at(3, rank=1)
            run(folder, "killed", "grpo", steps=3)
        elif what == "rest":
            run(folder, "killed", "grpo", steps=3)
            run(folder, "fsdp", "grpo", steps=4)
            half(folder, "half", 4)
            half(folder, "half-alone", 4)
        elif what == "hang":
            with joined("cpu") as here:
                over = Path(folder, "over")
                if here.lead:
                    try:
                        here.meet("the first step")
                    finally:
                        over.touch()
                while not over.exists():
                    time.sleep(0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve()
