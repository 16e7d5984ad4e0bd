"""Context parallel: rows divided among real processes of gloo, as in `test_ranks.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.runs.run import Run
from tests.distributed import suite
from tests.distributed.test_ranks import server, start, tables

__all__ = ["server"]


@pytest.mark.parametrize("world, size", [(2, 2), (3, 3), (4, 2)])
def test_gradients_are_those_of_one_process(tmp_path: Path, world: int, size: int) -> None:
    """In float64 up to the float32 sums of FSDP. In float32 two layouts of one process ("shared" and "padded") already differ by 3.5e-6."""
    for code, told in start(world, tmp_path, f"divided-{size}"):
        assert code == 0, told[-3000:]
    found = json.loads((tmp_path / f"divided-{size}.json").read_text())
    assert len(found) == world and len(found[0]) >= 10
    for case, off in [pair for rank in found for pair in rank.items()]:
        assert off["largest"] > 1e-3, case
        assert off["off"] < (2e-7 if case.endswith("64") else 5e-6), (case, off)


def test_whole_runs_are_those_of_one_process(tmp_path: Path) -> None:
    """Sampled by the whole copy, with a critic, a reference, adapters, pairs and scores; one goes on without dividing."""
    for code, told in start(2, tmp_path / "2", "context"):
        assert code == 0, told[-3000:]
    threads = torch.get_num_threads()
    suite.long_runs(str(tmp_path / "1"))
    for name in ("ppo", "lora", "dpo", "reward-model"):
        one, two = (tables(tmp_path / n / name)["weights"] for n in "12")
        assert one.keys() == two.keys()
        for (
            key,
            x,
        ) in (
            one.items()
        ):  # AdamW moves every number by about 1e-2 a step; of a gradient near 0 rounding decides the way
            assert float((x - two[key]).abs().mean()) < 3e-5, (name, key)
    with Run.open(tmp_path / "2" / "ppo") as run:
        assert max(gap for _, gap in run.store.series("logp_gap_max")) < 1e-4
    with Run.open(tmp_path / "2" / "half") as run:
        assert max(gap for _, gap in run.store.series("logp_gap")) < 0.02
    suite.run(str(tmp_path / "2"), "dpo", "dpo", steps=3, task=suite.PAIRS, reward=None, num_generations=None, sampling=None)  # fmt: skip
    torch.set_num_threads(threads)


def test_what_cannot_be_divided_is_a_sentence(tmp_path: Path) -> None:
    told = start(2, tmp_path, "context-refused")[0][1]
    assert "3 do not divide the 2 that there are; use a number that does" in told
    assert "exact sums are of whole rows; leave one of both away" in told
    assert "reads hidden_BTD, more than a number for each action, which is not gathered" in told
    with pytest.raises(UserError, match=r"there is one; add --gpus 4"):
        suite.run(str(tmp_path), "alone", "grpo", steps=1, context_parallel=4)
