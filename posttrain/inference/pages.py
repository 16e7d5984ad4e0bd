"""Keys and values in pages, counted by use: sequences that begin alike share the pages of their beginning.

A page holds PAGE places of one sequence in every layer. Only full pages are shared; the page that a sequence is still
writing is its own. Page 0 belongs to nobody: slots without a sequence write there.
Without a GPU a sequence has one page as long as it may grow, its slot's own, so that plain slices serve as the cache.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import torch
from torch import Tensor

from posttrain.models.decoder import Decoder

PAGE = 64


class OutOfPages(Exception):
    """No page is free: somebody must give theirs back."""


class Pages:
    """The memory, who uses what of it, and which beginnings are known."""

    def __init__(self, model: Decoder, count: int, size: int = PAGE) -> None:
        c, like = model.config, model.lm_head.weight
        shape = (c.num_layers, count, c.num_kv_heads, size, c.head_dim)
        self.size, self.count = size, count
        self.keys = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.values = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.uses = [0] * count
        self.free = list(range(count - 1, 0, -1))
        self.known: OrderedDict[bytes, int] = (
            OrderedDict()
        )  # the text up to the end of a page -> the page; oldest first

    @staticmethod
    def bytes_each(model: Decoder, size: int = PAGE) -> int:
        c = model.config
        return 2 * c.num_layers * c.num_kv_heads * c.head_dim * size * model.lm_head.weight.element_size()

    def needed(self, places: int) -> int:
        return -(-places // self.size)

    def take(self, count: int) -> list[int]:
        """Fresh pages; beginnings that nobody uses are forgotten first, the longest unused first."""
        while len(self.free) < count and self.known:
            self.drop([self.known.popitem(last=False)[1]])
        if len(self.free) < count:
            raise OutOfPages
        taken = [self.free.pop() for _ in range(count)]
        for page in taken:
            self.uses[page] = 1
        return taken

    def share(self, pages: list[int]) -> list[int]:
        for page in pages:
            self.uses[page] += 1
        return pages

    def drop(self, pages: list[int]) -> None:
        for page in pages:
            self.uses[page] -= 1
            if self.uses[page] == 0:
                self.free.append(page)

    def find(self, tokens: Tensor) -> list[int]:
        """The known pages that hold the beginning of this text, as many as there are, shared with the asker."""
        found = []
        for name in _names(tokens, self.size):
            if name not in self.known:
                break
            self.known.move_to_end(name)
            found.append(self.known[name])
        return self.share(found)

    def note(self, tokens: Tensor, pages: list[int]) -> None:
        """Remember the full pages of a text."""
        for name, page in zip(_names(tokens, self.size), pages, strict=False):
            if name not in self.known:
                self.known[name] = page
                self.uses[page] += 1

    def forget(self) -> None:
        """New weights: nothing that was read before is worth anything."""
        self.drop(list(self.known.values()))
        self.known.clear()

    def copy(self, source: Tensor, target: Tensor) -> None:
        """The whole content of pages into other pages, in every layer."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]


def _names(tokens: Tensor, size: int) -> list[bytes]:
    """A name for the text up to the end of each of its full pages."""
    names: list[bytes] = []
    text = tokens.to(torch.int32).contiguous().numpy().tobytes()
    for end in range(size, len(tokens) + 1, size):
        before = names[-1] if names else b""
        names.append(hashlib.blake2b(before + text[4 * (end - size) : 4 * end], digest_size=16).digest())
    return names
