"""The processes that work on one run together. All of them walk through the same loop with the same numbers; sampling and the passes
through the model are divided. `Alone` is one process; `posttrain.distributed.group` has the ones of torchrun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from torch import Tensor

from posttrain.core.errors import UserError

T = TypeVar("T")


class Ranks(Protocol):
    """The processes of a run, each with a number."""

    rank: int
    world: int
    shards: int  # pieces in which contexts are sampled, however many processes there are

    @property
    def lead(self) -> bool:
        """Whether this is the one that writes, prints and scores."""

    def gather(self, mine: Any) -> list[Any]:
        """What every process has, in the order of their numbers."""

    def from_lead(self, mine: Any) -> Any:
        """What the lead has."""

    def sum_(self, x: Tensor) -> Tensor:
        """The sum over all processes, in place."""

    def meet(self, what: str) -> None:
        """Wait until all are here; who is missing after the time limit is named."""


class Alone:
    """One process."""

    rank, world, shards, lead = 0, 1, 1, True

    def gather(self, mine: Any) -> list[Any]:
        return [mine]

    def from_lead(self, mine: Any) -> Any:
        return mine

    def sum_(self, x: Tensor) -> Tensor:
        return x

    def meet(self, what: str) -> None:
        pass


ALONE = Alone()
_NOW: list[Ranks] = [ALONE]


def ranks() -> Ranks:
    """The processes of this run."""
    return _NOW[0]


def use(these: Ranks) -> Ranks:
    """Work together with these from now on; returns those of before."""
    before, _NOW[0] = _NOW[0], these
    return before


def dealt(costs: list[float], world: int) -> list[list[int]]:
    """Pieces of work for each process: the largest first, each to whoever has least so far. Depends on the costs and `world` alone."""
    load, out = [0.0] * world, [list[int]() for _ in range(world)]
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        who = min(range(world), key=lambda r: (load[r], r))
        load[who] += costs[i]
        out[who].append(i)
    return [sorted(mine) for mine in out]


def by_lead(work: Callable[[], T]) -> T:
    """Done by the lead, known to all; a mistake of the user's is one for all of them."""
    here = ranks()
    if here.world == 1:
        return work()
    if not here.lead:
        error, made = here.from_lead(None)
        if error:
            raise UserError(error)
        return made  # type: ignore[no-any-return]
    try:
        made = work()
    except UserError as mistake:
        here.from_lead((str(mistake), None))
        raise
    here.from_lead(("", made))
    return made


def scored(scorer: Any, groups: list[Any]) -> tuple[list[Any], Any]:
    """The groups with their rewards, and the report: an answer is scored once, however many processes there are. Rewards that are asked about
    one answer at a time are divided among them (`RewardSum.some`); all else is asked by the lead, which puts it together."""
    here = ranks()
    if here.world == 1 or not getattr(scorer, "divides", False):
        return by_lead(lambda: (groups, scorer.score(groups)))
    try:
        mine: tuple[str, Any] = ("", scorer.some(groups, here.rank, here.world))
    except UserError as mistake:
        mine = (str(mistake), None)
    shares = here.gather(mine)
    for mistaken, _ in shares:
        if mistaken:
            raise UserError(mistaken)
    return by_lead(lambda: (groups, scorer.score(groups, [share for _, share in shares])))
