"""Data sets of the Hugging Face hub by id: `task("openai/gsm8k(subset='main')")`. Only data files are read, never code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.environments.rows import FORMATS, Files

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PARQUET = "refs/convert/parquet"  # the hub's own copy of a data set: <subset>/<split>/0000.parquet
_SPLIT = re.compile(r"(?:^|[/_-])(train|test|validation|valid|val|dev|eval)(?=[/._-]|$)")


def is_hub_id(spec: str) -> bool:
    """`org/name`, where no file or folder of that name is here."""
    return _ID.fullmatch(spec) is not None and not Path(spec).exists()


def hub_splits(spec: str, subset: str = "") -> dict[str, Files]:
    """split -> files on this disk, downloaded unless they are there already."""
    revision, files = _listed(spec)
    by_split = _chosen(spec, _subsets(files) if revision == _PARQUET else {"": _named(files)}, subset)
    return {split: Files(_download(spec, file, revision) for file in some) for split, some in by_split.items()}


def _listed(spec: str) -> tuple[str, list[str]]:
    """(revision, its data files): those that the hub converted to Parquet, else those of the data set itself."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionNotFoundError

    for revision in (_PARQUET, "main"):
        try:
            about = HfApi().dataset_info(
                spec, revision=revision, timeout=20
            )  # one request: listing a tree tries for half a minute
            files = [file.rfilename for file in about.siblings or ()]
        except RevisionNotFoundError:
            continue
        except Exception as error:  # all network and hub failures mean the same to the user
            files = _cached(spec, revision)
            if not files:
                raise _absent(spec, error) from None
        found = sorted(f for f in files if f.removesuffix(".gz").endswith(FORMATS))
        if found:
            return revision, found
    raise UserError(f"the data set {spec!r} of the hub has no file that can be read ({', '.join(FORMATS)})")


def _cached(spec: str, revision: str) -> list[str]:
    """Files that an earlier run downloaded; none without."""
    from huggingface_hub import snapshot_download

    try:
        root = Path(snapshot_download(spec, repo_type="dataset", revision=revision, local_files_only=True))
    except Exception:
        return []
    return [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]


def _absent(spec: str, error: Exception) -> UserError:
    return UserError(
        f"cannot get the data set {spec!r} from the hub ({type(error).__name__}); check the id and the connection, or name a "
        "file or a folder of yours: --task train.jsonl"
    )


def _download(spec: str, file: str, revision: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(spec, file, repo_type="dataset", revision=revision))
    except Exception as error:
        raise _absent(spec, error) from None


def _subsets(files: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """subset -> split -> files, from the layout of the hub's Parquet copies."""
    out: dict[str, dict[str, list[str]]] = {}
    for file in files:
        subset, _, rest = file.partition("/")
        split = rest.partition("/")[0].removeprefix("partial-")
        out.setdefault(subset, {}).setdefault(split, []).append(file)
    return out


def _named(files: Iterable[str]) -> dict[str, list[str]]:
    """split -> files, by the names of the files; one that names no split is for training."""
    out: dict[str, list[str]] = {}
    for file in files:
        hit = _SPLIT.search(file.lower())
        out.setdefault(hit[1] if hit else "train", []).append(file)
    return out


def _chosen(spec: str, subsets: Mapping[str, dict[str, list[str]]], subset: str) -> dict[str, list[str]]:
    """The splits of the subset asked for; of the only one, or the one called default, where none was."""
    known = [s for s in subsets if s]
    if subset and subset not in known:
        raise unknown(f"subset of {spec}", subset, known)
    name = subset or ("default" if "default" in subsets else next(iter(subsets)) if len(subsets) == 1 else "")
    if name not in subsets:
        told: Any = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
        raise UserError(f"{spec} has several subsets: {told}; name one, like --task \"{spec}(subset='{known[0]}')\"")
    return subsets[name]
