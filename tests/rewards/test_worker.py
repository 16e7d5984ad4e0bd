"""Workers: late ones are killed, dead ones are replaced, errors are told."""

from __future__ import annotations

import time

import pytest

from posttrain.rewards.runtime.worker import Pool, Worker

SCRIPT = """
import json, os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    question = json.loads(line)
    if question["do"] == "die":
        os._exit(1)
    if question["do"] == "sleep":
        time.sleep(60)
    reply = {"error": "ValueError: no"} if question["do"] == "fail" else {"value": os.getpid()}
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def worker(tmp_path):
    script = tmp_path / "echo.py"
    script.write_text(SCRIPT)
    made = Worker(script)
    yield made
    made.close()


def test_one_process_answers_many_questions(worker):
    assert worker.ask({"do": "answer"}, 60) == worker.ask({"do": "answer"}, 60)


def test_late_is_killed_and_replaced(worker):
    first = worker.ask({"do": "answer"}, 60)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        worker.ask({"do": "sleep"}, 0.2)
    assert time.monotonic() - began < 30  # it sleeps for 60
    assert worker.process is None
    assert worker.ask({"do": "answer"}, 60) != first


def test_dead_is_told_and_replaced(worker):
    with pytest.raises(RuntimeError, match="died"):
        worker.ask({"do": "die"}, 5)
    assert worker.ask({"do": "answer"}, 60) > 0


def test_an_error_is_told_and_the_process_lives(worker):
    first = worker.ask({"do": "answer"}, 60)
    with pytest.raises(RuntimeError, match="ValueError: no"):
        worker.ask({"do": "fail"}, 5)
    assert worker.ask({"do": "answer"}, 60) == first


def test_a_script_that_does_not_start_is_told(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit(1)")
    with pytest.raises(RuntimeError, match="broken died"):
        Worker(script).ask({}, 5)


def test_a_neighbour_does_not_shadow_the_standard_library(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit(1)")
    script = tmp_path / "echo.py"
    script.write_text(SCRIPT)
    made = Worker(script)
    assert made.ask({"do": "answer"}, 5) > 0
    made.close()


def test_a_pool_gives_a_worker_to_one_at_a_time(tmp_path):
    script = tmp_path / "echo.py"
    script.write_text(SCRIPT)
    pool = Pool(script, 2)
    with pool.worker() as a, pool.worker() as b:
        assert a is not b
        assert a.ask({"do": "answer"}, 5) != b.ask({"do": "answer"}, 5)
    pool.close()
    assert a.process is None and b.process is None
