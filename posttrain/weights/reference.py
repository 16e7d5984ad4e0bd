"""The reference policy of KL terms and preference losses: a frozen copy, and the rule for when it is updated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy
from posttrain.core.registry import reference
from posttrain.core.turn import Turn
from posttrain.models.rows import own_parameters
from posttrain.weights.known import Known


class Frozen:
    """A frozen copy of the policy; subclasses define when it is updated."""

    saved = True  # whether checkpoints hold it
    _policy: Policy | None = None
    _others: tuple[tuple[float, Policy], ...] = ()  # policies beside it, each with its weight in log ref
    _weight = 1.0  # of the frozen copy itself
    known: Known | None = None  # what it says of data that is known before the run

    @property
    def policy(self) -> Policy:
        """The frozen copy; there once it has started."""
        if self._policy is None:
            raise RuntimeError("a reference is asked before it has started")
        return self._policy

    @property
    def networks(self) -> tuple[Policy, ...]:
        """All that it holds in this process."""
        return (self.policy,)

    def start(self, policy: Policy) -> None:
        """Take the copy; called once, with the policy as the phase begins."""
        self._policy = policy.clone().eval().requires_grad_(False)

    def blend(self, parts: Sequence[tuple[float, Policy]]) -> None:
        """log ref = sum_k w_k log pi_k, whose constant cancels where answers to one prompt are compared: a geometric mixture where the
        weights are shares, an extrapolation where one is negative. The policies are frozen already, and not saved with this."""
        (self._weight, first), *others = parts
        self.start(first)
        self._others = tuple(others)

    @torch.no_grad()
    def streams(self, rows: Sequence[Turn], names: Sequence[str]) -> dict[str, Tensor]:
        """Streams of the frozen copy: `ref_logp_BT` is the logp_BT of this."""
        if self.known is not None and list(names) == ["logp_BT"] and not self._others:
            found = self.known.of(self.policy, lambda some: self.policy.forward(some, names)["logp_BT"], rows)
            if found is not None:
                return {"logp_BT": found}
        out = self.policy.forward(rows, names)
        if self._others:
            if list(names) != ["logp_BT"]:
                raise UserError(f"a reference of several policies gives log-probabilities only, not {', '.join(names)}")
            more = [w * policy.forward(rows, names)["logp_BT"] for w, policy in self._others]
            return {"logp_BT": self._weight * out["logp_BT"] + torch.stack(more).sum(0)}
        return {name: out[name] for name in names}

    def after_step(self, policy: Policy, step: int) -> None:
        """Called after every update."""

    def after_eval(self, policy: Policy, score: float) -> bool:
        """Called with every held-out score; true where the policy has become the reference, and the optimiser starts anew."""
        return False

    @torch.no_grad()
    def renew(self, policy: Policy) -> None:
        """The policy as it is becomes the reference."""
        live = own_parameters(policy)
        for name, p in own_parameters(self.policy).items():
            p.copy_(live[name])

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.policy.state_dict()) if self._policy is not None else {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if self._policy is not None:
            self.policy.load_state_dict(tensors, strict=False)  # tied tensors are saved once


@reference()
class fixed(Frozen):
    """Fixed: the policy the phase began with."""


@reference()
class ema(Frozen):
    """EMA: an exponential moving average of the policy. ref <- decay ref + (1 - decay) policy"""

    def __init__(self, decay: float = 0.99) -> None:
        self.decay = decay

    @torch.no_grad()
    def after_step(self, policy: Policy, step: int) -> None:
        live = own_parameters(policy)
        for name, p in own_parameters(self.policy).items():
            p.lerp_(live[name].to(p.dtype), 1 - self.decay)


@reference()
class reset(Frozen):
    """Reset: every `every` steps the reference is replaced by the current policy; the optimiser goes on as it was."""

    def __init__(self, every: int = 50) -> None:
        self.every = every

    def after_step(self, policy: Policy, step: int) -> None:
        if (step + 1) % self.every == 0:
            self.renew(policy)


@reference(paper="arXiv:2404.09656")
class soft_update(Frozen):
    """Soft update (TR-DPO): every `every` steps the reference moves towards the policy. ref <- mix policy + (1 - mix) ref"""

    def __init__(self, mix: float = 0.6, every: int = 512) -> None:
        if not 0 < mix <= 1 or every < 1:
            raise UserError(f"soft_update got mix={mix}, every={every}; it takes 0 < mix <= 1 and at least 1 step")
        self.mix, self.every = mix, every

    @torch.no_grad()
    def after_step(self, policy: Policy, step: int) -> None:
        if (step + 1) % self.every == 0:
            live = own_parameters(policy)
            for name, p in own_parameters(self.policy).items():
                p.lerp_(live[name].to(p.dtype), self.mix)
