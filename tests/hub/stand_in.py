"""A stand-in for the Hugging Face hub on this machine: the few routes of its HTTP API that the client uses here.

Repositories are folders: models/ORG/NAME and datasets/ORG/NAME, and for a data set's own Parquet copies datasets/ORG/NAME@parquet. One
whose name begins with "private" wants the token. `asked` lists every request, and an upload becomes files of its repository.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_token_of_the_stand_in"
SHA = "0" * 39 + "1"
PARQUET = "refs/convert/parquet"


class StandIn(ThreadingHTTPServer):
    """Serves `root`; use as a context, its address is `url`."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root, self.asked = root, list[tuple[str, str]]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> StandIn:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class Missing(Exception):
    """What the hub says of something that is not there: a status and its error code."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def log_message(self, *args: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.command, path))
        try:
            if path.startswith("api/"):
                self.send(json.dumps(self.api(path.split("/")[1:], body)).encode())
            else:
                self.file(path.split("/"))
        except Missing as error:
            status, code = error.args
            self.send(json.dumps({"error": code}).encode(), status, {"X-Error-Code": code, "X-Error-Message": code})

    def send(self, data: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    # ---- repositories

    def repository(self, kind: str, name: str, revision: str = "main") -> Path:
        folder = self.server.root / kind / name
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if not folder.is_dir() or (folder.name.startswith("private") and not known):
            raise Missing(404 if known else 401, "RepoNotFound")
        if revision in ("main", SHA):
            return folder
        copy = folder.with_name(f"{folder.name}@parquet")
        if revision != PARQUET or not copy.is_dir():
            raise Missing(404, "RevisionNotFound")
        return copy

    def file(self, words: list[str]) -> None:
        """[datasets/]ORG/NAME/resolve/REVISION/FILE"""
        kind = "datasets" if words[0] == "datasets" else "models"
        words = words[1:] if kind == "datasets" else words
        name, rest = "/".join(words[:2]), words[3:]
        parquet = rest[:3] == PARQUET.split("/")
        revision, inside = (PARQUET, rest[3:]) if parquet else (rest[0], rest[1:])
        folder = self.repository(kind, name, revision)
        path = folder.joinpath(*inside)
        if not path.is_file():
            raise Missing(404, "EntryNotFound")
        data = path.read_bytes()
        tags = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}
        self.send(data, 200, tags | {"Content-Type": "application/octet-stream"})

    # ---- the API

    def api(self, words: list[str], body: bytes) -> Any:
        if words == ["repos", "create"]:
            return self.create(json.loads(body))
        if words[0] not in ("models", "datasets") or len(words) < 3:
            return {}
        kind, name, verb, revision = words[0], "/".join(words[1:3]), (words + ["revision"])[3], "/".join(words[4:])
        if verb in ("preupload", "commit") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Missing(401, "RepoNotFound")
        folder = self.repository(kind, name, revision or "main")
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        if verb == "preupload":
            asked = json.loads(body)["files"]
            return {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]}
        if verb == "commit":
            return self.commit(folder, body)
        if verb == "tree":
            return [
                {"type": "file", "path": str(p.relative_to(folder)), "size": p.stat().st_size, "oid": "0" * 40}
                for p in files
            ]
        return {
            "id": name, "sha": SHA, "private": folder.name.startswith("private"), "tags": [], "downloads": 0, "likes": 0,
            "siblings": [{"rfilename": str(p.relative_to(folder))} for p in files],
        }  # fmt: skip

    def create(self, asked: dict[str, Any]) -> Any:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Missing(401, "RepoNotFound")
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        (self.server.root / "models" / name).mkdir(parents=True, exist_ok=True)
        return {"url": f"{self.server.url}/{name}", "name": name, "id": name}

    def commit(self, folder: Path, body: bytes) -> Any:
        for line in body.decode().splitlines():
            said = json.loads(line)
            if said["key"] == "file":
                path = folder / said["value"]["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(base64.b64decode(said["value"]["content"]))
        where = f"{self.server.url}/{folder.parent.name}/{folder.name}/commit/{SHA}"
        return {"success": True, "commitOid": SHA, "commitUrl": where, "hookOutput": ""}
