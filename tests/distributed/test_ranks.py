"""Several processes train one model: real process groups of gloo on this machine, started as torchrun would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.distributed.launch import free_port
from posttrain.runs.checkpoint import newest
from posttrain.runs.run import Run
from tests.distributed import small, suite

ROOT = Path(__file__).parents[2]
SERVER: list[subprocess.Popen[str]] = []


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """The process off which all others of this file are forked."""
    place = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.distributed.suite"]
    with subprocess.Popen(
        command, env=place, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as one:
        SERVER.append(one)
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
        yield
        SERVER.clear()
        one.kill()


def start(world: int, folder: Path, *todo: str, patience: float = 60) -> list[tuple[int, str]]:
    """The suite in so many processes; exit code and what it wrote of each."""
    folder.mkdir(exist_ok=True)
    env = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "POSTTRAIN_PATIENCE": str(patience),
    }
    (one,) = SERVER
    assert one.stdin is not None and one.stdout is not None
    one.stdin.write(json.dumps({"world": world, "folder": str(folder), "todo": todo, "env": env}) + "\n")
    one.stdin.flush()
    codes = json.loads(one.stdout.readline())
    return [(code, (folder / f"rank-{rank}.txt").read_text()) for rank, code in enumerate(codes)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By number of processes, the folder of what they did; 0: this process, without a group."""
    there = tmp_path_factory.mktemp("ranks")
    out = {}
    for world, todo in (
        (2, ("gradients", "runs", "lora", "pairs", "half", "references")),
        (3, ("gradients", "runs", "few")),
    ):
        for code, told in start(world, there / str(world), *todo):
            assert code == 0, told[-3000:]
        out[world] = there / str(world)
    threads = torch.get_num_threads()
    suite.run(str(there / "0"), "exact-grpo", "grpo", steps=3, exact_sums=True)
    suite.run(str(there / "0"), "exact-ppo", "ppo", steps=3, exact_sums=True)
    suite.half(str(there / "0"), "half-alone", 3)
    torch.set_num_threads(threads)
    return out | {0: there / "0"}


@pytest.mark.parametrize("world", [2, 3])
def test_whole_copies_come_in_few_messages_with_the_same_bits(world: int, tmp_path: Path) -> None:
    for code, told in start(world, tmp_path / "copies", "copies"):
        assert code == 0 and "copied" in told, told[-3000:]


def tables(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    found = newest(folder / "checkpoints", "train")
    assert found is not None
    return found.tables


def same(a: Any, b: Any) -> bool:
    return all(a[t].keys() == b[t].keys() and all(torch.equal(a[t][k], b[t][k]) for k in a[t]) for t in {*a, *b})


@pytest.mark.parametrize("world", [2, 3])
def test_gradients_are_those_of_one_process(folders: dict[int, Path], world: int) -> None:
    found = json.loads((folders[world] / "gradients.json").read_text())
    assert len(found) == world and len(found[0]) >= 10
    for case, off in [pair for rank in found for pair in rank.items()]:
        assert off["largest"] > 1e-4, case
        assert off["sharded"] < 1e-6 and off["exact"] < 1e-6, (case, off)


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_exact_sums_give_the_same_bits_on_any_number_of_processes(folders: dict[int, Path], method: str) -> None:
    alone = folders[0] / f"exact-{method}"
    for world in (2, 3):
        assert same(tables(folders[world] / f"exact-{method}"), tables(alone))
        with Run.open(alone) as a, Run.open(folders[world] / f"exact-{method}") as b:
            for name in ("reward", "loss", "grad_norm", "logp_gap"):
                assert a.store.series(name) == b.store.series(name)


def test_rows_of_every_process_are_saved_and_put_together(folders: dict[int, Path]) -> None:
    two, three = (folders[w] / "fsdp" for w in (2, 3))
    last = sorted((three / "checkpoints").iterdir())[-1]
    assert {f"weights.rows-{r}-of-3.safetensors" for r in range(3)} <= {f.name for f in last.iterdir()}
    a, b = tables(two), tables(three)
    assert a["weights"].keys() == b["weights"].keys() == tables(folders[0] / "exact-grpo")["weights"].keys()
    for name, x in a["weights"].items():  # the same sums in another order, three times through AdamW
        assert x.shape == b["weights"][name].shape
        assert float((x - b["weights"][name]).abs().max()) < 1e-5


def test_another_number_of_processes_goes_on(folders: dict[int, Path], tmp_path: Path) -> None:
    """Two of which one is killed end with the bits of two that were not; three, and one without a group, go on from two."""
    (code, told), (killed, _) = start(2, tmp_path, "killed", patience=20)
    assert killed == -9 and code != 0
    assert "did not answer" in told, told[-2000:]
    for world in (2, 3, 0):
        there = tmp_path / str(world)
        for name in ("fsdp", "killed"):
            shutil.copytree((tmp_path if name == "killed" else folders[2]) / name, there / name)
        shutil.copytree(folders[2] / "half", there / "half")
        shutil.copytree(folders[0] / "half-alone", there / "half-alone")
        if world:
            assert [code for code, _ in start(world, there, "rest")] == [0] * world
        else:
            suite.run(str(there), "fsdp", "grpo", steps=4)
            suite.half(str(there), "half", 4)
            suite.half(str(there), "half-alone", 4)
        for name in ("half", "half-alone"):  # float32 rows and float32 masters of one process become one another
            now, two = (tables(at / name)["weights"] for at in (there, tmp_path / "2"))
            off = {k: float((x - two[k]).abs().max()) for k, x in now.items() if not k.startswith("critic.")}
            assert max(off.values()) < 0.03, (world, name, off)  # one that began anew is 0.1 away
        with Run.open(there / "fsdp") as run:
            assert len(run.store.series("reward")) == 4
        for name, x in tables(there / "fsdp")["weights"].items():
            assert float((x - tables(tmp_path / "2" / "fsdp")["weights"][name]).abs().max()) < 1e-4
    assert same(tables(tmp_path / "2" / "killed"), tables(folders[2] / "fsdp"))


@pytest.mark.parametrize("rule", ["ema", "reset", "stalled"])
def test_references_that_move(folders: dict[int, Path], rule: str) -> None:
    """In rows as in whole tensors; the policy and its reference have both left where they began."""
    exact, rows = (tables(folders[2] / f"{rule}-{way}") for way in (True, False))
    begun = suite.tiny.policy().state_dict()
    for table in ("weights", "reference"):
        assert max(float((x - rows[table][name]).abs().max()) for name, x in exact[table].items()) < 1e-5
        name = "model.model.embed_tokens.weight"  # stays gathered after a pass
        assert float((rows[table][name] - begun[name]).abs().max()) > 5e-5, table
    with Run.open(folders[2] / f"{rule}-False") as a, Run.open(folders[2] / f"{rule}-True") as b:
        for (_, x), (_, y) in zip(a.store.series("kl"), b.store.series("kl"), strict=True):
            assert x == pytest.approx(y, rel=1e-2, abs=1e-9)


def test_a_process_that_has_nothing_to_sample_helps_to_gather_the_weights(folders: dict[int, Path]) -> None:
    with Run.open(folders[3] / "few") as run:
        assert len(run.store.series("reward")) == 3


def test_adapters_and_their_critic_are_sharded_too(folders: dict[int, Path]) -> None:
    found = tables(folders[2] / "lora")
    assert any("lora" in name.lower() for name in found["weights"])
    assert all("lora" in name.lower() or "critic" in name for name in found["optimiser"])


def test_reward_models_and_pairs(folders: dict[int, Path]) -> None:
    """Pairs stay together in a piece, and a head that every process has whole gets the sum of all."""
    for method in ("dpo", "reward-model"):
        exact, rows = (tables(folders[2] / f"{method}-{way}")["weights"] for way in (True, False))
        assert exact.keys() == rows.keys()
        assert max(float((x - rows[name]).abs().max()) for name, x in exact.items()) < 1e-5


def test_in_half_precision_the_copy_that_samples_is_what_is_trained(folders: dict[int, Path]) -> None:
    with Run.open(folders[2] / "half") as run:
        gaps = [gap for _, gap in run.store.series("logp_gap")]
        assert len(gaps) == 3 and max(gaps) < 0.02
        assert run.store.series("grad_norm")[-1][1] > 0
    saved = tables(folders[2] / "half")["weights"]
    assert {x.dtype for x in saved.values()} == {torch.float32}  # rows are the master weights


def test_workers_sample_for_several_processes_that_train(tmp_path: Path) -> None:
    """With a lag: the first process has the workers, and weights in rows are gathered before they are published."""
    small.files(tmp_path / "2")
    assert [code for code, _ in start(2, tmp_path / "2", "led")] == [0, 0]
    small.files(tmp_path / "0")
    small.start(
        tmp_path / "2",
        tmp_path / "0",
        name="led-exact",
        lag=1,
        steps=3,
        device="cpu",
        exact_sums=True,
        sampler="process",
    )
    assert same(tables(tmp_path / "2" / "led-exact"), tables(tmp_path / "0" / "led-exact"))
    exact, rows = (tables(tmp_path / "2" / name)["weights"] for name in ("led-exact", "led-rows"))
    assert max(float((x - rows[name]).abs().max()) for name, x in exact.items()) < 1e-3


def test_the_first_process_publishes_layers_that_are_gathered(tmp_path: Path) -> None:
    """A monitor leaves layers gathered in all processes; if only the one that publishes let go of its own, the next pass would be another in each."""
    small.files(tmp_path / "2")
    for code, told in start(2, tmp_path / "2", "looked-at"):
        assert code == 0, told[-3000:]
    with Run.open(tmp_path / "2" / "looked-at") as run:
        assert [step for step, _ in run.store.series("policy_shift")] == [2, 4], "or nobody looked"


def test_a_lag_without_workers(tmp_path: Path) -> None:
    """All processes sample what the first one begins: with exact sums it has the bits of one process, and a kill changes nothing."""
    for code, told in start(2, tmp_path / "2", "lag"):
        assert code == 0, told[-3000:]
    suite.run(str(tmp_path / "0"), "lag-exact", "grpo", steps=3, lag=1, exact_sums=True, **suite.BARE)
    assert same(tables(tmp_path / "2" / "lag-exact"), tables(tmp_path / "0" / "lag-exact"))
    with Run.open(tmp_path / "2" / "lag-rows") as run:
        (versions,) = zip(*run.store.db.execute("SELECT DISTINCT version FROM rollouts WHERE step = 2"), strict=True)
        assert versions == (1,)
    start(2, tmp_path / "2", "lag-killed", patience=20)
    assert [code for code, _ in start(2, tmp_path / "2", "lag-rest")] == [0, 0]
    assert same(tables(tmp_path / "2" / "lag-killed"), tables(tmp_path / "2" / "lag-rows"))


def test_answers_are_scored_once_by_one_process_or_another(tmp_path: Path) -> None:
    for code, told in start(2, tmp_path, "shares"):
        assert code == 0, told[-3000:]
    asked = [(tmp_path / f"asked-{rank}.txt").read_text().splitlines() for rank in (0, 1)]
    assert [len(some) for some in asked] == [18, 18], "two steps of 18 answers, dealt out"
    with Run.open(tmp_path / "shares") as run:
        failed = [row for row in asked[1] if "'b'" in row]
        masked = sum(x for _, x in run.store.series("reward/masked"))
        assert masked == len(failed) > 0


def test_a_process_that_hangs_is_named(tmp_path: Path) -> None:
    (code, told), _ = start(2, tmp_path, "hang", patience=2)
    assert code != 0
    assert "did not answer (at the first step, after 2 s" in told and "1" in told.split("did not answer")[1]
