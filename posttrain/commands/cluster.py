"""What `posttrain doctor` says about a run on several GPUs: which layouts fit, seconds per step, the command to type."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.commands.forecast import (
    Row,
    check_context,
    check_sizes,
    config_of,
    critic_kind,
    longest_answer,
)
from posttrain.commands.parser import Parser, number, whole
from posttrain.core.errors import UserError

if TYPE_CHECKING:
    from posttrain.planning.layouts import Plan, Site
    from posttrain.planning.lengths import Lengths
    from posttrain.planning.shapes import Shape
    from posttrain.planning.work import Work

# options that mean something for several cards alone -> default
OWN = {"nodes": None, "mean_tokens": None, "lengths": "", "reward_model": "", "reward_seconds": 0.0, "reward_workers": 0,
       "price": 0.0, "context_parallel": 1}  # fmt: skip
MOST = 1_000_000  # answers per step: each has a length of its own in the simulation
LARGEST = 2**16  # rank of adapters, as in `posttrain run`
SERVERS = "vLLM servers have it, at their own speed: --engine http://HOST:8000"
MEAN = 4  # the longest answer is so many times the average one, where nothing is said


def options(parser: Parser) -> None:
    group = parser.add_argument_group("on several cards (--hardware 8xh100-80gb)")
    group.add_argument("--nodes", type=whole, metavar="N", help="nodes of that many cards [1]")
    group.add_argument(
        "--mean-tokens", type=whole, metavar="N", help="tokens of an average answer [a quarter of the longest]"
    )
    group.add_argument("--lengths", default="", metavar="RUN", help="take the lengths of answers from this run")
    group.add_argument("--reward-model", default="", metavar="MODEL", help="a reward model beside the sampler")
    group.add_argument(
        "--reward-seconds", type=number, default=0.0, metavar="S", help="seconds per answer of a slow reward [0]"
    )
    group.add_argument("--reward-workers", type=whole, default=0, metavar="N", help="processes that score [0: one]")
    group.add_argument(
        "--context-parallel", type=whole, default=1, metavar="N", help="cards that share the tokens of a row [1]"
    )
    group.add_argument("--price", type=number, default=0.0, metavar="X", help="price of a GPU-hour, for the cost [0]")


def asked(args: argparse.Namespace) -> bool:
    """Whether this is about several cards; options for them without them are an error."""
    from posttrain.planning.hardware import is_cluster

    if args.hardware and is_cluster(args.hardware, args.nodes):
        return True
    for name, default in OWN.items():
        if getattr(args, name) != default:
            raise UserError(
                f"--{name.replace('_', '-')} is for a plan on several cards; say which with --hardware 8xh100-80gb"
            )
    return False


def read_shape(model: str, runs: str) -> Shape:
    """From the table of well-known models, a folder, a run, or the hub."""
    from posttrain.planning.shapes import shape_of

    return shape_of(*config_of(model, runs))


def read_lengths(args: argparse.Namespace) -> Lengths:
    from posttrain.planning.lengths import Lengths, lengths_of_run

    most = longest_answer(args)
    if args.lengths and args.mean_tokens is not None:
        raise UserError("--lengths and --mean-tokens both say how long answers are; use one of them")
    if args.lengths:
        folder = Path(args.lengths)
        return lengths_of_run(folder if folder.is_dir() else Path(args.runs) / args.lengths, most)
    mean = args.mean_tokens if args.mean_tokens is not None else max(1, most // MEAN)
    if not 1 <= mean <= most:
        raise UserError(f"--mean-tokens is {mean}; the average of answers of at most {most} tokens is from 1 to {most}")
    return Lengths(mean, most)


def read_work(args: argparse.Namespace) -> Work:
    """One step of the planned run."""
    from posttrain.core.method import find_method
    from posttrain.planning.work import Work

    if args.bits:
        raise UserError(
            "weights of 4 bits are not sharded; plan for one card, such as --hardware h100-80gb, or leave out --bits"
        )
    if args.dtype not in ("", "bfloat16"):
        raise UserError(f"--dtype is {args.dtype}; sharded training computes in bfloat16 with float32 shards")
    for name in ("reward_seconds", "reward_workers", "price", "lora"):
        if (given := getattr(args, name)) < 0:
            raise UserError(f"--{name.replace('_', '-')} is {given}; it must be 0 or more")
    method = find_method(args.method)
    if method.rollout.card.data:
        raise UserError(
            f"{method.name} samples no answers, and layouts are planned for methods that do, such as --method grpo"
        )
    n = args.num_generations or int(method.rollout.defaults().get("n", 1))
    if args.prompts * n > MOST:
        raise UserError(
            f"{args.prompts:,} prompts x {n:,} answers are {args.prompts * n:,} per step; at most {MOST:,} are planned for"
        )
    if args.lora > LARGEST:
        raise UserError(f"--lora is {args.lora}; a rank is at most {LARGEST:,}")
    reward = read_shape(args.reward_model, args.runs) if args.reward_model else None
    return Work(
        args.prompts, n, read_lengths(args), args.prompt_tokens, args.micro_tokens, method.epochs, "ref_logp_BT" in method.reads,
        critic_kind(args.critic, method), args.lora, reward, args.reward_seconds, divided=args.context_parallel,
    )  # fmt: skip


def plan(args: argparse.Namespace) -> Iterator[Row]:
    """Every layout, then the best one in detail."""
    from posttrain.planning import report
    from posttrain.planning.hardware import cluster
    from posttrain.planning.layouts import Site, choose, what_would_fit

    check_sizes(args)
    where = cluster(args.hardware, args.nodes)
    shape = read_shape(args.model, args.runs)
    check_context(args, args.model, shape.positions)
    work = read_work(args)
    if work.divided < 1 or where.cards % work.divided:
        raise UserError(
            f"--context-parallel is {work.divided}; it must divide the number of cards, which is {where.cards}"
        )
    site = Site(shape, work, where, reward_workers=args.reward_workers)
    yield "plan", about(args.model, site), "ok", "", {}
    plans = list(site.plans())
    for one in plans:
        told = report.timed(one) if one.outcome else report.too_much(one)
        yield one.name, told, "ok" if one.fits else "note", "", figures(one)
    best = choose(plans)
    if best is None:
        would = what_would_fit(site)
        fix = f"{' or '.join(would)} would fit" if would else "use a smaller model, or cards with more memory"
        for role, m in plans[-1].memory.items():
            yield "memory per card", report.memory(role, m), "note", "", {}
        yield "verdict", f"{args.model} fits in no layout on {cards(site)}", "problem", fix, {}
        return
    yield from details(best, site, args)
    if (wide := plans[-1]).layout.tp > best.layout.tp and wide.outcome:
        told = f"{wide.name} would be {wide.rate / best.rate:.1f} times as fast, by tensor parallel, which posttrain's own engine has not"
        yield "engine", told, "note", f"that layout is planned only; {SERVERS}", {}


def details(best: Plan, site: Site, args: argparse.Namespace) -> Iterator[Row]:
    """Memory, stages, bottleneck, failures, cost and command of one plan."""
    from posttrain.commands import run
    from posttrain.planning import report, words

    yield "best", best.name, "ok", "", figures(best)
    for role, m in best.memory.items():
        yield "memory per card", report.memory(role, m), "ok", "", {"parts": m.parts, "free": m.free}
    yield "time per step", report.by_stage(best), "ok", "", report.stage_seconds(best)
    told, fix = report.bottleneck(best, site)
    yield "bottleneck", told, "note" if fix else "ok", fix, {}
    yield "failures", report.failures(best, site), "ok", "", {}
    yield "cost", report.cost(best, args.steps, args.price), "ok", "", {}
    if best.layout.tp > 1:
        told = f"{args.model} does not fit on one card, so rollouts need an engine with tensor parallel, which posttrain's own has not"
        yield "engine", told, "note", f"this layout is planned only; {SERVERS}", {}
    typed = words.command(best, site.work, site.cluster, args.model, args.method)
    parser = Parser("posttrain run", "", "")
    run.options(parser)
    missing = words.not_yet(typed, parser.names())
    fix = f"this version has no {', '.join(missing)} yet: it runs on one card" if missing else ""
    yield "command", typed, "note" if missing else "ok", fix, {"command": typed}


def about(model: str, site: Site) -> str:
    work = site.work
    told = f"{model} ({site.shape.parameters / 1e9:.3g} B parameters) on {cards(site)}; "
    told += f"{work.prompts:,} prompts x {work.n} answers per step, {work.lengths}"
    return told + "; simulated, with speeds measured on one H200 and links by their data sheets"


def cards(site: Site) -> str:
    c = site.cluster
    nodes = f"{c.nodes} nodes of " if c.nodes > 1 else ""
    return f"{nodes}{c.per_node} x {c.device.name} ({c.device.memory / 1e9:.0f} GB usable each)"


def figures(one: Plan) -> dict[str, Any]:
    """The numbers of a layout, for --json."""
    if not one.outcome:
        return {"fits": False, "bytes": {role: m.total for role, m in one.memory.items()}}
    o = one.outcome
    return {
        "fits": True, "cards": o.cards, "trainers": one.layout.trainers, "workers": one.layout.workers, "tp": one.layout.tp,
        "lag": one.layout.lag, "shards": one.layout.shards, "slots": one.slots, "step_s": o.step, "p50_s": o.quantile(0.5),
        "p95_s": o.quantile(0.95), "idle": o.idle, "tokens_s_card": one.rate, "publish_s": one.stages.publish if one.stages else math.nan,
        "staleness": dict(o.stale), "bytes": {role: m.total for role, m in one.memory.items()},
    }  # fmt: skip
