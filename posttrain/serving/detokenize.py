"""From tokens to the text a reader may see: no end token, no stop string, no half of a character."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import Tensor

Decode = Callable[[list[int]], str]
HALF = "\ufffd"  # what a decoder writes for bytes that are no character (yet)


class Stops:
    """Says how many tokens complete one of the stop strings, 0 where none does; it is asked again as tokens come."""

    def __init__(self, decode: Decode, stops: Sequence[str]) -> None:
        self.decode, self.stops = decode, stops
        self.seen = 0  # tokens that are known to hold none

    def __call__(self, tokens: Tensor) -> int:
        ids = tokens.tolist()
        if not self._there(ids):
            self.seen = len(ids)
            return 0
        return next(n for n in range(self.seen + 1, len(ids) + 1) if n == len(ids) or self._there(ids[:n]))

    def _there(self, ids: list[int]) -> bool:
        text = self.decode(ids)
        return any(stop in text for stop in self.stops)


class Writing:
    """The text of one answer as its tokens come, in pieces that add up to the whole."""

    def __init__(self, decode: Decode, stops: Sequence[str] = (), stop_ids: Collection[int] = ()) -> None:
        self.decode, self.stops, self.stop_ids = decode, stops, stop_ids
        self.sent = ""

    def text(self, tokens: list[int], done: bool) -> str:
        """What may be shown of the answer so far; once it is done, all of it."""
        if tokens and tokens[-1] in self.stop_ids:
            tokens = tokens[:-1]
        text = self.decode(tokens)
        ends = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if ends:
            return text[: min(ends)]
        return text if done else held_back(text, self.stops)

    def more(self, tokens: list[int], done: bool) -> str:
        """What may be shown now and was not before."""
        text = self.text(tokens, done)
        if not done and not text.startswith(self.sent):  # a decoder that changes its mind about what it wrote
            return ""
        piece, self.sent = text[len(self.sent) :], max(self.sent, text, key=len)
        return piece


def held_back(text: str, stops: Sequence[str] = ()) -> str:
    """Without an unfinished character at its end, and without what may become a stop string."""
    text = text.rstrip(HALF)
    longest = max((k for stop in stops for k in range(1, len(stop)) if text.endswith(stop[:k])), default=0)
    return text[: len(text) - longest]
