"""One thread a test process: tests run side by side, and threads that wait for one another cost more than they give."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

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


def pytest_collection_modifyitems(items: list) -> None:
    """Files that take long go first: the other process has work while they run, and nobody waits for them at the end."""
    items.sort(key=lambda item: next((i for i, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG)))
