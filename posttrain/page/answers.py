"""One group of answers side by side, the same prompt over time, and one answer down to the token."""

from __future__ import annotations

import json
import math
from typing import Any

from posttrain.core.codec import STREAMS, read
from posttrain.core.errors import UserError
from posttrain.page.pictures import drawn, flat, observed, shape_of
from posttrain.page.pieces import pieces_of
from posttrain.page.rollouts import with_texts, written
from posttrain.page.series import finite
from posttrain.page.tree import links
from posttrain.runs.reader import Reader

_CHARACTERS = 20_000  # of an answer in a group
_VECTOR = 13  # numbers of an action that is a vector
_STEPS = 400  # steps of a prompt's history, at most


def group(reader: Reader, phase: str, step: int, index: int) -> dict[str, Any]:
    """The prompt, its gold answer and all its answers at a step; `history`: how this prompt did at other steps."""
    _not_old(reader)
    query = "SELECT * FROM groups WHERE phase = ? AND step = ? AND group_index = ?"
    prompt = reader.db.execute(query, (phase, step - 1, index)).fetchone()
    query = "SELECT * FROM rollouts WHERE phase = ? AND step = ? AND group_index = ? ORDER BY sample_index"
    found = [dict(r) for r in reader.db.execute(query, (phase, step - 1, index))]
    if not found:
        raise UserError(f"step {step} of {phase} has no prompt {index + 1}; it may not be stored (--log-rollouts)")
    out: dict[str, Any] = {"phase": phase, "step": step, "group_index": index, "prompt_id": found[0]["prompt_id"]}
    out |= {"prompt": prompt["prompt"] if prompt else None, "messages": read(prompt["messages"]) if prompt else None}
    out["gold"] = read(prompt["gold"]) if prompt else None
    query = "SELECT MAX(group_index) FROM rollouts WHERE phase = ? AND step = ?"
    out["groups"] = 1 + reader.db.execute(query, (phase, step - 1)).fetchone()[0]
    out["written"] = written(reader, phase)
    linked = links(reader, [r["id"] for r in found])
    alone = {"episode": None, "parent": None, "at": None}
    answers = zip(with_texts(reader, found, _CHARACTERS), found, strict=True)
    out["answers"] = [a | linked.get(r["id"], alone) for a, r in answers]
    out["pictures"] = observed(reader, (phase, step - 1, index), -1).get(0, [])
    out["weights"] = {k: finite(v) for k, v in reader.weights(phase).items()}
    return out | {"history": history(reader, phase, found[0]["prompt_id"])}


def history(reader: Reader, phase: str, prompt: str) -> list[dict[str, Any]]:
    """step -> how many answers this prompt had, their mean reward and length."""
    query = (
        "SELECT step, group_index, COUNT(*) AS answers, AVG(total) AS reward, AVG(length) AS length FROM rollouts "
        "WHERE prompt_id = ? AND phase = ? GROUP BY step ORDER BY step LIMIT ?"
    )
    rows = reader.db.execute(query, (prompt, phase, _STEPS)).fetchall()
    return [
        dict(r) | {"step": r["step"] + 1, "reward": finite(r["reward"]), "length": finite(r["length"])} for r in rows
    ]


def tokens(reader: Reader, phase: str, step: int, index: int, sample: int) -> dict[str, Any]:
    """One answer by turns: the pieces of what was seen and said, and the streams of what was said. The prompt's own tokens are `seen`."""
    _not_old(reader)
    turns = reader.turns(phase, step - 1, index, sample)
    if not turns:
        raise UserError(
            f"answer {sample + 1} to prompt {index + 1} of step {step} is not stored; --log-rollouts and --store-gb say how much is"
        )
    plain = [t for t in turns if not (t["tokens"] and isinstance(t["tokens"][0], list | float))]
    ids = {i for t in plain for i in (*(t["tokens"] or []), *(t["seen"] or [])) if isinstance(i, int)}
    pieces = pieces_of(reader, sorted(ids))
    head = group(reader, phase, step, index)
    answer = next(a for a in head["answers"] if a["sample_index"] == sample)
    named = {k: head[k] for k in ("phase", "step", "group_index", "prompt_id", "prompt", "gold", "weights", "written")}
    named["samples"] = len(head["answers"])
    shown = [learned(t) if head["written"] else t for t in map(_turn, turns)]
    seen, called = observed(reader, (phase, step - 1, index), sample), calls(reader, (phase, step - 1, index, sample))
    shape = shape_of(reader, phase, answer["role"])
    for k, t in enumerate(shown):
        t |= {"pictures": seen.get(k, []), "calls": called.get(k, []), "drawn": drawn(t["tokens"], shape)}
        if t["drawn"]:  # their numbers would be thousands
            t["tokens"] = [[] for _ in t["tokens"]]
        elif t["tokens"] and isinstance(t["tokens"][0], list):  # as many as are shown, and one that says there are more
            t["tokens"] = [flat(action)[:_VECTOR] for action in t["tokens"]]
    others = [
        {k: a[k] for k in ("sample_index", "role", "total", "failed")}
        for a in head["answers"]
        if a["role"] != answer["role"] and episode_of(a) == episode_of(answer)
    ]
    return named | {"answer": answer, "pieces": pieces, "turns": shown, "others": others}


def episode_of(answer: dict[str, Any]) -> int:
    return int(answer["sample_index"] if answer["episode"] is None else answer["episode"])


def calls(reader: Reader, key: tuple[str, int, int, int]) -> dict[int, list[dict[str, Any]]]:
    """turn -> the tools that it called, each with its arguments, result, fault, whether it was repaired, and seconds."""
    if not reader.has("calls"):
        return {}
    query = (
        "SELECT c.turn, c.calls FROM rollouts r JOIN calls c ON c.id = r.id "
        "WHERE r.phase = ? AND r.step = ? AND r.group_index = ? AND r.sample_index = ?"
    )
    return {row["turn"]: listed(row["calls"]) for row in reader.db.execute(query, key)}


def listed(text: Any) -> list[dict[str, Any]]:
    """The calls of a turn; what is something else, in a damaged file, is none."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return []
    return [c for c in found if isinstance(c, dict)] if isinstance(found, list) else []


def _turn(t: dict[str, Any]) -> dict[str, Any]:
    streams = {name: [finite(v) if not isinstance(v, list) else v for v in t[name]] if t.get(name) is not None else None
               for name in STREAMS if name != "tokens"}  # fmt: skip
    kept = {
        "turn": t["turn"],
        "text": t["text"],
        "reward": finite(t.get("reward")),
        "continues": bool(t.get("continues")),
    }
    return kept | {"seen": t.get("seen") or [], "tokens": t["tokens"] or [], **streams}


def learned(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn that nobody sampled: its log-probabilities are stored as 0, so the ratio is the probability that the trainer gave each token
    before it learned from it. That is what is shown; an advantage it has none."""
    ratio = turn["ratio"]
    logp = None if ratio is None else [finite(math.log(p)) if p else None for p in ratio]
    return turn | {"logp": logp, "ratio": None, "adv": None}


def _not_old(reader: Reader) -> None:
    if reader.version == 1:
        raise UserError("this run was written by an earlier version; posttrain samples reads its answers")
