"""What a request may ask for: sizes that are checked before any work is done for it, and the error reply of one that is refused."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

BODY_BYTES = 2 << 20  # of a request, at least; models with long contexts take more
BYTES_PER_TOKEN = 16  # of a body, for each position of the model
CHARS_PER_TOKEN = 32  # a text with more characters for each position does not fit: it is refused before it is tokenised
MAX_TEMPERATURE = 100.0
MAX_TOP_K = 1_000_000
MAX_STOPS, MAX_STOP_CHARS = 16, 1_000
MAX_TOOLS = 128
MAX_SCHEMA_CHARS = 64_000  # of a JSON schema, or of all tools together
MAX_NAME = 256  # characters of a model's or field's name for which a near one is searched

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


@dataclass(frozen=True)
class Limits:
    """max_model_len: positions of the model, prompt and answer together; max_answers: per request (n times the prompts)."""

    max_model_len: int = 1024
    max_answers: int = 256

    @property
    def body_bytes(self) -> int:
        return max(BODY_BYTES, BYTES_PER_TOKEN * self.max_model_len)

    @property
    def chars(self) -> int:
        """Of all texts of a prompt together."""
        return CHARS_PER_TOKEN * self.max_model_len

    def check_text(self, chars: int, param: str) -> None:
        if chars > self.chars:
            told = f"a prompt of {chars:,} characters; this model has room for {self.max_model_len:,} tokens, so at most {self.chars:,}"
            raise ApiError(400, told + " are read", param, "context_length_exceeded")

    def check_answers(self, prompts: int, n: int) -> None:
        if prompts * n > self.max_answers:
            told = (
                f"{prompts * n:,} answers in one request ({prompts:,} prompts, n={shown(n)}); this server makes at most"
            )
            raise ApiError(400, f"{told} {self.max_answers:,}", "n" if n > 1 else "prompt")


class ApiError(Exception):
    """An error reply: the HTTP status, and the fields that OpenAI's clients expect."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 403: "permission_error", 500: "server_error", 503: "server_error"}
        kind = kinds.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def shown(value: Any) -> str:
    """A value as an error names it, however large it is."""
    text = _SHORT.repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
