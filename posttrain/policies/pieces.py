"""Token ids as the bytes they stand for: part of a character is its bytes, a special token its name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_SPACE = "\u2581"  # what SentencePiece writes for a space


def token_bytes(tokenizer: Any, ids: list[int]) -> list[bytes]:
    """The bytes of each id. Vocabularies write bytes in two ways: as letters (GPT-2: Ġ is a space) or as text and <0x0A>."""
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        return [tokenizer.decode([i], skip_special_tokens=False).encode() for i in ids]
    added = getattr(tokenizer, "added_tokens_decoder", {})
    letters = _has(tokenizer, "Ġ")
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return [_bytes(t or "", letters and i not in added) for i, t in zip(ids, tokens, strict=True)]


def _has(tokenizer: Any, token: str) -> bool:
    """Whether the vocabulary has this entry; without making a dict of all of it, which takes 30 ms for 50,000 and stops other threads."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return backend.token_to_id(token) is not None
    return token in getattr(tokenizer, "vocab", {})


def _bytes(token: str, letters: bool) -> bytes:
    table = byte_of_letter()
    if letters and all(c in table for c in token):
        return bytes(table[c] for c in token)
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(_SPACE, " ").encode(errors="replace")


@lru_cache(maxsize=1)
def byte_of_letter() -> dict[str, int]:
    """GPT-2's alphabet of 256 letters: printable bytes stand for themselves, the others are numbered from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + k): b for k, b in enumerate(rest)}
