"""What is wanted of a policy, written into its prompt: a class of quality (OpenChat) or a direction among rewards (DPA).

A run whose policy learned this way keeps it as the artifact `conditioning`, and whoever uses the policy writes the same: the best class
unless another one is asked for, a direction only where one is given (`--prefer`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.core.prompt import Message

ARTIFACT = "conditioning"
Messages = tuple[Message, ...]
_NEARLY = 1e-6  # degrees, for directions on the edge


@dataclass(frozen=True)
class Classes:
    """Classes of quality, the best first; the class stands before every message of the user: `expert User: ...`."""

    names: tuple[str, ...]

    def asked(self, prefer: str = "") -> str:
        """The class that is meant; the best one where nobody says."""
        if prefer and prefer not in self.names:
            raise unknown("class (--prefer)", prefer, self.names)
        return prefer or self.names[0]

    def example(self) -> str:
        return self.names[0]

    def written(self, messages: Sequence[Message], asked: str, first: bool = True) -> Messages:
        return tuple(_before(m, f"{asked} User: ") if m["role"] == "user" else m for m in messages)

    def row(self) -> dict[str, Any]:
        return {"kind": "classes", "names": list(self.names)}


@dataclass(frozen=True)
class Directions:
    """Directions among rewards, at most `widest` degrees away from the first of them; a system message says the weights, in hundredths."""

    names: tuple[str, ...]
    widest: float = 45.0

    def asked(self, prefer: str = "") -> tuple[float, ...]:
        """`helpful=0.8,verbose=-0.6` as a unit vector; names that are left away have the weight 0."""
        how = f'--prefer "{self.names[0]}=0.8,{self.names[1]}=-0.6"'
        if not prefer:
            raise UserError(f"this policy follows a direction among {', '.join(self.names)}; say which: {how}")
        found: dict[str, float] = {}
        for piece in prefer.split(","):
            name, value = (x.strip() for x in piece.partition("=")[::2])
            if name not in self.names:
                raise unknown("reward that this policy follows (--prefer)", name, self.names)
            if name in found:
                raise UserError(f"--prefer names {name} twice; each has one weight: {how}")
            try:
                found[name] = float(value)
            except ValueError:
                raise UserError(f"--prefer has {piece.strip()!r}; write a number after each name: {how}") from None
        return self.unit([found.get(name, 0.0) for name in self.names])

    def example(self) -> tuple[float, ...]:
        """The first reward alone."""
        return (1.0, *(0.0 for _ in self.names[1:]))

    def unit(self, weights: Sequence[float]) -> tuple[float, ...]:
        """Weights as a direction that the policy was trained for."""
        length = math.sqrt(sum(w * w for w in weights))
        if not math.isfinite(length) or length == 0:
            raise UserError(f"--prefer has the weights {', '.join(f'{w:g}' for w in weights)}, which are no direction")
        v = tuple(w / length for w in weights)
        angle = math.degrees(math.acos(max(-1.0, min(1.0, v[0]))))
        if angle > self.widest + _NEARLY:
            least = math.cos(math.radians(self.widest))
            raise UserError(
                f"--prefer points {angle:.0f} degrees away from {self.names[0]}, and this policy learned directions up to {self.widest:g}: of a "
                f"unit vector the weight of {self.names[0]} is {least:.2f} or more"
            )
        return v

    def written(self, messages: Sequence[Message], asked: Sequence[float], first: bool = True) -> Messages:
        if not first:
            return tuple(messages)
        said = " + ".join(f"{name}*{round(100 * w)}" for name, w in zip(self.names, asked, strict=True))
        text, rest = f"Maximize the weighted rating = {said}", tuple(messages)
        if rest and rest[0]["role"] == "system":
            return (_before(rest[0], f"{text}\n"), *rest[1:])
        return ({"role": "system", "content": text}, *rest)

    def row(self) -> dict[str, Any]:
        return {"kind": "directions", "names": list(self.names), "widest": self.widest}


Conditioning = Classes | Directions


@dataclass(frozen=True)
class Wanted:
    """What is wanted of a policy now: it is written into every prompt that it reads."""

    how: Conditioning
    asked: Any  # a class, or a direction

    def begins(self, messages: Sequence[Message]) -> Messages:
        """The messages of a prompt."""
        return self.how.written(messages, self.asked)

    def goes_on(self, messages: Sequence[Message]) -> Messages:
        """Messages that come later in the same conversation."""
        return self.how.written(messages, self.asked, first=False)


def example(how: Conditioning) -> Message:
    """The first message of a prompt, as such a policy reads it."""
    return Wanted(how, how.example()).begins([{"role": "user", "content": "..."}])[0]


def of_row(row: Mapping[str, Any]) -> Conditioning:
    """What an artifact says."""
    names = tuple(row["names"])
    return Classes(names) if row["kind"] == "classes" else Directions(names, float(row["widest"]))


def _before(message: Message, text: str) -> Message:
    said = message["content"]
    return {**message, "content": text + said if isinstance(said, str) else [{"type": "text", "text": text}, *said]}
