"""A server of the built-in model for the tests of one file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from posttrain.policies.load import load_model
from posttrain.serving.server import Server
from posttrain.serving.service import Service
from tests.serving.serving import start


@pytest.fixture(scope="module")
def policy() -> Any:
    return load_model("pocket", "cpu")


@pytest.fixture(scope="module")
def server(policy: Any) -> Iterator[Server]:
    started = start(Service(policy, "pocket"))
    yield started
    started.stop()
    started.service.close()
