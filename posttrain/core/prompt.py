"""A prompt and its messages; importable without torch, so that a process that only grades starts fast."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]  # {"role": "user", "content": "..."}; content may be a list of parts (text, image, audio)


@dataclass(frozen=True)
class Prompt:
    """A question: chat messages, the gold answer if one is known, and whatever its environment needs to grade it."""

    id: str
    content: tuple[Message, ...]
    answer: Any = None
    info: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def text(id: str, text: str, answer: Any = None, **info: Any) -> Prompt:
        """A prompt of one user message."""
        return Prompt(id, ({"role": "user", "content": text},), answer, info)

    @property
    def last(self) -> str:
        """The text of the last message, for people and for rewards that read the question."""
        content = self.content[-1]["content"] if self.content else ""
        if isinstance(content, str):
            return content
        return "".join(part.get("text", "") for part in content)
