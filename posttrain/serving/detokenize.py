"""From tokens to the text that a client may see: no end token, no stop string, no half of a character."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import Tensor

Decode = Callable[[list[int]], str]
REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are not a character (yet)
WINDOW, OVERLAP = 192, 32  # tokens that are decoded again at each call, and those of them whose text is known


class RunningText:
    """The text of tokens as they come, in constant time per token: text that is settled is not decoded again.

    Called with all tokens so far. Once the window is full its text is kept, and the next window begins with the last few tokens of
    this one, because what a token reads as may depend on those before it.
    """

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self.kept = ""  # the text of all tokens before self.known
        self.start, self.known, self.skip = (
            0,
            0,
            0,
        )  # the window's first token; tokens of known text; characters of theirs

    def __call__(self, tokens: list[int]) -> str:
        if len(tokens) < self.known:  # not the same tokens and more
            self.kept, self.start, self.known, self.skip = "", 0, 0, 0
        text = self.kept + self.decode(tokens[self.start :])[self.skip :]
        if len(tokens) - self.start > WINDOW and not text.endswith(REPLACEMENT):
            self.kept, self.known, self.start = text, len(tokens), len(tokens) - OVERLAP
            self.skip = len(self.decode(tokens[self.start :]))
        return text


class StopStrings:
    """Finds how many tokens complete one of the stop strings, 0 if none does; called again as tokens come."""

    def __init__(self, decode: Decode, stops: Sequence[str]) -> None:
        self.decode, self.stops, self.text = decode, stops, RunningText(decode)
        self.checked = 0  # tokens that are known to contain none
        self.clean = 0  # characters that are known to contain none

    def __call__(self, tokens: Tensor) -> int:
        ids = tokens.tolist()
        text = self.text(ids)
        start = max(0, self.clean - max(map(len, self.stops)))
        if not any(text.find(stop, start) >= 0 for stop in self.stops):
            self.checked, self.clean = len(ids), len(text.rstrip(REPLACEMENT))
            return 0
        return next(n for n in range(self.checked + 1, len(ids) + 1) if n == len(ids) or self._contains(ids[:n]))

    def _contains(self, ids: list[int]) -> bool:
        text = self.decode(ids)
        return any(stop in text for stop in self.stops)


class Detokenizer:
    """The text of one answer as its tokens come, in chunks that add up to the whole."""

    def __init__(self, decode: Decode, stops: Sequence[str] = (), stop_ids: Collection[int] = ()) -> None:
        self.decode, self.stops, self.stop_ids = RunningText(decode), stops, stop_ids
        self.sent = ""

    def text(self, tokens: list[int], done: bool) -> str:
        """The part of the answer so far that may be shown; all of it once it is done."""
        if tokens and tokens[-1] in self.stop_ids:
            tokens = tokens[:-1]
        text = self.decode(tokens)
        ends = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if ends:
            return text[: min(ends)]
        return text if done else stable_text(text, self.stops)

    def next_chunk(self, tokens: list[int], done: bool) -> str:
        """What may be shown now and was not returned before."""
        text = self.text(tokens, done)
        if not done and not text.startswith(self.sent):  # the decoder has changed text that it wrote earlier
            return ""
        chunk, self.sent = text[len(self.sent) :], max(self.sent, text, key=len)
        return chunk


def stable_text(text: str, stops: Sequence[str] = ()) -> str:
    """The text without an unfinished character at its end, and without what may become a stop string."""
    text = text.rstrip(REPLACEMENT)
    longest = max((k for stop in stops for k in range(1, len(stop)) if text.endswith(stop[:k])), default=0)
    return text[: len(text) - longest]
