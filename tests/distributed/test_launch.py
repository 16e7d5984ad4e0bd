"""`--gpus N`: what starts the processes, and what it says when one of them ends badly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.core.ranks import Alone, by_lead, dealt, ranks, scored, use
from posttrain.distributed import launch
from posttrain.weights.parallel import company


def process(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


def test_the_command_of_one_process() -> None:
    assert launch.without_gpus(["run", "grpo", "--gpus", "8", "--lr", "1e-5"]) == ["run", "grpo", "--lr", "1e-5"]
    assert launch.without_gpus(["run", "--gpus=8", "grpo"]) == ["run", "grpo"]


@pytest.mark.parametrize(("count", "device", "said"), [(0, "cpu", "at least 1"), (64, "", "at most as many")])
def test_as_many_as_there_are(count: int, device: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        launch.check(count, device)


def test_all_end_well() -> None:
    assert launch.wait([process("pass"), process("pass")]) == 0


def test_one_that_is_killed_ends_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    others = [process("import time; time.sleep(60)"), process("import os; os.kill(os.getpid(), 9)")]
    began = time.monotonic()
    assert launch.wait(others) == 128 + signal.SIGKILL
    assert time.monotonic() - began < 50
    assert others[0].returncode is not None
    assert "process 1 of 2 was killed (signal 9)" in capfd.readouterr().err


def test_the_first_tells_what_was_wrong_itself(capfd: pytest.CaptureFixture[str]) -> None:
    mistake = "import sys; print('--lr is -1', file=sys.stderr); sys.exit(2)"
    assert launch.wait([process(mistake), process("import sys; sys.exit(2)")]) == 2
    told = capfd.readouterr().err
    assert "--lr is -1" in told and "process" not in told


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Processes of `launch` that only wait."""
    made: list[subprocess.Popen[bytes]] = []
    plain = subprocess.Popen

    def popen(command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        if len(made) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        made.append(plain([sys.executable, "-c", "import time; time.sleep(60)"], env=env))
        return made[-1]

    monkeypatch.setattr(launch.subprocess, "Popen", popen)
    return made


def test_what_was_started_ends_where_the_rest_cannot_be(started: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(UserError, match=r"process 2 of 4 could not be started \(.*unavailable\); use fewer --gpus"):
        launch.launch(4, ["run", "grpo"], "cpu")
    assert len(started) == 2 and all(p.returncode is not None for p in started)


def test_a_signal_between_two_starts_leaves_nobody_behind(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = launch.subprocess.Popen

    def stopped(*args: Any, **kwargs: Any) -> Any:
        made = popen(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGTERM)
        return made

    monkeypatch.setattr(launch.subprocess, "Popen", stopped)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher that did not care would go on
    try:
        assert launch.launch(2, ["run", "grpo"], "cpu") == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(started) == 1 and started[0].returncode is not None


def test_no_process_outlives_the_one_that_started_it(tmp_path: Path) -> None:
    """kill -9 of `posttrain run --gpus 2` itself: its processes would train on, and hold the run's folder."""
    child = "from posttrain.distributed.launch import end_with_launcher as e; e(); print('ready', flush=True); import time; time.sleep(60)"
    start = f"""
import os, subprocess, sys
from posttrain.distributed.launch import LAUNCHER
made = subprocess.Popen([sys.executable, "-c", {child!r}], env=os.environ | {{LAUNCHER: str(os.getpid())}})
print(made.pid, flush=True)
made.wait()
"""
    command = [sys.executable, "-c", start]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as launcher:
        assert launcher.stdout is not None
        pid, ready = int(launcher.stdout.readline()), launcher.stdout.readline()
        assert ready == "ready\n"
        launcher.kill()
        end = time.monotonic() + 20
        while running(pid) and time.monotonic() < end:
            time.sleep(0.05)
        gone = not running(pid)
        if not gone:
            os.kill(pid, signal.SIGKILL)
    assert gone


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_pieces_go_to_who_has_least() -> None:
    assert dealt([5.0, 1.0, 1.0, 4.0], 2) == [[0, 2], [1, 3]]
    assert dealt([1.0], 3) == [[0], [], []]
    assert sorted(i for hand in dealt([float(i % 5) for i in range(40)], 7) for i in hand) == list(range(40))


def test_all_do_as_many() -> None:
    assert list(company([3], 3, spare=5)) == [(3, True), (5, False), (5, False)]


class Second(Alone):
    """The second of two, told by the first what it is given."""

    rank, world, lead = 1, 2, False

    def __init__(self, told: object) -> None:
        self.told = told

    def from_lead(self, mine: object) -> object:
        return self.told


def test_a_mistake_that_the_first_meets_is_one_of_all() -> None:
    before = use(Second(("the file is empty", None)))
    try:
        with pytest.raises(UserError, match="the file is empty"):
            by_lead(lambda: 1)
        use(Second(("", 7)))
        assert by_lead(lambda: 1) == 7
    finally:
        use(before)
    assert ranks().world == 1


def test_optimisers_of_whole_matrices_are_refused_where_there_are_rows() -> None:
    from posttrain.weights.sharded import Sharded

    with pytest.raises(UserError, match="muon needs whole matrices"):
        Sharded(Alone()).check_optimiser("muon")


def test_a_plan_is_refused_before_its_processes_share_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import posttrain

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="a plan of several phases"):
        posttrain.run(method="nash-md", runs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_references_that_keep_more_than_a_policy_are_refused_where_there_are_rows() -> None:
    from posttrain.systems.policy_gradient.spo_minimaximalist import averaged
    from posttrain.weights.reference import ema
    from posttrain.weights.sharded import Sharded

    Sharded(Alone()).check_reference(ema.live())
    with pytest.raises(UserError, match="averaged keeps more than one"):
        Sharded(Alone()).check_reference(averaged.live())


class First(Alone):
    """The first of two; the second's share of the rewards is what it is given."""

    rank, world, lead = 0, 2, True

    def __init__(self, other: tuple[str, object]) -> None:
        self.other = other

    def gather(self, mine: object) -> list[object]:
        return [mine, self.other]


def test_shares_of_rewards_are_put_together_and_a_mistake_in_one_is_one_of_all() -> None:
    import torch

    from posttrain.core.types import Group, Prompt, Rollout
    from posttrain.rewards.runtime.score import RewardSum

    asked: list[str] = []
    none = torch.zeros(1)
    prompt = Prompt.text("p", "q")
    groups = [Group(prompt, [Rollout.single(prompt, none.long(), none.long(), none, text=t, index=i) for i, t in enumerate(("a", "bb", "ccc"))])]  # fmt: skip
    scorer = RewardSum([("long", lambda prompt, text: asked.append(text) or float(len(text)), 1.0)])
    before = use(First(("", {"long": ([20.0], 0.5)})))
    try:
        scored_groups, report = scored(scorer, groups)
        assert [r.reward for r in scored_groups[0].rollouts] == [1.0, 20.0, 3.0] and sorted(asked) == ["a", "ccc"]
        assert report.seconds >= 0.5, "of the slower one"
        use(First(("", {"long": (None, 0.0)})))  # it could not be asked there: all of it here
        assert [r.reward for r in scored(scorer, groups)[0][0].rollouts] == [1.0, 2.0, 3.0]
        use(First(("the file of the reward is gone", None)))
        with pytest.raises(UserError, match="the file of the reward is gone"):
            scored(scorer, groups)
        scorer.divides = False  # workers are asked
        asked.clear()
        scored(scorer, groups)
        assert sorted(asked) == ["a", "bb", "ccc"]
    finally:
        use(before)
