"""The paged KV cache, reference-counted: sequences with a common prefix share the pages that hold it.

A page holds PAGE positions of one sequence in every layer. Only full pages are shared; the page that a sequence is still
writing is its own. Page 0 is the null page: slots without a sequence, and padding, write there.
Without a GPU each slot has one page that is as long as a sequence may get, so that plain slices serve as the cache.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Protocol

import torch
from torch import Tensor

from posttrain.models.decoder import Decoder

PAGE = 64  # positions per page


class Holder(Protocol):
    """Whoever holds pages that it can do without."""

    def drop(self, pool: Pages | None) -> None: ...


class OutOfPages(Exception):
    """No page is free: a sequence must be preempted first."""


class Pages:
    """Keys and values of all pages, the reference count of each page, and the prefix cache (hash of a prefix -> page)."""

    def __init__(self, model: Decoder, count: int, size: int = PAGE) -> None:
        c, like = model.config, model.lm_head.weight
        shape = (c.num_layers, count, c.num_kv_heads, size, c.head_dim)
        self.size, self.count = size, count
        self.keys = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.values = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.ref_count = [0] * count
        self.free = list(range(count - 1, 0, -1))
        self.cached: OrderedDict[bytes, int] = OrderedDict()  # hash up to the end of a page -> page; least recent first
        self.idle: dict[
            int, Holder
        ] = {}  # sessions whose conversations wait for a reply, in the order in which they began to

    @staticmethod
    def bytes_per_page(model: Decoder, size: int = PAGE) -> int:
        c = model.config
        return 2 * c.num_layers * c.num_kv_heads * c.head_dim * size * model.lm_head.weight.element_size()

    def needed(self, positions: int) -> int:
        """Pages that hold this many positions."""
        return -(-positions // self.size)

    def allocate(self, count: int) -> list[int]:
        """Free pages, each with one reference; where there are too few, cached prefixes go, least recently used first, and then what
        idle sessions hold, the last to become idle first, since it is the last to come back."""
        while len(self.free) < count and self.cached:
            self.release([self.cached.popitem(last=False)[1]])
        while len(self.free) < count and self.idle:
            self.idle[next(reversed(self.idle))].drop(self)
        if len(self.free) < count:
            raise OutOfPages
        taken = [self.free.pop() for _ in range(count)]
        for page in taken:
            self.ref_count[page] = 1
        return taken

    def share(self, pages: list[int]) -> list[int]:
        """Add a reference to each page."""
        for page in pages:
            self.ref_count[page] += 1
        return pages

    def release(self, pages: list[int]) -> None:
        """Drop a reference to each page; a page without references is free."""
        for page in pages:
            self.ref_count[page] -= 1
            if self.ref_count[page] == 0:
                self.free.append(page)

    def find_prefix(self, tokens: Tensor, identity: bytes = b"") -> list[int]:
        """The cached pages that hold the longest known prefix of this sequence, each with one more reference."""
        found = []
        for name in _hash_chain(tokens, self.size, identity):
            if name not in self.cached:
                break
            self.cached.move_to_end(name)
            found.append(self.cached[name])
        return self.share(found)

    def cache_prefix(self, tokens: Tensor, pages: list[int], identity: bytes = b"") -> None:
        """Keep the full pages of a sequence, so that later sequences with the same prefix find them."""
        for name, page in zip(_hash_chain(tokens, self.size, identity), pages, strict=False):
            if name not in self.cached:
                self.cached[name] = page
                self.ref_count[page] += 1

    def clear_cache(self) -> None:
        """Forget every cached prefix: the weights have changed, so their keys and values are stale."""
        self.release(list(self.cached.values()))
        self.cached.clear()

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy whole pages into other pages, in every layer."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]


def _hash_chain(tokens: Tensor, size: int, identity: bytes = b"") -> list[bytes]:
    """A hash of the prefix up to the end of each full page, each link hashed from the one before and the page's tokens.

    The identity stands for what was observed besides the tokens (an image, a sound): it salts the first link, and so all of
    them. Without one (b"") the tokens are all that was observed.
    """
    chain: list[bytes] = []
    raw = tokens.to(torch.int32).contiguous().numpy().tobytes()
    before = hashlib.blake2b(identity, digest_size=16, person=b"identity").digest() if identity else b""
    for end in range(size, len(tokens) + 1, size):
        before = hashlib.blake2b(before + raw[4 * (end - size) : 4 * end], digest_size=16).digest()
        chain.append(before)
    return chain
