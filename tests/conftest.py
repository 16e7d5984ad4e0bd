"""One thread a test process: tests run side by side, and threads that wait for one another cost more than they give."""

import os
import threading
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

torch.set_num_threads(1)

LONG = (  # the longest first
    "tests/distributed/test_ranks.py",
    "tests/kernels",
    "tests/page/test_browser.py",
    "tests/policies/test_examples.py",
    "tests/methods/test_methods.py",
    "tests/docs/test_snippets.py",
    "tests/runs/test_resume.py",
    "tests/policies/test_policies.py",
    "tests/distributed",
    "tests/methods/test_rlhf_workflow.py",
    "tests/fuzz",
    "tests/hub",
    "tests/cli",
)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What references say of data is kept beside the tests' other files, not in the user's cache."""
    from posttrain.weights import known

    folder = tmp_path_factory.mktemp("reference")
    known.place = lambda: folder


def pytest_collection_modifyitems(items: list) -> None:
    """Files that take long go first: the other process has work while they run, and nobody waits for them at the end."""
    items.sort(key=lambda item: next((i for i, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG)))


def pytest_sessionfinish() -> None:
    """Wait for threads that a test has left in the middle of a computation: one that is in torch when the interpreter ends aborts the
    process ("terminate called without an active exception"), though every test has passed."""
    until, quiet = time.monotonic() + 30, 0
    while quiet < 3 and time.monotonic() < until:
        quiet = 0 if any(map(_computes, threading.enumerate())) else quiet + 1
        time.sleep(0.01)


def _computes(thread: threading.Thread) -> bool:
    """Whether it runs or would like to; where the kernel does not say, it does not."""
    try:
        state = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return thread is not threading.main_thread() and state == "R"
