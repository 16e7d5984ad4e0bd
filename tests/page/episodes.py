"""A run whose answers are more than one text: turns with tools, a tree, two roles, pictures seen and drawn; hostile texts in every field."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from posttrain.core.config import Config, to_dict
from posttrain.core.types import Branch, End, Group, Observation, Prompt, Rollout, Turn
from posttrain.runs.store import Store
from tests.page.made import ATTACKS

WORDS = ("so", "the", "answer", "is", "forty", "two", "<b>", "\u202e")


def turn(k: int, n: int = 4, seen: int = 3, text: str = "") -> Turn:
    made = Turn.of(
        Observation(torch.arange(seen) + k), torch.arange(n) % len(WORDS), -torch.linspace(0.1, 2.0, n), text
    )
    made.continues = k > 0
    return made


def calls(k: int) -> list[dict[str, object]]:
    attack = ATTACKS[k % len(ATTACKS)]
    found: dict[str, object] = {
        "name": "search",
        "arguments": {"query": attack},
        "result": f"found {attack}",
        "seconds": 0.25,
    }
    return [found] if k % 2 == 0 else [{"name": attack, "arguments": "x" * 9000, "fault": f"broken {attack}", "repaired": True}]  # fmt: skip


def tools(turns: int = 3) -> Group:
    """Answers of several turns, the credit of turn k is k - 1; the middle of turn 2 is not the policy's own."""
    prompt = Prompt.text("tools", "look it up", "42")
    made = []
    for s in range(2):
        some = [turn(k, text=f"turn {k + 1} {ATTACKS[(k + s) % len(ATTACKS)]}") for k in range(turns)]
        for k, t in enumerate(some):
            t.reward = float(k == turns - 1 and s)
            t.streams_T["adv"] = torch.full((4,), k - 1.0)
        some[1].mask_T = torch.tensor([True, False, False, True])
        how = (End.COMPLETED, "answered") if s == 0 else (End.TRUNCATED, "max_calls")
        info = {"calls": [calls(k) for k in range(turns)]}
        made.append(Rollout(prompt, some, *how, index=s, reward=0.0, rewards={"right": float(s)}, info=info))
    return Group(prompt, made)


def tree() -> Group:
    """#1 is forked after 3 tokens by #2, which is forked after 5 by #4; #3 begins at the prompt as #1 does."""
    prompt = Prompt.text("tree", f"grow {ATTACKS[0]}", "42")
    forks = (None, Branch(0, 3), Branch(0, 0), Branch(1, 5))
    made = []
    for s, fork in enumerate(forks):
        ids = (torch.arange(6 + s) + (0 if fork is None else s)) % len(WORDS)
        r = Rollout.single(
            prompt, torch.tensor([1]), ids, -torch.ones(6 + s), text=f"path {s}", reward=s / 4, rewards={"right": s / 4}
        )
        r.index, r.branch = s, fork
        made.append(r)
    return Group(prompt, made)


def roles() -> Group:
    """Two episodes of a proposer and a policy."""
    prompt = Prompt.text("roles", "")
    made = [
        Rollout(
            prompt, [turn(0, text=f"{role} {e}")], End.COMPLETED, "answered", index=e, role=role, reward=float(e), rewards={}
        )
        for e in range(2)
        for role in ("proposer", ATTACKS[1])
    ]  # fmt: skip
    return Group(prompt, made)


def drawn() -> Group:
    """A picture is seen (grey, brighter to the right), and 4 x 4 pictures are drawn in three steps; the last is black above, white below."""
    prompt = Prompt.text("drawn", "draw")
    seen = Observation(
        torch.zeros(0).long(), {ATTACKS[0]: torch.linspace(0, 1, 6).expand(1, 4, 6), "start": torch.zeros(1, 16)}
    )
    half = torch.cat((-torch.ones(8), torch.ones(8)))
    actions = torch.stack((half * 0, half / 2, half))
    made = []
    for s in range(2):
        t = Turn.of(seen, actions, torch.tensor([-9.0, -5.0, 3.0]))
        t.streams_T["adv"] = torch.full((3,), s - 0.5)
        made.append(Rollout(prompt, [t], index=s, reward=float(s), rewards={}))
    return Group(prompt, made)


def write(folder: Path, name: str = "episodes", background: bool = False) -> Path:
    where = folder / name
    where.mkdir(parents=True)
    config = to_dict(Config(name=name, steps=2)) | {"method": "grpo", "task": "turns", "model": "pocket"}
    (where / "config.json").write_text(json.dumps(config))
    with Store(where / "run.sqlite", background=background) as store:
        store.token_bytes = lambda ids: [WORDS[i % len(WORDS)].encode() + b" " for i in ids]
        store.shapes = {"policy": (4, 4)}
        store.begin("train", "policy", True, {"right": 1.0})
        for step in range(2):
            store.log("train", step, {"reward": 0.5}, [tools(8 if step else 3), tree(), roles(), drawn()], 1.0)
        store.finish("train")
    return where
