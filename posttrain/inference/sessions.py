"""What the engine has read of a conversation, kept while somebody else speaks, so that its next turn reads only what is new.

On a GPU a session keeps its pages, the one that is not full among them; when pages run out, idle sessions lose theirs before a running
job is preempted, and are read again later. Where each slot has one page as long as a sequence (no GPU), keys and values are copied out
and back: a copy costs a thousandth of reading the tokens again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from posttrain.inference.pages import Pages

_NONE = torch.zeros(0, dtype=torch.long)


@dataclass(eq=False)
class Session:
    """The first `length` positions of a conversation; all but the last token that was sampled, which nothing has read yet."""

    ids: Tensor = _NONE  # of those positions
    pages: list[int] = field(default_factory=list)  # that hold them, each with a reference of the session's own
    copied: tuple[Tensor, Tensor] | None = None  # or their keys and values (layers, heads, length, D)
    shared: int = 0  # positions at the beginning whose pages others of the same context have too; whole pages
    slot: int = -1  # the one that its last turn ended in, next to those it shares pages with

    @property
    def length(self) -> int:
        return len(self.ids)

    def begins(self, tokens: Tensor) -> bool:
        """Whether these tokens go on from what was kept; a context that was rewritten does not."""
        return 0 < self.length <= len(tokens) and torch.equal(self.ids, tokens[: self.length])

    # ---- pages

    def keep(self, ids: Tensor, pages: list[int], pool: Pages) -> None:
        """Take over a job's pages, as far as they hold these positions."""
        held = pool.needed(len(ids))
        pool.release(pages[held:])
        self.ids, self.pages = ids, pages[:held]
        pool.idle[id(self)] = self

    def take(self, pool: Pages) -> list[int]:
        """Hand the pages to a job."""
        pool.idle.pop(id(self), None)
        pages, self.pages = self.pages, []
        return pages

    def branch(self, pool: Pages | None) -> Session:
        """Another session in the same state: full pages are shared, the one that is not full is copied."""
        if pool is None or not self.pages:
            return Session(self.ids, [], self.copied)
        full = self.length // pool.size
        own = pool.allocate(len(self.pages) - full)
        if not self.pages:  # its own pages were what room was made of
            pool.release(own)
            return Session(self.ids[:0])
        if own:
            pool.copy(torch.tensor(self.pages[full:]), torch.tensor(own))
        other = Session(self.ids, pool.share(self.pages[:full]) + own, shared=self.shared)
        pool.idle[id(other)] = other
        return other

    def drop(self, pool: Pages | None) -> None:
        """Forget what was read."""
        if pool is not None and self.pages:
            pool.release(self.take(pool))
        self.ids, self.pages, self.copied, self.shared = _NONE, [], None, 0

    # ---- copies, where each slot has one page

    def copy_out(self, ids: Tensor, page: int, pool: Pages) -> None:
        n = len(ids)
        self.ids, self.copied = ids, (pool.keys[:, page, :, :n].clone(), pool.values[:, page, :, :n].clone())

    def copy_in(self, page: int, pool: Pages) -> None:
        assert self.copied is not None
        pool.keys[:, page, :, : self.length] = self.copied[0]
        pool.values[:, page, :, : self.length] = self.copied[1]
        self.copied = None
