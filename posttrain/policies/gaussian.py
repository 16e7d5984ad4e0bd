"""A Gaussian policy for continuous control: a small network says the mean of each action, a vector its spread."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from posttrain.core import rng
from posttrain.core.acting import Actor
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Origin, Prompt, Rollout


class GaussianPolicy(Actor, nn.Module):
    """pi(a | s) = N(mean(s), diag(std^2)); it sees the stream `state` of an observation and acts once per turn."""

    def __init__(self, states: int, actions: int, width: int = 64, seed: int = 0, log_std: float = -0.5) -> None:
        super().__init__()
        self.states, self.width, self.name = states, width, "gaussian"
        self.mean = mlp(states, width, width, actions, seed=seed, last=0.1)
        self.log_std = nn.Parameter(torch.full((actions,), log_std))
        self.critic: nn.Module | None = None

    @property
    def device(self) -> torch.device:
        return self.log_std.device

    @staticmethod
    def density(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """The log-density of every component."""
        return log_normal(x, mean, log_std)

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"logp_BT", "entropy_BT", "value_BT"})

    def observe(self, prompt: Prompt) -> Observation:
        """For prompts that hold their state; an episode usually says what is seen first."""
        return see(torch.as_tensor(prompt.info["state"]))

    @torch.no_grad()
    def act(
        self, pending: Sequence[Sequence[Turn]], keys: Sequence[Sequence[int]], how: Sampling, version: int = 0
    ) -> list[list[Turn]]:
        """One action per key: a normal draw by identity around the mean; at temperature 0 the mean itself."""
        last = [turns[-1] for turns, some in zip(pending, keys, strict=True) for _ in some]
        mean_BA = self.mean(torch.cat([t.observation.streams["state"][-1:] for t in last]))
        key_B = torch.tensor([k for some in keys for k in some])
        noise_BA = rng.normal(key_B, 0, mean_BA.shape[1]) if how.temperature else torch.zeros_like(mean_BA)
        action_BA = mean_BA + noise_BA * self.log_std.exp() * self.temperature
        logp_B = self.density(action_BA, mean_BA, self.log_std + math.log(self.temperature)).sum(-1)
        made = iter([_acted(t, a, x, version) for t, a, x in zip(last, action_BA, logp_B, strict=True)])
        return [[next(made) for _ in some] for some in keys]

    def forward(self, rows: Sequence[Turn | Rollout], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        """Log-probability and entropy of each action, the value of the state it was chosen in."""
        needs, turns = set(needs), [r.row for r in rows]
        state_NO, lengths = torch.cat([t.observation.streams["state"] for t in turns]), [len(t) for t in turns]
        log_std_A = self.log_std + math.log(self.temperature)
        out: dict[str, Tensor] = {}
        if "logp_BT" in needs:
            action_NA = torch.cat([t.actions for t in turns])
            out["logp_BT"] = padded(self.density(action_NA, self.mean(state_NO), log_std_A).sum(-1), lengths)
        if "entropy_BT" in needs:
            entropy = (log_std_A + 0.5 * math.log(2 * math.pi * math.e)).sum()
            out["entropy_BT"] = padded(entropy.expand(len(state_NO)), lengths)
        if "value_BT" in needs:
            critic = self.with_critic().critic
            assert critic is not None
            out["value_BT"] = padded(critic(state_NO).squeeze(-1), lengths)
        return out

    def written(self, prompt: Prompt, text: str | Mapping[str, Any]) -> Rollout:
        """Behaviour that was recorded, {"states": T vectors, "actions": T vectors}, as a rollout; who acted is not known."""
        if isinstance(text, str) or not {"states", "actions"} <= text.keys():
            got = "a text" if isinstance(text, str) else f"{', '.join(text) or 'nothing'}"
            raise UserError(
                f"prompt {prompt.id!r}: what a control policy learns from is a segment with states and actions, got {got}"
            )
        state_TO, action_TA = (torch.as_tensor(text[k], dtype=torch.float32) for k in ("states", "actions"))
        if state_TO.shape != (len(action_TA), self.states) or action_TA.shape[1:] != self.log_std.shape:
            want = f"(T, {self.states}) and (T, {len(self.log_std)})"
            raise UserError(
                f"prompt {prompt.id!r}: states {tuple(state_TO.shape)} and actions {tuple(action_TA.shape)}, expected {want}"
            )
        seen = Observation(torch.zeros(0, dtype=torch.long), {"state": state_TO})
        return Rollout.single(prompt, seen, action_TA, torch.zeros(len(action_TA)), origin=Origin.WRITTEN)

    def with_critic(self) -> GaussianPolicy:
        """Add a value network of the same width."""
        if self.critic is None:
            self.critic = mlp(self.states, self.width, self.width, 1, seed=1, last=0.1)
        return self

    def clone(self) -> GaussianPolicy:
        """An independent copy; the critic is left behind."""
        other = copy.deepcopy(self)
        other.critic = None
        return other


class MeanPolicy(GaussianPolicy):
    """log pi(a | s) = -|a - mean(s)|^2, without the constant: a Gaussian whose spread, 1 / sqrt(2), is not learned; what regression fits."""

    def __init__(self, states: int, actions: int, width: int = 64, seed: int = 0) -> None:
        super().__init__(states, actions, width, seed, log_std=-0.5 * math.log(2))
        self.log_std.requires_grad_(False)

    @staticmethod
    def density(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """-(x - mean)^2, divided by 2 std^2, which is 1 at temperature 1."""
        return -0.5 * ((x - mean) / log_std.exp()) ** 2


def mlp(*sizes: int, seed: int = 0, last: float = 1.0) -> nn.Sequential:
    """Linear layers with tanh between them, drawn by identity; the last one scaled."""
    layers: list[nn.Module] = []
    for k, (a, b) in enumerate(zip(sizes, sizes[1:], strict=False)):
        layer = nn.Linear(a, b)
        scale = (last if k == len(sizes) - 2 else 1.0) / math.sqrt(a)
        with torch.no_grad():
            layer.weight.copy_(scale * torch.randn(b, a, generator=rng.torch_generator("mlp", seed, k)))
            layer.bias.zero_()
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def log_normal(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """log N(x; mean, exp(log_std)^2) of every component."""
    return -0.5 * ((x - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)


def see(state: Tensor) -> Observation:
    """One moment of a state vector."""
    return Observation(torch.zeros(0, dtype=torch.long), {"state": state.float().reshape(1, -1)})


def _acted(pending: Turn, action_A: Tensor, logp: Tensor, version: int) -> Turn:
    made = Turn.of(pending.observation, action_A.unsqueeze(0), logp.unsqueeze(0), version=version)
    made.continues = pending.continues
    return made


def padded(x_N: Tensor, lengths: list[int]) -> Tensor:
    """Rows end to end as (B, T)."""
    return pad_sequence(list(x_N.split(lengths)), batch_first=True)
