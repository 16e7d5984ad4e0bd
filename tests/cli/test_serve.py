"""`serve` as a person starts and ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.cli.conftest import call


def test_it_serves_until_it_is_interrupted() -> None:
    argv = [sys.executable, "-m", "posttrain.cli", "serve", "--port", "0", "--name", "mine", "--quiet"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=os.environ | {"POSTTRAIN_API_KEY": "k"})
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(r"^mine \(native engine on \w+\) at (http://127.0.0.1:\d+/v1)", said)
        assert found, said
        body = {
            "model": "mine",
            "messages": [{"role": "user", "content": "What is 2+3? Answer only."}],
            "temperature": 0,
        }
        headers = {"Authorization": "Bearer k", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{found[1]}/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"] == "5"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read().strip() == "stopped"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--host", "0.0.0.0"], "'0.0.0.0' can be reached by other machines, and there is no key; add --api-key KEY"),
        (["--allow-origin", "*"], "--allow-origin '*' lets any web page use this server; add --api-key KEY"),
        (["--allow-origin", "example.com"], "--allow-origin is 'example.com'; give a scheme and a host"),
        (["--queue", "0"], "--queue is 0; it must be at least 1"),
        (["--port", "99999"], "cannot listen on 127.0.0.1:99999"),
        (["--model", "nope"], "no model named 'nope'"),
        (["--hots", "x"], "did you mean --host?"),
    ],
)
def test_mistakes(argv: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTTRAIN_API_KEY", raising=False)
    said = call("serve", *argv)
    assert said.code == 2 and sentence in said.err and said.err.count("\n") == 1
