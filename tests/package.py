"""The package's own parts: an example or another test may have registered some of its own by the time tests are collected."""

from __future__ import annotations

from typing import Any

from posttrain.core.config import Config, followed
from posttrain.core.registry import Part, parts

MUST: dict[str, dict[str, Any]] = {}  # parameters that nobody can do without, by part


def package_parts(*stages: str) -> list[Part]:
    """Every part of these stages whose file is in the package, with the default settings for parameters that follow one."""
    own = [p for p in parts(*stages) if p.card.file.startswith("posttrain/")]
    return [p.within(followed(Config())).but(**MUST.get(p.name, {})) for p in own]
