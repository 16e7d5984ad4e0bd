"""Weights published by version, for samplers in other processes: versions/<v>/weights.safetensors and its hash.

Version v is the policy after v steps. It is written once and hashed while it is written; workers on this machine read it from the
page cache, those elsewhere from a shared disk. With adapters only these are written: a worker has the frozen weights already.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy
from posttrain.runs.checkpoint import disk_errors, write_atomic
from posttrain.runs.tables import intact, read_table, size_of, write_table

FOLDER = "versions"
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_FILE, _FACTS = "weights.safetensors", "facts.json"


@dataclass(frozen=True)
class Version:
    """Where the weights of a version lie, and the hash of what is there."""

    number: int
    path: str
    digest: str


class Versions:
    """The versions that are on the disk; each is whole or not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[int, Version] = {}

    def publish(self, number: int, policy: Policy) -> Version:
        """Write the weights as they are now; what a run before a restart left under this number is replaced."""
        table = sampled(policy)
        target = self.folder / f"{number:06d}"
        temporary = self.folder / f".tmp-{target.name}"
        with disk_errors(self.folder, size_of({"weights": table}), temporary):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            facts = write_table(temporary / _FILE, table)
            write_atomic(temporary / _FACTS, json.dumps(facts))
            shutil.rmtree(target, ignore_errors=True)
            os.rename(temporary, target)
        self.known[number] = found = Version(number, str(target / _FILE), facts["pieces"])
        return found

    def find(self, number: int) -> Version:
        """A version that was published, now or before a restart; a sentence where it is gone."""
        if number in self.known:
            return self.known[number]
        path = self.folder / f"{number:06d}"
        try:
            facts = json.loads((path / _FACTS).read_text())
            whole = intact(path / _FILE, facts)
        except (OSError, ValueError, KeyError):
            whole = False
        if not whole:
            raise UserError(
                f"answers that were being made need version {number} of the weights, and {path} is missing or damaged; put it "
                "back, or use another --name, or --fresh to start over"
            )
        self.known[number] = found = Version(number, str(path / _FILE), facts["pieces"])
        return found

    def forget(self, keep: Collection[int]) -> None:
        """Drop all others."""
        for path in self.folder.glob("[0-9]*"):
            if path.name.isdigit() and int(path.name) not in keep:
                shutil.rmtree(path, ignore_errors=True)
                self.known.pop(int(path.name), None)


def sampled(policy: Policy) -> dict[str, Tensor]:
    """The weights that a sampler must have to act like this policy: no critic, tied ones once, with adapters only those that learn."""
    own = {n: p for n, p in policy.named_parameters() if not n.startswith("critic.")}
    state = whole_state(policy)
    adapted = any(not p.requires_grad for p in own.values())
    seen: set[int] = set()
    out = {}
    for name, x in state.items():
        learns = name in own and own[name].requires_grad
        if name.startswith("critic.") or (adapted and not learns) or (x.data_ptr() in seen and x.numel()):
            continue
        seen.add(x.data_ptr())
        out[name] = x.detach()
    return out


def whole_state(policy: Any) -> dict[str, Tensor]:
    """Every tensor of the policy; where its weights are in rows, those of the whole copy that samples, which is up to date by then."""
    copy = getattr(policy, "whole", None)
    if copy is None:
        found: dict[str, Tensor] = policy.state_dict()
        return found
    rest = dict(
        policy.named_parameters(recurse=False)
    )  # not its state_dict, which lets gathered layers go: all processes do that, or none
    for child, part in policy.named_children():
        if child not in ("model", "critic"):
            rest |= {f"{child}.{n}": x for n, x in part.state_dict().items()}
    return {f"model.{n}": x for n, x in copy.copy.state_dict().items()} | rest


def newest(folder: Path) -> Version | None:
    """The newest version that lies in a folder, whole; None where there is none, as on a machine that does not see the run's disk."""
    numbers = sorted((p.name for p in folder.glob("[0-9]*") if p.name.isdigit()), key=int)
    for name in reversed(numbers):
        try:
            facts = json.loads((folder / name / _FACTS).read_text())
            return Version(int(name), str(folder / name / _FILE), facts["pieces"])
        except (OSError, ValueError, KeyError):
            continue
    return None


@torch.no_grad()
def load(policy: Any, path: str, data: Any = None) -> None:
    """The weights of a version into a policy that was made from the same settings; from the file, or from its bytes."""
    table = read_table(Path(path)) if data is None else read_bytes(data)
    missing, unexpected = policy.load_state_dict(table, strict=False)
    wanted = set(sampled(policy)) - set(table)
    if unexpected or (wanted & set(missing)):
        raise UserError(
            f"the weights in {path} are of another model than this worker has: missing {sorted(wanted & set(missing))[:3]}, "
            f"unexpected {list(unexpected)[:3]}; the worker must have the same --model"
        )


def read_bytes(data: Any) -> dict[str, Tensor]:
    """The tensors of a safetensors file that is in memory (an array of Ray's object store), without another copy."""
    view = memoryview(data)
    size = int.from_bytes(view[:8], "little")
    header = json.loads(bytes(view[8 : 8 + size]))
    header.pop("__metadata__", None)
    out = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the array cannot be written to, and nobody does
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            kind, shape = DTYPES[entry["dtype"]], entry["shape"]
            raw = view[8 + size + start : 8 + size + end]
            out[name] = (
                torch.frombuffer(raw, dtype=kind).reshape(shape) if end > start else torch.empty(shape, dtype=kind)
            )
    return out
