"""From tokens to the text that a client may see: no end token, no stop string, no half of a character."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from posttrain.inference.stop_strings import REPLACEMENT, Decode, RunningText


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
