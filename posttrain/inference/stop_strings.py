"""Texts that end an answer, such as </search>: found in tokens as they come. The answer ends with the token that completes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from posttrain.models.sampling import Sample

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


def finder(decode: Callable[[Tensor], str], stops: Sequence[str]) -> Callable[[Tensor], int]:
    """The same for many answers at once: it keeps nothing between calls, and looks at the end of an answer only until something is there."""

    def plain(ids: list[int]) -> str:
        return decode(torch.tensor(ids, dtype=torch.long))

    def find(tokens: Tensor) -> int:
        end = decode(tokens[-WINDOW:])
        return StopStrings(plain, stops)(tokens) if any(stop in end for stop in stops) else 0

    return find


def cut(s: Sample, decode: Callable[[Tensor], str], stops: Sequence[str]) -> Sample:
    """An answer that was sampled to its end, up to the first of the texts: what is drawn does not depend on what comes later."""
    text = decode(s.tokens)
    if not any(stop in text for stop in stops):
        return s
    n = StopStrings(lambda ids: decode(torch.tensor(ids, dtype=torch.long)), stops)(s.tokens)
    return Sample(s.tokens[:n], s.logp_T[:n], True)
