"""Master weights: parameters in half precision learn through copies in float32.

A step of 1e-6 on a weight of 1 is lost in bf16, which has 8 bits. The copy takes the sum of the gradients and the optimiser's
steps; the model gets it rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn


class Masters:
    """The parameters that the optimiser moves: a float32 copy of each that has less, every other one itself."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        self.named: list[tuple[str, nn.Parameter]] = []
        self.copies: list[tuple[nn.Parameter, nn.Parameter]] = []  # (in the model, its master)
        for name, p in named:
            if p.dtype not in (torch.bfloat16, torch.float16):
                self.named.append((name, p))
                continue
            master = nn.Parameter(p.detach().float())
            self.named.append((name, master))
            self.copies.append((p, master))
            _hook(p, master)

    @torch.no_grad()
    def publish(self) -> None:
        """The masters, rounded, into the model."""
        if self.copies:
            models, masters = zip(*self.copies, strict=True)
            torch._foreach_copy_(list(models), list(masters))

    def step(
        self,
        optimiser: torch.optim.Optimizer,
        norms: Sequence[float | Tensor],
        meanwhile: Callable[[], None] | None = None,
    ) -> bool:
        """Move the weights unless a norm of the gradients is not finite; whether they were moved. A fused AdamW decides that on the device:
        all is launched before anything is waited for, and `meanwhile` is done while the device is at it."""
        there = [norm for norm in norms if isinstance(norm, Tensor)]
        known = all(math.isfinite(norm) for norm in norms if not isinstance(norm, Tensor))
        fused = isinstance(optimiser, torch.optim.AdamW) and bool(optimiser.defaults["fused"])
        ahead = bool(there) and known and fused
        if ahead:
            finite = torch.stack(there).isfinite().all()
            optimiser.found_inf = (~finite).float()  # type: ignore[attr-defined]
            try:
                optimiser.step()
            finally:
                del optimiser.found_inf  # type: ignore[attr-defined]
            self.publish()
        if meanwhile is not None:
            meanwhile()
        if ahead:
            return bool(finite)
        if not all(math.isfinite(norm) for norm in norms):
            return False
        optimiser.step()
        self.publish()
        return True

    def tensors(self) -> dict[str, Tensor]:
        """The float32 copies by name: what a checkpoint must hold besides the model's own weights."""
        mine = {id(master) for _, master in self.copies}
        return {name: p.detach() for name, p in self.named if id(p) in mine}

    def rounded(self) -> dict[str, str]:
        """name -> dtype of the weights that are their masters rounded: a checkpoint with the masters need not hold them."""
        kinds = {id(master): str(p.dtype).removeprefix("torch.") for p, master in self.copies}
        return {name: kinds[id(p)] for name, p in self.named if id(p) in kinds}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Masters from tensors by name; others that are among them are the model's own, and stay as they are."""
        mine = {id(master) for _, master in self.copies}
        for name, p in self.named:
            if name in tensors and id(p) in mine:
                p.copy_(tensors[name])
        self.publish()


def _hook(p: nn.Parameter, master: nn.Parameter) -> None:
    """Each piece's gradient is added to the master's in float32 and released. The newest master has it all: an earlier learner
    of the same weights (a phase before this one) is done with them."""

    def add(p: nn.Parameter) -> None:
        assert p.grad is not None
        if master.grad is None:
            master.grad = p.grad.float()
        else:
            master.grad += p.grad
        p.grad = None

    earlier = getattr(p, "_to_master", None)
    if earlier is not None:
        earlier.remove()
    p._to_master = p.register_post_accumulate_grad_hook(add)  # type: ignore[attr-defined]
    p.master = master  # type: ignore[attr-defined]  # for passes whose gradients do not come through autograd
