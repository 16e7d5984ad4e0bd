"""Why the Hugging Face hub did not give or take something, in words: no such id, no right to it, or no connection."""

from __future__ import annotations

import os
from typing import Any

_CLOSED = ("RepositoryNotFoundError", "GatedRepoError", "DisabledRepoError")  # the hub hides what one may not see
_TOKEN = "type `hf auth login`, or export HF_TOKEN=hf_..."


def is_closed(error: BaseException | None) -> bool:
    """Whether the hub was reached and said that there is nothing of that name for whoever asked."""
    return error is not None and type(error).__name__ in _CLOSED


def hint(error: BaseException | None) -> str:
    """What to do about an error of the hub's client."""
    if not is_closed(error):
        return "check the connection"
    if has_token():
        return "check the id, and that your token may read it where it is private or gated"
    return f"check the id; where it is private or gated, a token is needed: {_TOKEN}"


def has_token() -> bool:
    """Whether the client has a token, its own or of the environment."""
    from huggingface_hub import get_token

    return get_token() is not None


def bounded(seconds: float = 20.0) -> None:
    """No request of the client waits longer than this for the next byte (HF_HUB_ETAG_TIMEOUT, where that is set): by itself some wait for
    ever, on a hub that takes a connection and says nothing."""
    from huggingface_hub import get_session

    most = float(os.environ.get("HF_HUB_ETAG_TIMEOUT", seconds))

    def limit(request: Any) -> None:
        given = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {k: given.get(k) or most for k in ("connect", "read", "write", "pool")}

    session = get_session()
    hooks = session.event_hooks
    kept = [h for h in hooks.get("request", []) if getattr(h, "__qualname__", "") != limit.__qualname__]
    session.event_hooks = {**hooks, "request": [*kept, limit]}


def address(name: str) -> str:
    """Where a repository is seen in a browser."""
    return f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/{name}"
