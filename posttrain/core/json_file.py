"""Small JSON files of a run: an object, or one sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError


def read_object(path: Path) -> dict[str, Any] | None:
    """The object that a file holds; None where there is no file."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}); take it away, or start over with --fresh"
        ) from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds a {type(found).__name__}, expected a JSON object; take it away, or use --fresh")
    return found


def strict(x: Any) -> Any:
    """Strict JSON has no NaN: null."""
    if isinstance(x, dict):
        return {k: strict(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [strict(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
