"""The files of a model folder, read as data of a stranger: nothing in them runs code, reads outside the folder or hangs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.core.machine import free_memory

_LARGEST_JSON = 512 << 20  # bytes


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object; a sentence for anything else."""
    try:
        if file.stat().st_size > _LARGEST_JSON:
            raise UserError(f"{file} has {file.stat().st_size:,} bytes; a configuration is smaller")
        out = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError:
        raise UserError(f"{file} cannot be read as JSON: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON: {one_line(error)}") from None
    if not isinstance(out, dict):
        raise UserError(f"{file} holds a {type(out).__name__}, expected a JSON object")
    return out


def one_line(error: object, most: int = 200) -> str:
    """The text of an error as a part of a sentence."""
    text = " ".join(str(error).split()).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - 3]}..."


def weight_files(folder: Path) -> list[Path]:
    """model.safetensors, or the shards that the index lists: a folder may hold the same weights a second time."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    listed = read_json(index).get("weight_map", {})
    if not isinstance(listed, dict) or not all(isinstance(n, str) for n in listed.values()):
        raise UserError(f"weight_map in {index} is not a table of file names; download the model again")
    names = sorted(set(listed.values()))
    odd = [n for n in names if Path(n).name != n or not n.endswith(".safetensors") or "\0" in n]
    if odd:
        raise UserError(f"{index} names {odd[0][:80]!r}, which is no .safetensors file of that folder; it is not read")
    absent = [n for n in names if not (folder / n).is_file()]
    if absent:
        raise UserError(f"{folder} lacks {', '.join(absent[:3])}, which its index names; download it again")
    return [folder / n for n in names]


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a folder's safetensors files; nothing else is ever read, so loading runs no code."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = weight_files(folder)
    if not files:
        raise UserError(f"no .safetensors file in {folder}; pickled weights are not read, convert them first")
    out: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            out |= load_file(file)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise UserError(f"{file} is damaged or not a safetensors file: {one_line(error)}") from None
    return out


def check_memory(folder: Path, parameters: int, dtype: torch.dtype) -> None:
    """Refuse a model that cannot be held: its weights as they are on the disk, and once more in the type asked for."""
    on_disk = sum(f.stat().st_size for f in weight_files(folder))
    needed, free = on_disk + parameters * max(4, dtype.itemsize), free_memory()
    if free is not None and needed > free:
        raise UserError(
            f"loading {folder} takes about {_size(needed)} of memory ({parameters / 1e6:,.0f}M parameters, {_size(on_disk)} of "
            f"files), and {_size(free)} are free; use a smaller --model, or a machine with more memory"
        )


def _size(n: float) -> str:
    return f"{n / 1e9:,.1f} GB" if n >= 1e8 else f"{n / 1e6:,.1f} MB"
