"""Rollouts as bytes and back, in files that are whole or not there; weights by version."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Branch, End, Group, Origin, Prompt, Rollout
from posttrain.distributed.ledger import SCORED, Ledger
from posttrain.distributed.shards import Shard, cut, matches, record
from posttrain.distributed.versions import Versions, load, read_bytes, sampled
from posttrain.models.lora import add_lora
from posttrain.rewards.runtime.outcome import Failure
from posttrain.rewards.runtime.scorer import RewardReport, ScoreReport
from posttrain.runs.wire import Damaged, Unsendable, pack, unpack
from tests.models import tiny


def group() -> Group:
    """All that a rollout can carry."""
    prompt = Prompt(
        "p",
        ({"role": "user", "content": [{"type": "text", "text": "\ud83d half"}]},),
        (1, {"a"}),
        {"k": b"x", "z": {2: 3}},
    )
    seen = Observation(torch.arange(5), {"pixels": torch.randn(2, 3).bfloat16()}, lead="<think>")
    turn = Turn.of(seen, torch.arange(3), torch.tensor([-0.1, -math.inf, -3e-7]), "text", version=7)
    turn.streams_T = {"reward": torch.tensor([0.0, 0.0, 1.0]).double()}
    again = dataclasses.replace(
        turn, actions=torch.randn(3, 2), mask_T=torch.tensor([True, False, True]), reward=0.5, continues=True
    )
    empty = Turn.empty(seen)
    rollouts = [
        Rollout(
            prompt,
            [turn, again],
            End.TRUNCATED,
            "length",
            Origin.LOGGED,
            3,
            "judge",
            math.nan,
            {"a": 0.1},
            Branch(1, 2),
        ),
        Rollout(prompt, [empty], info={"tensor": torch.ones(1), "t": (1, (2,)), "f": frozenset({4})}),
    ]
    return Group(prompt, rollouts, pairs=((0, 1),), ranking=(1, 0))


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        same_bits = a.contiguous().reshape(-1).view(torch.uint8) if a.numel() else a
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and (not a.numel() or torch.equal(same_bits, b.clone().reshape(-1).view(torch.uint8)))
        )
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def test_everything_comes_back_to_the_bit() -> None:
    whole = [group(), ScoreReport(2, 1, 0.5, [RewardReport("r", 2, 1, error="no")]), Failure("late", "1 s")]
    found = unpack(pack(whole))
    assert equal(whole, found) and not equal(whole[0], dataclasses.replace(found[0], ranking=()))
    first, second = found[0].rollouts[0], found[0].rollouts[1]
    assert first.prompt is second.prompt and first.turns[0].observation is second.turns[0].observation
    assert first.turns[0].version_T.stride() == (0,) and first.versions == (7, 7)


def test_bytes_that_changed_are_known_and_what_cannot_be_kept_is_named() -> None:
    data = pack([torch.arange(3), "x"])
    for wrong in (data[:-1], data[:40] + bytes([data[40] ^ 1]) + data[41:], b""):
        with pytest.raises(Damaged):
            unpack(wrong)
    with pytest.raises(Unsendable, match=r"a builtins\.object"):
        pack({"k": object()})
    with pytest.raises(Unsendable, match="complex64"):
        pack(torch.ones(1, dtype=torch.complex64))


def test_the_ledger_has_whole_records_and_forgets_what_was_passed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    for step in range(4):
        ledger.write(step, 0, 0, pack([step]))
    assert ledger.read(2, 0, 0) == [2] and ledger.read(2, 1, 0) is None and ledger.read(9, 0, 0) is None
    ledger.scored(2, 0, {"groups": [group()], "report": None}, shards=1)
    assert ledger.read(2, 0, 0) is None and math.isnan(ledger.read(2, 0, SCORED)["groups"][0].rollouts[0].reward)
    path = ledger.path(3, 0, 0)
    path.write_bytes(path.read_bytes()[:-3])
    assert ledger.read(3, 0, 0) is None
    ledger.forget(1)
    assert sorted(p.name for p in ledger.folder.iterdir()) == ["000002", "000003"]


def test_a_record_is_used_for_its_own_prompts_and_weights_alone() -> None:
    prompts = tuple(tiny.prompts("a", "b"))
    made = record(Shard(3, 0, 0, 2, prompts), [], "hash")
    assert matches(made, prompts, 2, "hash") and matches(
        made, prompts, 2, ""
    )  # weights of before a restart have no hash to compare
    for other in ((prompts, 2, "other"), (prompts, 3, "hash"), (prompts[:1], 2, "hash"), (prompts[::-1], 2, "hash")):
        assert not matches(made, *other)
    assert not matches(None, prompts, 2, "") and not matches([], prompts, 2, "")


def test_shards_depend_on_the_prompts_alone() -> None:
    prompts = tiny.prompts(*"abcdefg")
    shards = cut(prompts, 3)
    assert [len(s) for s in shards] == [2, 2, 3] and [p for s in shards for p in s] == prompts
    assert [len(s) for s in cut(prompts[:2], 8)] == [1, 1] and [len(s) for s in cut(prompts, 1)] == [7]


def test_weights_are_published_once_and_loaded_by_another(tmp_path: Path) -> None:
    versions, policy = Versions(tmp_path), tiny.policy()
    policy.with_critic()
    made = versions.publish(3, policy)
    other = tiny.policy(tiny.decoder())
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    load(other, made.path)
    for name, x in sampled(policy).items():
        assert torch.equal(x, other.state_dict()[name]) and not name.startswith("critic.")
    data = Path(made.path).read_bytes()
    assert all(torch.equal(x, sampled(policy)[name]) for name, x in read_bytes(data).items())
    versions.publish(4, policy)
    versions.forget({4})
    assert [p.name for p in tmp_path.iterdir()] == ["000004"]
    assert Versions(tmp_path).find(4).digest == made.digest  # after a restart
    with pytest.raises(UserError, match="need version 3 of the weights"):
        versions.find(3)
    (tmp_path / "000004/weights.safetensors").write_bytes(data[:-4] + b"0000")
    with pytest.raises(UserError, match="missing or damaged"):
        Versions(tmp_path).find(4)


def test_with_adapters_only_these_are_published(tmp_path: Path) -> None:
    policy = add_lora(tiny.policy(), 2)
    with torch.no_grad():
        for p in policy.parameters():
            if p.requires_grad:
                p.add_(1.0)
    made = Versions(tmp_path).publish(1, policy)
    assert sampled(policy) and all("lora_" in name for name in sampled(policy))
    other = add_lora(tiny.policy(), 2)
    load(other, made.path)
    assert all(
        torch.equal(a, b) for a, b in zip(policy.state_dict().values(), other.state_dict().values(), strict=True)
    )
    with pytest.raises(UserError, match="of another model than this worker has"):
        load(tiny.policy(), made.path)
