"""One thread a test process: tests run side by side, and threads that wait for one another cost more than they give."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

torch.set_num_threads(1)

LONG = (
    "tests/kernels",
    "tests/policies/test_examples.py",
    "tests/docs/test_snippets.py",
    "tests/runs/test_resume.py",
    "tests/fuzz",
)


def pytest_collection_modifyitems(items: list) -> None:
    """Files that take long go first: the other process has work while they run, and nobody waits for them at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
