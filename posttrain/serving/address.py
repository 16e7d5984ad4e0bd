"""Addresses to listen on, for `serve` and for the page, which does without torch."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from typing import Any, Self

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


class Listening:
    """A uvicorn server on a socket that listens already; served here, or in a thread of its own."""

    socket: socket.socket
    uvicorn: Any
    thread_name = "posttrain-http"
    _thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM (in the main thread) or `stop`."""
        try:
            self.uvicorn.run([self.socket])
        finally:
            self.socket.close()

    def start(self) -> Self:
        """Serve in a thread of its own; connections are taken from now on."""
        self._thread = threading.Thread(target=self.run, name=self.thread_name, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self.uvicorn.should_exit = True
        if self._thread is not None:
            self._thread.join()
