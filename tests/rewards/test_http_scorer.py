"""The HTTP scorer against a service in a thread: batches, memory, retries, rate, token, breaker, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from claims.worlds.service import serving
from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.core.types import Prompt
from posttrain.policies.chat_api import retry_after
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.scorers.http_scorer import parse


class Service:
    """Scores a text by its length; `plan` is what it does first: a status, or a body instead of scores."""

    def __init__(self, *plan: Any) -> None:
        self.plan, self.asked, self.headers = list(plan), [], []

    def __call__(self, items: list[dict[str, str]], headers: dict[str, str]) -> tuple[int, Any]:
        self.asked.append([item["text"] for item in items])
        self.headers.append(headers)
        if self.plan:
            now = self.plan.pop(0)
            return now if isinstance(now, tuple) else (200, now)
        return 200, {"scores": [len(item["text"]) for item in items]}


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += [seconds] if seconds else []

    def scorer(self, url: str, **params: Any) -> Any:
        part = find("http_scorer", "reward").but(url=url, sleep=self.sleep, clock=lambda: self.now, **params)
        return part.live()


def ask(scorer: Any, *texts: str) -> list[float]:
    return scorer([Prompt.text("p", "?")] * len(texts), list(texts))


def test_batches_and_memory() -> None:
    service, clock = Service(), Clock()
    with serving(service) as url:
        scorer = clock.scorer(url, batch=2)
        assert ask(scorer, "a", "bb", "a", "ccc") == [1.0, 2.0, 1.0, 3.0]
        assert service.asked == [["a", "bb"], ["ccc"]]  # the same text once, two to a request
        assert ask(scorer, "ccc", "dddd") == [3.0, 4.0] and service.asked[2:] == [["dddd"]]
        assert (scorer.requests, scorer.hits) == (3, 2)
        other = scorer([Prompt.text("q", "another question")], ["a"])
        assert other == [1.0] and service.asked[3:] == [["a"]]  # the prompt is part of the question


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    service = Service()
    with serving(service) as url:
        scorer = Clock().scorer(url, keep=2)
        ask(scorer, "a", "b")
        ask(scorer, "a")  # now b is the oldest
        ask(scorer, "c")
        assert [text for _, text in scorer.known] == ["a", "c"]


def test_retries_wait_twice_as_long_each_time() -> None:
    service, clock = Service((503, {}), (429, {}), (500, {})), Clock()
    with serving(service) as url:
        assert ask(clock.scorer(url, wait=0.5, rate=1e9), "abc") == [3.0]
    assert [x for x in clock.slept if x > 1e-6] == [0.5, 1.0, 2.0] and len(service.asked) == 4


def test_retry_after_is_kept() -> None:
    service, clock = Service((429, {"headers": {"Retry-After": "7"}})), Clock()
    with serving(service) as url:
        assert ask(clock.scorer(url, rate=1e9), "abc") == [3.0]
    assert [x for x in clock.slept if x > 1e-6] == [7.0]
    assert retry_after(ValueError()) == 0.0


def test_what_fails_for_good_is_nan_and_not_remembered() -> None:
    service = Service((503, {}), (503, {}))
    with serving(service) as url:
        scorer = Clock().scorer(url, retries=1)
        assert math.isnan(ask(scorer, "a")[0]) and scorer.failed == 1 and not scorer.known
        assert ask(scorer, "a") == [1.0]


def test_a_refusal_is_not_repeated() -> None:
    service = Service((401, {}))
    with serving(service) as url:
        assert math.isnan(ask(Clock().scorer(url), "a")[0])
    assert len(service.asked) == 1


def test_one_bad_score_is_nan_and_a_nonsensical_reply_is_retried() -> None:
    service = Service({"scores": [1.0]}, {"answer": 3}, ["x"], {"scores": [2.0, None]})
    with serving(service) as url:
        good, bad = ask(Clock().scorer(url), "a", "b")
    assert good == 2.0 and math.isnan(bad) and len(service.asked) == 4
    assert parse(b'{"scores": [1, NaN, "x"]}', 3)[0] == 1.0 and math.isnan(parse(b'{"scores": [NaN]}', 1)[0])


def test_rate() -> None:
    # 3 requests at 2 a second: the first at once, the others half a second apart
    service, clock = Service(), Clock()
    with serving(service) as url:
        ask(clock.scorer(url, batch=1, rate=2.0), "a", "b", "c")
    assert clock.slept == pytest.approx([0.5, 0.5])


def test_breaker() -> None:
    # 2 failed requests in a row: left alone for 30 s, then asked again
    service, clock = Service((503, {}), (503, {})), Clock()
    with serving(service) as url:
        scorer = clock.scorer(url, retries=0, patience=2, rest=30.0, rate=1e9)
        for text in "abcd":
            assert math.isnan(ask(scorer, text)[0])
        assert len(service.asked) == 2
        clock.now += 31
        assert ask(scorer, "ee") == [2.0]


def test_nobody_there() -> None:
    clock = Clock()
    assert math.isnan(ask(clock.scorer("http://127.0.0.1:1/score", retries=1, timeout=2.0), "a")[0])


def test_token_and_no_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORER_TOKEN", "abc")
    elsewhere, service = Service(), Service()
    with serving(elsewhere) as other, serving(service) as url:
        scorer = Clock().scorer(url, token_env="SCORER_TOKEN", retries=0)
        ask(scorer, "a")
        assert service.headers[0]["Authorization"] == "Bearer abc"
        service.plan = [(302, {"headers": {"Location": other}})]
        assert math.isnan(ask(scorer, "b")[0]) and elsewhere.asked == []
    monkeypatch.delenv("SCORER_TOKEN")
    with pytest.raises(UserError, match="export SCORER_TOKEN"):
        Clock().scorer("http://x/", token_env="SCORER_TOKEN")


def test_addresses() -> None:
    for url in ("", "file:///etc/passwd", "localhost:8000"):
        with pytest.raises(UserError, match="scoring service"):
            RewardSum([("s", find("http_scorer", "reward").but(url=url), 1.0)])


def test_in_a_scorer_a_failure_masks() -> None:
    service = Service({"scores": [1.0, None]})
    with serving(service) as url:
        part = find("http_scorer", "reward").but(url=url, rate=1e6)
        totals, report = RewardSum([("s", part, 2.0)]).texts([Prompt.text("p", "?")] * 2, ["a", "b"])
    assert totals[0] == 2.0 and math.isnan(totals[1]) and report.masked == 1
