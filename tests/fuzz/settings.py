"""Settings, methods and parameters of parts as strangers type them: accepted only where they can work."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
from typing import Any

from posttrain.cli import command_parser
from posttrain.commands.parser import given, parse, take
from posttrain.commands.run import part_changes
from posttrain.core.config import Config, from_dict, to_dict
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.registry import parts
from posttrain.core.sampling import Sampling
from posttrain.core.typed import parameter_hints
from posttrain.rewards.scorers.spec import summands
from tests.fuzz.judge import NUMBERS, TEXTS, tried, value


def fuzz_settings(seed: int, tries: int) -> list[str]:
    """Failures among `tries` sets of settings."""
    failures = []
    for i in range(tries):
        rng = random.Random(f"settings/{seed}/{i}")
        told: list[Any] = []
        problem = tried(lambda rng=rng, told=told: rng.choice(KINDS)(rng, told))  # type: ignore[misc]
        if problem:
            failures.append(f"settings, seed {seed} try {i}: {problem}; given {str(told)[:300]}")
    return failures


def config(rng: random.Random, told: list[Any]) -> None:
    """Config from values, as a file or Python gives them."""
    names = [f.name for f in dataclasses.fields(Config)]
    values = {rng.choice(names): value(rng) for _ in range(rng.randint(1, 3))}
    if rng.random() < 0.4:
        values["sampling"] = {rng.choice([f.name for f in dataclasses.fields(Sampling)]): value(rng)}
    told.append(values)
    sensible(from_dict(Config, values))


def options(rng: random.Random, told: list[Any]) -> None:
    """The words of `posttrain run`, up to where training would begin."""
    parser = command_parser("run")
    words = [rng.choice(("grpo", "dpo", "sft", "grpo(epochs=2)", f"grpo({rng.choice(TEXTS)})", rng.choice(TEXTS)))]
    names = [name for name in parser.names() if name != "--help"]  # answered before anything is parsed
    for _ in range(rng.randint(1, 3)):
        words += [rng.choice(names), str(rng.choice((*TEXTS, *NUMBERS[:10], *NUMBERS[11:])))]
    told.append(words)
    args = parse(parser, take(words, "--plan.")[1])
    accepted(args)


def accepted(args: argparse.Namespace) -> None:
    made = from_dict(Config, given(args))
    sensible(made)
    find_method(args.target).but(**part_changes(args))
    if made.reward:
        assert all(math.isfinite(weight) for weight, _ in summands(made.reward))


def parameters(rng: random.Random, told: list[Any]) -> None:
    """A part with other parameters, as text or as objects."""
    part = rng.choice(parts())
    known = list(part.defaults())
    names = [rng.choice(known) if known and rng.random() < 0.9 else rng.choice(TEXTS)]
    chosen = {n: value(rng) for n in names}
    told.append((part.name, chosen))
    made = part.but(**chosen)
    hints = parameter_hints(part.fn)
    for name, x in made.params.items():
        if hints[name] is not Any:  # a live object, which the part itself looks at
            finite(x)
    hash(str(made))


def finite(x: Any) -> None:
    """No number that is infinite or NaN anywhere inside."""
    if isinstance(x, float):
        assert math.isfinite(x), f"{x} was accepted"
    for inner in x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ():
        finite(inner)


def sensible(made: Config) -> None:
    """Whatever is accepted can be stored, read back, and does not train backwards."""
    finite(to_dict(made))
    assert from_dict(Config, json.loads(json.dumps(to_dict(made)))) == made, "does not survive JSON"
    assert made.warmup >= 0 and made.max_norm > 0 and (made.lr is None or made.lr > 0) and made.reward_timeout > 0
    assert made.sampling.temperature >= 0 and made.sampling.max_tokens >= 1 and made.steps >= 0
    json.dumps(to_dict(made)).encode()


KINDS = (config, options, parameters)
__all__ = ["UserError", "fuzz_settings"]
