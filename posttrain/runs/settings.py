"""The settings of a run as its folder keeps them: reading them, names of files, and what differs from what is asked now."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

from posttrain.core.config import Config, differences, to_dict
from posttrain.core.errors import UserError

_LONGEST = 200  # bytes of a name: file systems allow 255, and checkpoints are written under a longer one
_SLUG = re.compile(r"[^A-Za-z0-9_.+-]+")


def check_name(name: str) -> str:
    """Names of runs, phases and artifacts become file names."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name):
        raise UserError(f"{name[:60]!r} cannot be a file name here; use letters, digits, and . _ + -")
    if len(name) > _LONGEST:
        raise UserError(f"the name {name[:30]}... has {len(name)} characters; a file name has at most {_LONGEST} here")
    return name


def made_name(*words: str) -> str:
    """A name made from other names (method, task, model): what cannot be in a file name becomes a dash, and it is cut if long."""
    name = "-".join(_SLUG.sub("-", word).strip("-") for word in words).lstrip(".+-") or "run"
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 11]}-{digest(name)}"


def digest(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:10]


def read_config(folder: Path) -> dict[str, Any]:
    """The settings a run was started with."""
    try:
        settings = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise UserError(f"no run in {folder}: there is no config.json") from None
    except (OSError, ValueError, RecursionError):
        raise UserError(
            f"{folder / 'config.json'} is not JSON; start over with --fresh, or use another --name"
        ) from None
    if not isinstance(settings, dict):
        raise UserError(f"{folder / 'config.json'} holds no settings; start over with --fresh, or use another --name")
    return settings


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run: its database, or the settings of one whose database is gone."""
    return is_database(folder / "run.sqlite") or has_settings(folder)


def is_database(file: Path) -> bool:
    """Whether a file is the database of a run."""
    if not file.is_file():
        return False
    db = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
    try:
        return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'phases'").fetchone() is not None
    except sqlite3.Error:
        return file.read_bytes()[:15] == b"SQLite format 3" and has_settings(file.parent)
    finally:
        db.close()


def has_settings(folder: Path) -> bool:
    """Whether config.json is one that a run writes: a model folder has a file of that name too."""
    try:
        found = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "steps" in found and "model_type" not in found and "architectures" not in found


def foreign(folder: Path) -> list[str]:
    """What lies in a folder that no run has made, where it is not a run's; empty for a run, or where there is nothing to lose."""
    if not folder.is_dir() or is_run(folder):
        return []
    ours = [folder / name for name in ("config.json", "checkpoints", "artifacts", "best", "run.sqlite")]
    return sorted(p.name for p in ours if p.is_file() or (p.is_dir() and any(p.iterdir())))


def with_defaults(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Settings that did not exist when a run began have the values that new runs start with, if those are asked for."""
    known = json.loads(json.dumps(to_dict(Config())))
    out = old | {k: v for k, v in known.items() if k in new and k not in old}
    for key in (k for k, v in known.items() if isinstance(v, dict) and isinstance(out.get(k), dict)):
        out[key] = {k: v for k, v in known[key].items() if k in new.get(key, {})} | out[key]
    return out


def same_threads(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The settings asked for now; the number of threads that a run has measured and written down is no other setting."""
    try:
        found = json.loads((folder / "machine.json").read_text()).get("threads")
    except (OSError, ValueError, AttributeError, RecursionError):
        return new
    return new | {"threads": old["threads"]} if "threads" in old and new.get("threads") == found else new


_KEPT = ("log_rollouts", "store_gb", "keep_checkpoints")  # what is kept of a run, which nothing is learned from
_WHO = (
    "sampler",
    "engine",
    "rollout_workers",
    "reward_workers",
    "rollout_timeout",
    "weights_over",
    "ray_address",
    "context_parallel",
)  # works, not what is done


def agreed(label: Path, old: dict[str, Any], new: dict[str, Any], extend: bool, saved: bool) -> dict[str, Any]:
    """The settings of a run that is resumed: the old ones, with more steps where it is to be continued; else one sentence.

    saved: it has a checkpoint, so what the weights that it began with have become since (`begun`) does not matter any more.
    """
    known = with_defaults(old, new) | {k: new[k] for k in _KEPT + _WHO if k in new}
    if "inputs" not in old and "inputs" in new:
        known |= {k: new[k] for k in ("inputs", "contents") if k in new}  # an earlier version, which did not keep them
    for key in (
        "inputs",
        "contents",
    ):  # an earlier version did not keep modules that a file imports: the file tells of new ones
        if isinstance(known.get(key), dict) and isinstance(new.get(key), dict):
            known[key] = {k: v for k, v in new[key].items() if k.endswith(".py")} | known[key]
    if saved and isinstance(old.get("begun"), dict) and isinstance(new.get("begun"), dict):
        known |= {"begun": {k: new["begun"].get(k, v) if k != "optimizer" else v for k, v in old["begun"].items()}}
    changed = differences(known, new)
    other = "use another --name, or --fresh to start over"
    if files := [
        (k.partition(".")[2], a, b) for k, a, b in changed if k.startswith(("inputs.", "contents.", "begun."))
    ]:
        told = "; ".join(f"{name} was {a}, is now {b}" for name, a, b in files)
        raise UserError(f"what {label} learns from has changed since it began ({told}); put it back, {other}")
    if [key for key, _, _ in changed] == ["steps"] and new["steps"] > old["steps"] and "plan" not in old:
        if new.get("schedule") != "constant" and not extend:
            raise UserError(
                f"{label} was to end after {old['steps']} steps, and its learning rate has fallen by then "
                f"(schedule {new.get('schedule')}); add --extend-schedule to go on at the rate that {new['steps']} steps would "
                f"have, or start a new run from its weights with --model {label} and another --name"
            )
        return old | {"steps": new["steps"]}
    if changed:
        what = "; ".join(f"{key} was {a}, is now {b}" for key, a, b in changed)
        raise UserError(f"{label} holds a run with other settings ({what}); {other}")
    return old
