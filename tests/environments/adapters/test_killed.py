"""Kill -9 inside an episode of another package's environment, the same command again: the same bits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium", reason="needs the extra: pip install 'posttrain[gym]'")
ROOT = Path(__file__).parents[3]


def test_killed_in_an_episode_and_resumed_to_the_bit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.environments.adapters.cliff_run", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["whole"] == 0 and found["codes"] == [-signal.SIGKILL] * 3 + [0], done.stderr
    whole, killed = found["ends"]
    assert (
        whole == killed
        and whole["turns"] > 30
        and whole["files"]["weights.safetensors"] != whole["files"]["reference.safetensors"]
    )
