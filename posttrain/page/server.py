"""`posttrain view`: uvicorn in front of the page."""

from __future__ import annotations

from urllib.parse import quote

import uvicorn

from posttrain.core.errors import UserError
from posttrain.page.app import App
from posttrain.page.chat import Chat
from posttrain.page.folder import Folder
from posttrain.serving.address import Listening, listen, loopback

PORT = 8765
GRACE_SECONDS = 1  # for replies in progress when the page is closed
CONNECTIONS = 512


def require_key(host: str, key: str) -> None:
    """An address that other machines can reach needs a key."""
    if not loopback(host) and not key:
        raise UserError(
            f"{host!r} can be reached by other machines, and there is no key; add --api-key KEY (or set POSTTRAIN_API_KEY), "
            "or leave --host out to show the page on this machine only"
        )


class Page(Listening):
    """Listens on host and port (None: PORT, or any free one where that is taken)."""

    thread_name = "posttrain-page"

    def __init__(
        self, folder: Folder, host: str = "127.0.0.1", port: int | None = None, key: str = "", chat: Chat | None = None
    ) -> None:
        require_key(host, key)
        self.host, self.key = host, key
        try:
            self.socket = listen(host, PORT if port is None else port)
        except UserError:
            if port is not None:
                raise
            self.socket = listen(host, 0)
        self.port = int(self.socket.getsockname()[1])
        self.app = App(folder, self.port, key, chat)
        config = uvicorn.Config(
            self.app.asgi, http="h11", ws="none", lifespan="off", loop="asyncio", interface="asgi3", log_config=None,
            log_level="critical", access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=GRACE_SECONDS,
            limit_concurrency=CONNECTIONS, h11_max_incomplete_event_size=64 << 10,
        )  # fmt: skip
        self.uvicorn = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """What to open; with its key, where it needs one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/" + (f"?key={quote(self.key, safe='')}" if self.key else "")
