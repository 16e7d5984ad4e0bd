"""Kernels equal their plain-torch versions, values and gradients: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

from benchmarks import compare_kernels

KERNELS = (
    "attend", "rotate and store", "silu and mul", "add and norm", "embed", "norm of", "pick", "sum and norm", "rotate and gather",
    "likelihood", "answers",
)  # fmt: skip
GPU = torch.cuda.is_available()


def triton() -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in version("triton").split(".")[:2])
    except PackageNotFoundError:
        return (0,)


@pytest.mark.skipif(
    triton() < ((3, 0) if GPU else (3, 7)),
    reason="no GPU with Triton, and the interpreter needs Triton 3.7 or newer: older ones fail with a current numpy",
)
def test_kernels_equal_their_plain_versions() -> None:
    env = os.environ | {"OMP_NUM_THREADS": "1"} | ({} if GPU else {"TRITON_INTERPRET": "1"})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.compare_kernels", "--device", "cuda" if GPU else "cpu"],
        env=env, cwd=Path(compare_kernels.__file__).parents[1], capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    gaps = json.loads(done.stdout)
    assert {name for name, gap in gaps.items() if not gap < 2e-5} == set()
    assert not [k for k in KERNELS if not any(name.startswith(k) for name in gaps)]


def test_without_a_kernel_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_kernels, "use_kernels", lambda x: False)
    with pytest.raises(SystemExit, match="TRITON_INTERPRET"):
        compare_kernels.compare_all("cpu")
