"""Token ids of texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from threading import Lock
from typing import Any

from posttrain.core.errors import UserError

_ONE = (
    Lock()
)  # tokenizers set how they pad and cut before they read, and rows of the next step are read in another thread
_SURROGATE = re.compile("[\ud800-\udfff]")


def token_ids(tokenizer: Any, named: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Token ids of texts, in one call; each comes with what it is, for people."""
    for text, what in named:
        if not text.isascii() and _SURROGATE.search(text):
            raise UserError(f"{what} holds half of a character (a lone surrogate), which is not text; take it out")
    with _ONE:
        if len(named) == 1:  # a tokenizer of one's own may read one text only
            return [tokenizer(named[0][0], add_special_tokens=False)["input_ids"]]
        return tokenizer([text for text, _ in named], add_special_tokens=False)["input_ids"] if named else []
