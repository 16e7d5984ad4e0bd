"""Model folders with damaged or hostile files: a policy that can answer, or one sentence; nothing outside the folder is read."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.policies.load import POCKET, load_model
from tests.fuzz.judge import TEXTS, tried, value


def fuzz_models(seed: int, tries: int) -> list[str]:
    """Failures among `tries` folders."""
    failures = []
    with tempfile.TemporaryDirectory() as place:
        for i in range(tries):
            rng = random.Random(f"models/{seed}/{i}")
            folder = Path(shutil.copytree(POCKET, Path(place) / f"model?{i}"))
            told = [damage(rng, folder) for _ in range(rng.randint(1, 2))]
            problem = tried(lambda folder=folder: used(folder))  # type: ignore[misc]
            if problem:
                failures.append(f"models, seed {seed} try {i}: {problem}; {told}")
            shutil.rmtree(folder)
    return failures


def used(folder: Path) -> None:
    """Load it and say a word."""
    policy = load_model(str(folder), "cpu")
    policy.sample([Prompt.text("p", "What is 2+3?")], 1, Sampling(max_tokens=2))


def damage(rng: random.Random, folder: Path) -> str:
    """Change one file, and say how."""
    files = sorted(p for p in folder.iterdir() if p.is_file())
    file = rng.choice(files)
    kind = rng.choice(
        (changed_key, changed_key, changed_key, replaced, cut, flipped, removed, made_a_folder, an_index, a_template)
    )
    return f"{file.name}: {kind.__name__} {kind(rng, file)}"


def changed_key(rng: random.Random, file: Path) -> str:
    file = file.with_name(
        rng.choice(("config.json", "config.json", "tokenizer_config.json", "generation_config.json", "tokenizer.json"))
    )
    try:
        table = json.loads(file.read_text())
        at = table
        while (
            isinstance(at, dict)
            and rng.random() < 0.4
            and (inner := [v for v in at.values() if isinstance(v, dict) and v])
        ):
            at = rng.choice(inner)
        key = rng.choice(
            [
                *at,
                *TEXTS[:5],
                "rope_scaling",
                "eos_token_id",
                "chat_template",
                "auto_map",
                "model_type",
                "sliding_window",
            ]
        )
        at[key] = plain(value(rng))
        file.write_text(json.dumps(table))
        return f"{file.name} {key[:40]!r} = {str(at[key])[:60]}"
    except (OSError, ValueError, TypeError, RecursionError):
        return "nothing"


def plain(x: Any) -> Any:
    """What json can write of it."""
    try:
        json.dumps(x)
        return x
    except (TypeError, ValueError):
        return None


def replaced(rng: random.Random, file: Path) -> str:
    text = rng.choice(
        ("", "[]", "{}", "null", "[" * 50_000, '{"a": ' * 5000, '"\\ud800"', "9" * 6000, "\x00" * 100, "nonsense")
    )
    file.write_text(text)
    return text[:20]


def cut(rng: random.Random, file: Path) -> str:
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(len(data) or 1)])
    return f"to {file.stat().st_size}"


def flipped(rng: random.Random, file: Path) -> str:
    data = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 20)):
        if data:
            data[rng.randrange(min(len(data), rng.choice((200, 10**9))))] = rng.randrange(256)
    file.write_bytes(bytes(data))
    return "bytes"


def removed(rng: random.Random, file: Path) -> str:
    file.unlink()
    return ""


def made_a_folder(rng: random.Random, file: Path) -> str:
    file.unlink()
    file.mkdir()
    return ""


def an_index(rng: random.Random, file: Path) -> str:
    listed = rng.choice(
        ({"a": "../x.safetensors"}, {"a": "/etc/passwd"}, {"a": rng.choice(TEXTS)}, [1], 3, {"a": {}}, {})
    )
    (file.parent / "model.safetensors").unlink(missing_ok=True) if (
        file.parent / "model.safetensors"
    ).is_file() else None
    (file.parent / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    return str(listed)[:60]


def a_template(rng: random.Random, file: Path) -> str:
    body = rng.choice(("{{ raise_exception('no') }}", "{{ messages[9] }}", "{% for %}", "{{ 1/0 }}", "", "{{ ''.__class__ }}",
                       "{{ 'x' * 3000000 }}", "{{ messages }}", rng.choice(TEXTS)))  # fmt: skip
    target = file.parent / "chat_template.jinja"
    if not target.is_dir():
        target.write_text(body, encoding="utf-8", errors="surrogatepass")
    return body[:40]


__all__ = ["fuzz_models"]
