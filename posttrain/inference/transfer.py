"""Copies small tables from the host to the device without waiting for the work that is queued there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = Tensor | NDArray[np.generic] | Sequence[int] | Sequence[bool] | Sequence[tuple[int, int]]


def to_device(values: Values, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor on the device. The copy goes through pinned memory: from pageable memory it would first wait until all decode
    steps that were launched have finished."""
    host = torch.as_tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
