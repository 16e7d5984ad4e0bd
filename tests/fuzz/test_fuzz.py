"""A slice of the fuzz suite (`make fuzz` is the whole), and the suite itself: it must see what it looks for."""

from __future__ import annotations

import pytest

from posttrain.core import config as config_file
from posttrain.core.errors import UserError
from posttrain.rewards.runtime import calls, outcome
from tests.fuzz import judge
from tests.fuzz.__main__ import DOMAINS, fuzz, fuzzer
from tests.fuzz.rewards import fuzz_rewards
from tests.fuzz.settings import fuzz_settings

SLICE = {
    "settings": 250,
    "data": 250,
    "rewards": 60,
    "models": 25,
    "runs": 10,
}  # HTTP has its own: tests/serving/test_fuzz.py


@pytest.mark.parametrize("domain", SLICE)
def test_a_slice(domain: str) -> None:
    assert fuzzer(domain)(0, SLICE[domain]) == []


def test_every_domain_is_known() -> None:
    assert set(SLICE) | {"http"} == set(DOMAINS)
    assert all(callable(fuzzer(domain)) for domain in SLICE)
    tries, failures = fuzz(0.0, 3, ["settings"])  # at least one batch each, however little time there is
    assert tries == {"settings": DOMAINS["settings"]} and failures == []


def test_it_sees_settings_that_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_file, "check_fields", lambda config: None)
    assert any("was accepted" in f or "TypeError" in f for f in fuzz_settings(0, 60))


def test_it_sees_rewards_that_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "shown", repr)
    monkeypatch.setattr(outcome, "caught", lambda error: (_ for _ in ()).throw(error))
    monkeypatch.setattr(calls, "run_items", lambda fn, n, *rest: [fn(i) for i in range(n)])  # guards what is called too
    assert fuzz_rewards(0, 80)


def test_the_judge_by_hand() -> None:
    def refuse(text: str) -> None:
        raise UserError(text)

    assert judge.tried(lambda: None) is None and judge.tried(lambda: refuse("no such thing; use another")) is None
    assert "no sentence" in str(judge.tried(lambda: refuse("")))
    assert "ZeroDivisionError" in str(judge.tried(lambda: 1 / 0))
    assert "ends Python" in str(judge.tried(lambda: exit(0)))
    assert judge.commanded("lst") is None and judge.commanded("--version") is None


def test_a_hang_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def forever() -> None:
        while True:
            pass

    with pytest.raises(judge.Hang), judge.limit(0.05):
        forever()
