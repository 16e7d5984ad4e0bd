"""A slice of the HTTP fuzzer, and the fuzzer itself: it must see what it looks for."""

from __future__ import annotations

import pytest

from posttrain.serving import openai
from tests.fuzz.http import fuzz_http, judge


def test_hostile_requests_are_refused_with_a_sentence() -> None:
    assert fuzz_http(0, 40) == []


def test_the_fuzzer_sees_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = openai.sampling
    monkeypatch.setattr(openai, "sampling", lambda body: whole(body) if len(body) < 4 else 1 / 0)  # proper ones have 3
    assert any("status 500" in failure for failure in fuzz_http(0, 25))


def test_a_reply_is_judged() -> None:
    body = b'HTTP/1.1 400 Bad Request\r\n\r\n{"error": {"message": "%s"}}'
    assert judge(body % b"top_k is 3") is None and judge(b"") is None
    assert judge(body % b"") and judge(body % (b"x" * 701)) and judge(b"HTTP/1.1 500 x\r\n\r\n") and judge(b"TIMEOUT")
    assert judge(b"HTTP/1.1 400 x\r\n\r\nTraceback (most recent call last)")
