"""What cannot work when a run samples or scores in other processes, in a sentence, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.ranks import ranks
from posttrain.core.registry import find
from posttrain.distributed.direct import FILES
from posttrain.environments.conversions import KINDS
from posttrain.policies.vllm import choose as engines

_CORRECTED = "--loss tis, --loss decoupled_ppo or --loss ppo"


def in_shards(config: Config) -> bool:
    """Whether a run is more than one call of the rollout part per step in this process."""
    return config.sampler != "local" or config.lag > 0 or (config.shards > 1 and ranks().shards == 1)


def refuse(config: Config, method: Method, given: Mapping[str, Any]) -> None:
    """One sentence for settings that cannot work, before anything is loaded."""
    _options(config)
    _divided(config, method)
    _engine(config, method, given)
    if config.reward_workers and ("scorer" in given or "env" in given):
        what = "reward" if "scorer" in given else "task"
        raise UserError(
            f"reward workers build the reward from settings, and this run was given a {what} as an object of Python; name it "
            f"({what}='FILE.py:NAME'), or leave reward_workers away"
        )
    if not in_shards(config):
        return
    if kind := method.rollout.card.data:
        raise UserError(
            f"{method.name} learns from {kind} that are there already, so nobody samples; leave --sampler and --lag away"
        )
    if "source" in given:
        raise UserError(
            "a source of its own was given for this run, which says where rollouts come from; leave --sampler and --lag away"
        )
    if config.lag or config.max_staleness:
        _off_policy(config, method)
    if config.sampler != "local":
        _elsewhere(config, method, given)


def _options(config: Config) -> None:
    """Options that mean nothing without another."""
    if config.sampler == "local" and config.rollout_workers > 1:
        raise UserError(f"--rollout-workers {config.rollout_workers} needs --sampler process, or ray")
    if config.max_staleness and config.sampler == "local":
        raise UserError("--max-staleness is of workers that sample while this process trains; add --sampler process")
    if config.max_staleness and config.lag:
        raise UserError("--lag is a fixed age of the weights, and --max-staleness the most; use one of the two")
    if config.weights_over != FILES:
        _memory(config)
    if config.ray_address and config.sampler != "ray":
        raise UserError(f"--ray-address {config.ray_address} needs --sampler ray")


def _memory(config: Config) -> None:
    """Weights from memory to memory, where that can work."""
    way, gpus = config.weights_over, 0 if config.device == "cpu" else torch.cuda.device_count()
    if config.sampler == "local":
        why = "this process samples itself; add --sampler process, or ray"
    elif way == "gloo" and gpus:
        why = "it is for CPUs; use nccl or ipc, or add --device cpu"
    elif way != "gloo" and not gpus:
        why = "there is no GPU here; use gloo"
    elif way == "ipc" and config.sampler == "ray":
        why = "only processes of one machine can open its memory; use nccl, or --sampler process"
    elif way == "nccl" and config.sampler == "process" and (gpus < 2 or config.device):  # a named device is everybody's
        why = "it is for cards of their own, and trainer and workers share one here; use ipc"
    else:
        return
    raise UserError(f"--weights-over {way} sends weights from memory to memory, and {why}")


_LARGE = (
    "dist_BTV",
    "hidden_BTD",
    "mixed_logp_BT",
    "scores_BK",
    "topk_id_BTK",
)  # streams that rows cannot be divided with


def _divided(config: Config, method: Method) -> None:
    """Whether rows can be divided among processes."""
    size, here = config.context_parallel, ranks()
    if size == 1:
        return
    if config.exact_sums:
        why = "exact sums are of whole rows; leave one of both away"
    elif not hasattr(here, "gather_saving"):
        why = f"there is one; add --gpus {size}"
    elif here.world % size:
        why = f"{size} do not divide the {here.world} that there are; use a number that does"
    elif large := sorted(name for name in method.reads if name.removeprefix("ref_") in _LARGE):
        why = (
            f"{method.name} reads {large[0]}, more than a number for each action, which is not gathered; leave it away"
        )
    else:
        return
    raise UserError(f"--context-parallel {size} divides rows among processes, and {why}")


def _engine(config: Config, method: Method, given: Mapping[str, Any]) -> None:
    if not config.engine:
        return
    engines.check(config)
    if method.scores or method.rollout.card.data in KINDS:
        raise UserError(
            f"{method.name} samples no answers, so there is nothing for --engine {config.engine} to do; leave it away"
        )
    if given.get("others"):
        raise UserError(
            f"several policies play here, and --engine {config.engine} has the weights of one; leave it away"
        )


def _off_policy(config: Config, method: Method) -> None:
    told = f"--lag {config.lag}" if config.lag else f"--max-staleness {config.max_staleness}"
    for goal in method.objectives:
        if goal.loss.card.stage == "policy_loss" and "old_logp_BT" not in goal.loss.card.reads:
            raise UserError(
                f"with {told} answers come from older weights, and {goal.loss.name} has no ratio to the weights that sampled them; use a "
                f"loss that corrects for it ({_CORRECTED}), or leave it away"
            )
    if method.rounds > 1:
        raise UserError(
            f"{method.name} asks more prompts when it has seen the answers of a step, and with {told} the weights that made them are "
            "gone by then; add --rounds 1, or leave it away"
        )


def _elsewhere(config: Config, method: Method, given: Mapping[str, Any]) -> None:
    """Workers build the policy, the task and the rollout from settings."""
    if "policy" in given:
        raise UserError(
            "workers load the model by its name, and this run was given one as an object of Python; use --sampler local"
        )
    if given.get("others"):
        raise UserError(
            f"several policies play here ({', '.join(given['others'])}), and workers have one; use --sampler local"
        )
    part = method.rollout
    if part.fn.__module__ == "__main__":
        raise UserError(
            f"workers would have to run your script to find the rollout {part.name}; put it into a file of its own and import that"
        )
    if find(part.name, "rollout").fn is not part.fn:
        raise UserError(
            f"workers find the rollout {part.name} by its name, and this one is another; use --sampler local"
        )
    if "tools" in given:
        raise UserError(
            "workers build the tools from settings, and these were given as functions of Python; name their file (tools='FILE.py'), or use "
            "--sampler local"
        )
    if "env" in given and (given["env"].opens or part.name != "sample"):
        raise UserError(
            "workers build the task from settings, and this run was given one as an object of Python; name it (task='FILE.py:NAME'), "
            "or use --sampler local"
        )
