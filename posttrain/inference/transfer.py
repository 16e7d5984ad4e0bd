"""Small tables from the host to the device without waiting for what runs there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sent(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor on the device. A plain copy would first wait until all steps that were started have ended: memory that is
    not pinned may change under it."""
    host = torch.as_tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
