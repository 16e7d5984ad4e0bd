"""Addresses to listen on, for `serve` and for the page, which does without torch."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import Any

from posttrain.core.errors import UserError


def loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    made: Any = None
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host.strip("[]"), port))
        made.listen(256)
    except (OSError, OverflowError) as error:
        with contextlib.suppress(AttributeError):
            made.close()
        raise UserError(f"cannot listen on {host}:{port} ({error}); use another --port or --host") from None
    return made  # type: ignore[no-any-return]
