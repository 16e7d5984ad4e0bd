"""What the README guarantees holds for every kind of policy: letters, turns, tables, controls, several roles, a replay memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.assemble import assemble, by_role
from posttrain.runs.build import Pieces, build_loop
from posttrain.runs.in_memory import InMemoryRun
from posttrain.train import credit, select
from tests.policies.kinds import KINDS, Kind, config
from tests.runs.test_resume import KILLED, Nursery, ending, same

SAMPLED = [name for name, kind in KINDS.items() if kind.samples]


def built(kind: Kind, seed: int = 0, **changes: Any) -> Any:
    policy = kind.make(seed)
    policy.temperature = 1.0
    extra = {"source": kind.source} if kind.source else {}
    pieces = Pieces(kind.env, kind.scorer, InMemoryRun(), others=kind.others(seed), evaluated=False, **extra)
    return build_loop(config(seed=seed, **changes), kind.method, policy, pieces)


def rolled(loop: Any, step: int = 0) -> list[pt.Group]:
    groups, _ = loop.source.next(step)
    return list(groups)


@pytest.mark.parametrize("name", SAMPLED)
def test_the_sampler_is_the_trainer(name: str) -> None:
    loop = built(KINDS[name])
    groups = rolled(loop)
    seen = 0
    for role, mine in by_role(groups).items():
        policy = loop.source.policies.get(role) or loop.policy
        rows, _ = assemble(mine)
        logp_BT = policy.forward(rows, ("logp_BT",))["logp_BT"]
        for row, logp_T in zip(rows, logp_BT, strict=True):
            own = row.mask_T
            torch.testing.assert_close(logp_T[: len(row)][own], row.logp_T[own], atol=1e-4, rtol=0)
            seen += int(own.sum())
    assert seen > 20


def alike(a: dict[Any, Any], b: dict[Any, Any]) -> None:
    """Choices to the last bit; controls up to the rounding of a product, which differs with the size of a batch."""
    assert a.keys() == b.keys()
    for key in a:
        for x, y in zip(a[key], b[key], strict=True):
            torch.testing.assert_close(torch.tensor(x), torch.tensor(y), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_belong_to_identities(name: str) -> None:
    """An answer is the same alone, in any order and in any company."""
    kind = KINDS[name]
    loop = built(kind)
    prompts = [kind.env.prompt(i) for i in range(3)]

    def made(some: list[pt.Prompt], n: int) -> dict[tuple[str, str, int], list[Any]]:
        ask = pt.RolloutRequest(loop.source.policies, some, config().sampling, 7, 3, kind.env)
        groups = kind.method.rollout.but(n=n)(ask)
        return {
            (r.prompt.id, r.role, r.index): [t.actions.tolist() for t in r.turns] for g in groups for r in g.rollouts
        }

    together = made(prompts, 3)
    alone = {k: v for p in prompts for k, v in made([p], 3).items()}
    alike(made(prompts[::-1], 3), together)
    alike(alone, together)
    alike(made(prompts, 2), {k: v for k, v in together.items() if k[2] < 2})
    assert len({str(v) for v in together.values()}) > 1


@pytest.mark.parametrize("name", KINDS)
def test_the_gradient_does_not_depend_on_how_the_batch_is_cut(name: str) -> None:
    kind = KINDS[name]
    found = []
    for micro in (1, 7, 10_000):
        loop = built(kind, micro_tokens=micro)
        groups = select(loop, rolled(loop))
        grads: dict[str, torch.Tensor] = {}
        for role, mine in by_role(groups).items():
            rows, batch = assemble(mine)
            batch = credit(loop, role, mine, rows, batch)
            for learner in loop.learners_of(role):
                learner.max_norm = float("inf")
                learner._step = lambda rate: {"grad_norm": 0.0}  # only add up
                learner._one(rows, batch, torch.arange(len(rows)), 1.0)
                grads |= {
                    f"{learner.goal.role}.{n}": p.grad for n, p in learner.named_parameters() if p.grad is not None
                }
        found.append({n: g.clone() for n, g in grads.items()})
    assert found[0] and any(float(g.abs().max()) > 0 for g in found[0].values())
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        largest = max(float(g.abs().max()) for g in found[0].values())
        for n, g in other.items():
            assert float((g - found[0][n]).abs().max()) <= 2e-6 * largest, n


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    assert made.process.stdin
    made.process.stdin.close()
    made.process.wait(10)


@pytest.mark.parametrize("name", KINDS)
def test_killed_at_any_moment_it_ends_the_same(name: str, nursery: Nursery, tmp_path: Path) -> None:
    assert nursery.run(tmp_path / "whole" / "run", kind=name) == 0
    whole = ending(tmp_path / "whole" / "run")
    draw, kills = Random(name), 0
    folder = tmp_path / "cut" / "run"
    for _ in range(4):
        code = nursery.run(folder, kill_at=draw.randint(2, 40), kind=name)
        if code == 0:
            break
        assert code == KILLED
        kills += 1
    assert kills >= 2
    assert nursery.run(folder, kind=name) == 0
    same(ending(folder), whole)
