"""`--engine`: who samples for a policy in this process, if not the engine that comes with posttrain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.core.config import Config
from posttrain.core.errors import UserError, unknown
from posttrain.core.ranks import ranks
from posttrain.core.registry import parse
from posttrain.policies.vllm.in_process import LocalEngine, installed
from posttrain.policies.vllm.over_http import ServerEngine
from posttrain.policies.vllm.server import Server
from posttrain.rewards.runtime.score import say_once

FOLDER = "engine"


def addresses(spec: str) -> list[str]:
    """The servers that are named; empty where it is no address."""
    words = [word.strip() for word in spec.split(",")]
    return words if words[0].startswith(("http://", "https://")) else []


def check(config: Config) -> None:
    """An engine that can be had, before anything is loaded."""
    spec = config.engine
    if not spec:
        return
    if urls := addresses(spec):
        for url in urls:
            Server(url)
        count = config.rollout_workers if config.sampler != "local" else 1
        if len(urls) != count:
            raise UserError(
                f"--engine names {len(urls)} server{'s' * (len(urls) != 1)}, and {count} process{'es' * (count != 1)} sample{'s' * (count == 1)}, each "
                "with weights of its own version: give one address for each, with commas between them"
            )
    elif (word := parse(spec)[0]) == "vllm":
        installed()
    elif ":" in word:
        raise UserError(f"--engine {spec}: write an address like http://host:8000")
    else:
        raise unknown("engine", word, ["vllm", "http://host:8000"])
    if config.sampler == "local" and hasattr(ranks(), "gather_saving"):
        raise UserError(
            f"--engine {spec}: the processes that train here sample with posttrain's own engine; let workers sample with yours: add "
            "--sampler process"
        )


def engine_for(policy: Any, config: Config, folder: Path, index: int = 0) -> Any:
    """The engine of the settings for this policy; index: which of several workers this is."""
    if not hasattr(policy, "outside"):
        raise UserError(
            f"--engine {config.engine} samples from language models, and this is a {type(policy).__name__}; leave it away"
        )
    say_once(
        f"--engine {config.engine}: an answer of vLLM depends on what is sampled beside it, so this run cannot be repeated to the bit; its "
        "tokens, their log-probabilities and versions of the weights are recorded as sampled"
    )
    place = folder.absolute() / FOLDER / str(index)
    if urls := addresses(config.engine):
        return ServerEngine(Server(urls[index % len(urls)], config.rollout_timeout), policy, place)
    return LocalEngine(policy, place, config.sampling, parse(config.engine)[1])


@contextmanager
def sampling_engine(policy: Any, config: Config, folder: Path) -> Iterator[None]:
    """While a run lasts its policy samples by the engine of the settings; workers have their own."""
    if not config.engine or config.sampler != "local":
        yield
        return
    engine = engine_for(policy, config, folder)
    policy.outside = engine
    try:
        yield
    finally:
        policy.outside = None
        engine.close()
