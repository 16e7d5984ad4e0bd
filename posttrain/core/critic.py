"""How a critic (a value network, a model of token worth) learns beside the policy: where it begins, how fast, how long alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from posttrain.core.config import Config
from posttrain.core.errors import UserError

VALUES = ("value_BT", "value_BTK", "value_after_BT")  # what a critic says: before an action, by reward, after an action
OLD = tuple(f"old_{name}" for name in VALUES)  # the same, before the update
SHARED = "shared"


@dataclass(frozen=True)
class CriticSettings:
    """A method's own choice, which `--critic`, `--critic-lr`, `--critic-warmup` and `--critic-max-norm` replace.

    start: "" a copy of the policy's network (with adapters: its frozen weights, and adapters of its own); "shared" a head on
    the policy's network itself; else a reward model, runs/NAME or a folder. pace: its learning rate in the policy's.
    warmup: steps at the start in which it learns alone, at most a quarter of the run. rewards: components of the reward that
    have a critic each, in this order (value_BTK); without, one critic values all of it (value_BT).
    """

    start: str = ""
    pace: float = 1.0
    lr: float | None = None
    warmup: int = 0
    max_norm: float | None = None
    rewards: tuple[str, ...] = ()

    def asked(self, config: Config) -> CriticSettings:
        """With what the settings of a run say."""
        norm = self.max_norm if config.critic_max_norm is None else config.critic_max_norm
        rate = self.lr if config.critic_lr is None else config.critic_lr
        warmup = min(self.warmup, config.steps // 4) if config.critic_warmup is None else config.critic_warmup
        if warmup and warmup >= config.steps:
            raise UserError(
                f"critic_warmup is {warmup} and the run has {config.steps} steps, so the policy would never learn; "
                f"use more --steps, or --critic-warmup {config.steps // 4}"
            )
        return replace(self, start=config.critic or self.start, lr=rate, max_norm=norm, warmup=warmup)


def has_critic(reads: set[str]) -> bool:
    """Whether anything that is read comes from a critic."""
    return bool(reads & {*VALUES, *OLD})


def unused(config: Config, reads: set[str], name: str) -> None:
    """A setting of the critic is an error where there is none."""
    for key in ("critic", "critic_lr", "critic_warmup", "critic_max_norm"):
        if getattr(config, key) not in ("", None) and not has_critic(reads):
            option = key.replace("_", "-")
            raise UserError(f"--{option} is for a method with a critic (ppo, vapo, oreal), and {name} has none")
