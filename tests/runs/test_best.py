"""The best checkpoint of a run: kept, loaded, and the same after a kill."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.runs import build
from posttrain.runs.best import best_of
from posttrain.runs.checkpoint import listing, newest
from posttrain.runs.run import Run
from posttrain.runs.trained import find_trained, load_trained
from tests.runs import tiny_run
from tests.runs.test_continue import small


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model by name is the tiny one."""
    monkeypatch.setattr(build, "load_model", lambda *_: tiny_run.policy())


def test_the_best_checkpoint_is_kept_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores 0.2, 0.9, 0.5 after steps 1, 2, 3: the second, whose checkpoint is pruned by then, is the best."""
    scores = iter([0.0, 0.2, 0.9, 0.5])
    from posttrain import api

    real = build.measure

    def measured(*args: Any) -> Any:
        found = real(*args)
        object.__setattr__(found, "accuracy", next(scores))
        return found

    monkeypatch.setattr(build, "measure", measured)
    monkeypatch.setattr(api, "measure", measured)
    summary = small(tmp_path, steps=3, eval_every=1, save_every=1, keep_checkpoints=1)
    assert summary["best"] == {"step": 2, "accuracy": 0.9} and summary["accuracy_after"] == 0.5
    assert [s for s, _ in listing(tmp_path / "small/checkpoints", "train")] == [2]
    kept = newest(tmp_path / "small/best", "train")
    assert kept is not None and kept.step == 1 and set(kept.tables) == {"weights"}
    made, _ = load_trained(find_trained("small@best", tmp_path), build.load_policy)  # type: ignore[arg-type]
    assert all(
        torch.equal(x, kept.tables["weights"][k]) for k, x in made.state_dict().items() if k in kept.tables["weights"]
    )
    with pytest.raises(UserError, match="has weights only, no optimiser state; add --no-optimizer"):
        small(tmp_path, name="other", start_from="small@best")
    with pytest.raises(UserError, match="did you mean 'train-000002'"):
        load_trained(find_trained("small@train-000003", tmp_path), build.load_policy)  # type: ignore[arg-type]


@pytest.mark.parametrize("moment", range(4))
def test_the_best_checkpoint_after_a_kill_is_that_of_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Scores 0.2, 0.9, 0.5: stopped before or after the first or the second best is written or the older one removed."""
    from posttrain.runs import best

    def scored(name: str) -> None:
        scores = {0: 0.2, 1: 0.9, 2: 0.5}
        real = Run.keep_best
        monkeypatch.setattr(Run, "keep_best", lambda run, loop, step, _: real(run, loop, step, scores[step]))
        try:
            small(tmp_path, name=name, steps=3, eval_every=1, save_every=3)
        finally:
            monkeypatch.setattr(Run, "keep_best", real)

    scored("whole")
    with monkeypatch.context() as patch:
        calls = iter(range(100))

        def dies(real: Any) -> Any:
            def call(*args: Any, **more: Any) -> Any:
                if next(calls) == moment:
                    raise KeyboardInterrupt
                return real(*args, **more)

            return call

        patch.setattr(best, "write", dies(best.write))
        patch.setattr(best, "prune", dies(best.prune))
        with pytest.raises(KeyboardInterrupt):
            scored("killed")
    scored("killed")
    found = [best_of(tmp_path / name, "train") for name in ("whole", "killed")]
    assert found[0] == found[1] == best.Best(1, 0.9)
    assert all(
        torch.equal(x, weights_of_best(tmp_path / "whole")[k]) for k, x in weights_of_best(tmp_path / "killed").items()
    )


@pytest.mark.parametrize("moment", ["before", "half written"])
def test_a_kill_after_the_last_step_does_not_lose_its_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Two steps, and an evaluation only at the end: it is stopped once the last checkpoint is complete."""
    from posttrain.runs import best

    def dies(folder: Path, *_: Any) -> None:
        if moment == "half written":
            (folder / ".tmp-train-000001").mkdir(parents=True)
        raise KeyboardInterrupt

    how = {"eval_every": 5}
    whole = small(tmp_path, name="whole", **how)["best"]
    with monkeypatch.context() as patch:
        patch.setattr(best, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            small(tmp_path, name="killed", **how)
    assert [step for step, _ in listing(tmp_path / "killed/checkpoints", "train")] == [1]
    assert small(tmp_path, name="killed", **how)["best"] == whole == {"step": 2, "accuracy": whole["accuracy"]}
    assert [path.name for path in (tmp_path / "killed/best").iterdir()] == ["train-000001"]


def test_the_best_before_stays_until_the_new_one_is_complete_and_of_equal_ones_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posttrain.runs import best

    there: list[list[int]] = []
    write = best.write

    def looks(folder: Path, ck: Any) -> Path:
        there.append([step for step, _ in listing(folder, "train")])
        return write(folder, ck)

    monkeypatch.setattr(best, "write", looks)
    for step, score in ((1, 0.5), (3, 0.5), (5, 0.6), (7, 0.6), (9, 0.1)):
        best.keep_best(tmp_path, "train", best.Best(step, score), lambda: {"weights": {"w": torch.ones(2)}}, "")
    assert there == [[], [1]] and best_of(tmp_path, "train") == best.Best(5, 0.6)
    assert [step for step, _ in listing(tmp_path / "best", "train")] == [5]
    shutil.copytree(tmp_path / "best/train-000005", tmp_path / "best/train-000001")  # a kill before it was removed
    best.keep_best(tmp_path, "train", best.Best(5, 0.6), dict, "")
    assert [step for step, _ in listing(tmp_path / "best", "train")] == [5]


def test_what_a_kill_left_of_a_best_checkpoint_is_removed_at_the_next_start(tmp_path: Path) -> None:
    small(tmp_path)
    (tmp_path / "small/best/.tmp-train-000001").mkdir(parents=True)
    small(tmp_path)
    assert not list((tmp_path / "small/best").iterdir())


def weights_of_best(folder: Path) -> dict[str, torch.Tensor]:
    found = newest(folder / "best", "train")
    assert found is not None
    return found.tables["weights"]


def test_no_best_without_evaluations(tmp_path: Path) -> None:
    assert "best" not in small(tmp_path)
    with pytest.raises(UserError, match="no held-out score was measured between its steps"):
        load_trained(find_trained("small@best", tmp_path), build.load_policy)  # type: ignore[arg-type]
    assert "best" not in small(tmp_path, name="off", eval_every=1, keep_best=False)
