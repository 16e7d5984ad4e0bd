"""What `posttrain doctor` says about a run before it starts: which engine, how much memory, how fast."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posttrain.commands.parser import Parser, whole
from posttrain.core.config import Config
from posttrain.core.errors import UserError, nearest
from posttrain.core.sampling import Sampling

GB = 1e9
Row = tuple[str, str, str, str, dict[str, Any]]  # what, told, state, fix, figures
# option -> (default, what it is)
SIZES = {
    "prompts": (Config.prompts, "prompts per step"),
    "prompt-tokens": (128, "tokens per prompt"),
    "micro-tokens": (Config.micro_tokens, "as in posttrain run"),
    "steps": (Config.steps, "steps of the run"),
}


def options(parser: Parser) -> None:
    group = parser.add_argument_group("the planned run")
    group.add_argument(
        "--model",
        default="pocket",
        metavar="MODEL",
        help="pocket, pocket-2, smollm2, a folder, a run or a hub id [pocket]",
    )
    group.add_argument(
        "--method", default="grpo", metavar="METHOD", help="method, which decides what is kept in memory [grpo]"
    )
    group.add_argument(
        "--dtype", default="", metavar="TEXT", help="type of the weights [bfloat16 on a GPU, else float32]"
    )
    group.add_argument("--num-generations", type=whole, metavar="N", help="answers per prompt [the method's own]")
    group.add_argument(
        "--max-tokens",
        type=whole,
        metavar="N",
        help=f"longest answer, in tokens [{Sampling.max_tokens}, or from --context]",
    )
    group.add_argument("--context", type=whole, metavar="N", help="longest prompt and answer together, in tokens")
    group.add_argument(
        "--lora", type=whole, default=0, metavar="N", help="rank of LoRA adapters; 0 trains all weights [0]"
    )
    group.add_argument(
        "--bits", type=whole, default=0, metavar="N", help="4: frozen weights in 4 bits beside the adapters [0]"
    )
    group.add_argument(
        "--critic", default="", metavar="TEXT", help='"shared": the critic is a head on the policy [as the method]'
    )
    group.add_argument(
        "--hardware",
        default="",
        metavar="CARD",
        help="answer for a card that is not here (h100-80gb, rtx4090, l4 ...), or for nodes of 8xh100-80gb",
    )
    for name, (default, told) in SIZES.items():
        group.add_argument(f"--{name}", type=whole, default=default, metavar="N", help=f"{told} [{default}]")


def config_of(model: str, runs: str) -> tuple[dict[str, Any], str]:
    """The config.json of a model, and what the model is called: from the table of well-known ones, a folder, a run, or the hub."""
    from posttrain.policies.load import NAMED, find_folder, read_json
    from posttrain.runs.trained import base_model, find_trained

    if which := find_trained(model, runs):
        model = base_model(which)
    if model not in NAMED and not Path(model).is_dir():
        found: dict[str, Any] = from_table(model) or read_json(from_hub(model))
    else:
        found = read_json(Path(find_folder(model)) / "config.json")
    return found, model


def read_shape(model: str, runs: str = "runs") -> tuple[Any, bool]:
    """(the model's shape, whether our decoder runs it); a model that is not on this disk is an error."""
    from posttrain.models.shape import DecoderConfig

    config, model = config_of(model, runs)
    shape = DecoderConfig.of(config)
    if shape is not None:
        return shape, True
    alike = config | {"model_type": "llama", "hidden_act": "silu", "sliding_window": None, "rope_parameters": {}}
    try:
        return DecoderConfig.of(alike | {"rope_scaling": {}, "partial_rotary_factor": 1.0}), False
    except UserError as error:
        raise UserError(
            f"the config.json of {model} says too little ({error}), so its size is not known; try a small run"
        ) from None


def from_table(model: str) -> dict[str, Any] | None:
    """The dimensions of a well-known model, without a hub."""
    from posttrain.planning.shapes import known_shape

    found = known_shape(model)
    return found[1].as_config() if found else None


def from_hub(model: str) -> Path:
    """The config.json of a hub id, and nothing else of it."""
    from huggingface_hub import hf_hub_download

    from posttrain.core.hub_access import hint
    from posttrain.planning.shapes import KNOWN

    try:
        return Path(hf_hub_download(model, "config.json"))
    except Exception as error:
        told = (
            f"{model} is not on this disk, and its config.json could not be had from the hub ({type(error).__name__})"
        )
        close = nearest(model, KNOWN)
        raise UserError(
            f"{told}; {hint(error)}, or " + (f"did you mean {close}? Else pass a folder" if close else "pass a folder")
        ) from None


def read_work(args: argparse.Namespace, gpu: bool) -> Any:
    """One step of the planned run, with what its method keeps in memory."""
    from posttrain.core.method import find_method
    from posttrain.runs.estimate import Work

    check_sizes(args)
    if args.dtype not in ("", "float32", "bfloat16", "float16"):
        raise UserError(f"dtype is {args.dtype!r}; use float32 or bfloat16")
    if args.bits not in (0, 4) or (args.bits and not args.lora):
        raise UserError(
            f"bits is {args.bits} and lora {args.lora}; --bits 4 packs the weights beside adapters: --lora 16 --bits 4"
        )
    method = find_method(args.method)
    n = args.num_generations or int(method.rollout.defaults().get("n", 1))
    size = 4 if (args.dtype or ("bfloat16" if gpu else "float32")) == "float32" else 2
    return Work(
        args.prompts, n, longest_answer(args), args.prompt_tokens, args.micro_tokens, size, args.lora,
        "ref_logp_BT" in method.reads, critic_kind(args.critic, method), method.epochs, args.bits,
    )  # fmt: skip


def check_sizes(args: argparse.Namespace) -> None:
    for name in (*SIZES, "max-tokens", "context", "num-generations"):
        given = getattr(args, name.replace("-", "_"))
        if given is not None and given < 1:
            raise UserError(f"--{name} is {given}; it must be at least 1")


def longest_answer(args: argparse.Namespace) -> int:
    """--max-tokens, or what a prompt leaves of --context."""
    if args.context is None:
        return int(args.max_tokens or Sampling.max_tokens)
    if args.max_tokens is not None:
        raise UserError("--context and --max-tokens both say how long an answer is; use one of them")
    if args.context <= args.prompt_tokens:
        raise UserError(
            f"--context is {args.context}, and a prompt takes {args.prompt_tokens} of it; use more, or fewer --prompt-tokens"
        )
    return int(args.context - args.prompt_tokens)


def check_context(args: argparse.Namespace, model: str, positions: int) -> None:
    """A context beyond what the model was trained for is an error before anything is planned."""
    wanted = longest_answer(args) + args.prompt_tokens
    if wanted > positions:
        said = "--context is" if args.context is not None else "--max-tokens and --prompt-tokens are"
        raise UserError(
            f"{said} {wanted:,}, and {model} was trained for {positions:,} positions; use --context {positions} or less"
        )


def critic_kind(asked: str, method: Any) -> str:
    """Whether a critic is a network of its own, a head on the policy's, or not there."""
    from posttrain.core.critic import SHARED, has_critic

    if not has_critic(method.reads):
        if asked:
            raise UserError(f"--critic is for a method with a critic (ppo, vapo, oreal), and {method.name} has none")
        return ""
    return SHARED if (asked or method.critic.start) == SHARED else "own"


def forecast(args: argparse.Namespace, available: Callable[[str], float | None]) -> Iterator[Row]:
    """The engine, the memory and the speed of the run; `available`: the free bytes of the device, None if unknown."""
    import torch

    from posttrain.policies.load import usable
    from posttrain.runs.calibrate import calibrate
    from posttrain.runs.cards import card, machine_of
    from posttrain.runs.estimate import estimate

    shape, ours = read_shape(args.model, args.runs)
    check_context(args, args.model, shape.max_positions)
    if args.hardware:
        device, chosen = card(args.hardware)
        yield engine("cuda", ours)
        if not chosen.half and not args.dtype:
            raise UserError(f"{device} has no bfloat16; add --dtype float32")
        work, machine = read_work(args, True), machine_of(chosen)
        free: float | None = machine.free
    else:
        device = usable(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        yield engine(device, ours)
        work, free = read_work(args, device.startswith("cuda")), available(device)
        machine = calibrate(device, free if free is not None else math.inf)
    found = estimate(shape, work, machine)
    figures = asdict(found) | {"free": free, "total": found.total, "step_s": found.step_s, "work": asdict(work)}
    yield "memory of a run", *memory(args.model, work, found), figures
    told = f"about {found.rollout_tokens_s:,.0f} tokens/s of rollouts; a step samples for {brief(found.rollout_s)}"
    told += f" and trains for {brief(found.train_s)}, {args.steps} steps take {brief(found.step_s * args.steps)}"
    told += f", on {device} by its data sheet" if args.hardware else ""
    measured = {"flops": machine.flops, "bytes_s": machine.bytes_s}
    yield "speed of a run", f"{told} if every answer reaches the length limit", "ok", "", measured


def engine(device: str, ours: bool) -> Row:
    if not ours:
        told = f"transformers on {device}: our own decoder does not know this architecture"
        return "engine", told, "note", "Llama, SmolLM, Mistral, Qwen2, 2.5 and 3 run faster", {}
    how = "native: slots, pages and captured graphs" if device.startswith("cuda") else "plain sampling, whole batches"
    return "engine", f"our decoder on {device}; {how}", "ok", "", {"native": device.startswith("cuda")}


def memory(model: str, work: Any, found: Any) -> tuple[str, str, str]:
    """(sentence, state, fix): what takes how many bytes, the largest first, and what to change if it does not fit."""
    parts = sorted(found.memory.items(), key=lambda kv: -kv[1])
    shown = ", ".join(f"{name} {size(b)}" for name, b in parts if b >= 0.02 * found.total)
    told = f"about {size(found.total)} for {model} ({found.parameters / 1e6:,.4g} M parameters): {shown}"
    done = []
    if found.slots < work.answers:
        done.append(f"{found.slots} of {work.answers} answers at a time")
    if found.recomputed:
        done.append(f"{found.recomputed} layers recompute their activations")
    told += f"; {' and '.join(done)}" if done else ""
    if found.fits:
        return told, "ok", ""
    micro = largest_micro(work, found)
    smaller = [f"--micro-tokens {micro}"] if micro else []
    smaller += ["--dtype bfloat16"] if work.size == 4 else []
    smaller += [] if work.lora else ["--lora 16"]
    told += f"; only {size(found.free)} are free"
    return told, "problem", f"use {', '.join([*smaller, 'fewer --max-tokens'])} or a smaller model"


def largest_micro(work: Any, found: Any) -> int:
    """The largest power of two that lets the activations fit, 0 where none does or they are not in the way."""
    room = found.free - found.total + found.memory["activations"]
    most = int(work.micro_tokens * room / max(found.memory["activations"], 1.0)) if room > 0 else 0
    return 1 << most.bit_length() - 1 if work.max_tokens <= most < work.micro_tokens else 0


def size(count: float) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / 1e6:.0f} MB"


def brief(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return (
        f"{seconds:.1f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )
