"""How the passes of one update are divided among processes: `Local` is one process; `ExactSums` keeps the model on all of them and adds
gradients without rounding; `posttrain.weights.sharded` has FSDP.

Every process knows the whole minibatch and how it is cut into pieces; the pieces are dealt out, and what belongs to a piece (its tally, its
streams) is put together in the order of the pieces, so figures do not depend on who did what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.core.ranks import ALONE, Ranks, dealt
from posttrain.weights.critic import Named
from posttrain.weights.masters import Masters

_UNIT = 2.0**44  # gradients are added as whole multiples of 1 / _UNIT; up to 2^18 in size


class Local:
    """One process: every piece is its own, gradients are added as torch does."""

    ranks: Ranks = ALONE

    def wrap(self, policy: Any, learns: bool = True) -> None:
        """Lay the policy's weights out over the processes."""

    def check_optimiser(self, name: str) -> None:
        """Whether this optimiser can move what the processes hold."""

    def check_reference(self, reference: Any) -> None:
        """Whether this reference can be laid out over the processes."""

    def masters(self, named: Iterable[tuple[str, nn.Parameter]]) -> Masters:
        """What the optimiser moves."""
        return Masters(named)

    def pieces(self, costs: Sequence[float]) -> list[tuple[int, bool]]:
        """The numbers of this process's pieces, in order; False: one that only keeps others company and must count for nothing."""
        mine = dealt(list(costs), self.ranks.world)[self.ranks.rank] if self.ranks.world > 1 else range(len(costs))
        return [(i, True) for i in mine]

    def gather(self, mine: list[tuple[int, Any]]) -> list[Any]:
        """What belongs to the pieces, those of all processes, in the order of the pieces."""
        if self.ranks.world == 1:
            return [x for _, x in mine]
        mine = [(i, {k: v.cpu() for k, v in x.items()} if isinstance(x, dict) else x) for i, x in mine]
        return [
            x for _, x in sorted((pair for some in self.ranks.gather(mine) for pair in some), key=lambda pair: pair[0])
        ]

    def backward(self, loss: Tensor, streams: Iterable[Tensor], counts: bool = True) -> None:
        """The gradient of a piece's loss."""
        if loss.requires_grad:
            loss.backward()

    def after_piece(self, named: Named) -> None:
        """A piece's gradient is there."""

    def reduce(self, named: Named) -> None:
        """All pieces are done: every process gets the whole gradient (of its part of the weights)."""

    def clip(self, named: Named, max_norm: float) -> float | Tensor:
        """The norm of the gradients, which are clipped to max_norm; on a GPU as a tensor, so that nothing waits for it."""
        params = [p for _, p in named if p.grad is not None]
        grads = [p.grad for p in params if p.grad is not None]
        if not grads:
            return 0.0
        if not all(g.is_cuda for g in grads):
            return float(nn.utils.clip_grad_norm_(params, max_norm))
        # the same numbers as clip_grad_norm_, which also asks each of the hundreds of norms onto the device that they are on
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        nn.utils.clip_grads_with_norm_(params, max_norm, norm)
        return norm

    def moved(self, policy: Any) -> None:
        """The policy's weights have changed."""

    def state(self, policy: Any) -> dict[str, Tensor]:
        """Of the policy's weights what this process saves."""
        found: dict[str, Tensor] = policy.state_dict()
        return found

    def reference_state(self, reference: Any) -> dict[str, Tensor]:
        """The same of a reference."""
        found: dict[str, Tensor] = reference.tensors()
        return found

    def rows(self, learner: Any) -> dict[str, list[str]]:
        """By table of a learner's checkpoint, the tensors of which this process has only its rows."""
        return {}

    def own(self, parameter: Tensor, whole: Tensor) -> Tensor:
        """Of an optimiser's tensor what belongs to this process's part of the parameter."""
        return whole


class ExactSums(Local):
    """Every process has the whole model. Gradients of pieces are added as integers, so that the sum is the same in any order: a run has the
    same bits on any number of processes. For models small enough to be on each, and 8 bytes more a weight."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.sums: dict[str, Tensor] = {}
        self.finite = True

    def after_piece(self, named: Named) -> None:
        for name, p in named:
            if p.grad is None:
                continue
            units = p.grad.double() * _UNIT
            self.finite &= bool((units.abs() < 2.0**62).all())  # false for nan too
            whole = units.nan_to_num(0.0, 0.0, 0.0).round().long()
            self.sums[name] = self.sums[name].add_(whole) if name in self.sums else whole
            p.grad = None

    def reduce(self, named: Named) -> None:
        if not named:
            return
        known = torch.tensor([name in self.sums for name, _ in named] + [not self.finite], dtype=torch.int64)
        there = self.ranks.sum_(known.to(named[0][1].device)).tolist()
        flat = torch.cat(
            [
                self.sums[n].flatten() if n in self.sums else torch.zeros_like(p, dtype=torch.int64).flatten()
                for n, p in named
            ]
        )
        parts = self.ranks.sum_(flat).split([p.numel() for _, p in named])
        for (_, p), units, some in zip(named, parts, there, strict=False):
            p.grad = (units.double() / _UNIT).to(p.dtype).view_as(p) if some else None
            if there[-1] and p.grad is not None:
                p.grad.fill_(torch.nan)
        self.sums, self.finite = {}, True


def company(mine: list[int], most: int, spare: int) -> Iterator[tuple[int, bool]]:
    """A process's pieces, and then piece `spare` again and again until it has done `most`: where passes through the model are collective, all
    processes must do as many."""
    yield from ((i, True) for i in mine)
    yield from ((spare, False) for _ in range(most - len(mine)))
