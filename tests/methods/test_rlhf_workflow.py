"""The whole of RLHF on the embedded model, as small as it gets: every optimiser, real pairs, an exact restart."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.api import run_plan
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.core.sampling import Sampling
from posttrain.evals.overoptimisation import Point
from posttrain.runs.run import Run
from posttrain.systems.preference.rlhf_workflow import curves, rlhf_workflow, verdict

TINY: dict[str, Any] = {"rounds": 1, "steps": 1, "prompts": 16}


def config(**changes: Any) -> Config:
    plain: dict[str, Any] = {"name": "w", "prompts": 4, "eval_problems": 8, "sampling": Sampling(max_tokens=24)}
    return Config(**(plain | changes))


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("all")
    return run_plan(rlhf_workflow("all", **TINY), config(), folder), folder / "w"


def test_every_optimiser_is_measured_and_drawn(everything: tuple[dict[str, Any], Path]) -> None:
    summary, folder = everything
    measured = summary["measured"]
    assert list(curves(measured)) == ["online-dpo", "ppo", "grpo", "raft", "best-of-n"]
    for name in ("online-dpo", "ppo", "grpo", "raft"):
        found = measured[f"{name}-measured.1"]
        assert {"gold", "proxy", "kl", "win_rate", "diversity_per_input", "diversity_across_input"} <= found.keys()
        assert 0 <= found["win_rate"] <= 1
    assert (folder / "frontier.png").stat().st_size > 5000 and (folder / "frontier-proxy.png").exists()
    assert summary["overoptimisation"].keys() == curves(measured).keys()
    assert all(f"{name}: gold" in summary["verdict"] for name in curves(measured))


def test_the_start_is_the_sft_policy(everything: tuple[dict[str, Any], Path]) -> None:
    start = everything[0]["measured"]["start"]
    assert start["kl"] == 0.0
    assert abs(start["proxy"]) < 1.0  # other answers than those it was centred on, but of the same policy


def test_best_of_n_believes_more_with_every_n(everything: tuple[dict[str, Any], Path]) -> None:
    proxy = [v["proxy"] for k, v in everything[0]["measured"].items() if k.startswith("best-of-n")]
    assert len(proxy) == 6 and proxy == sorted(proxy)  # the maximum of more is more


def test_the_reward_model_is_judged(everything: tuple[dict[str, Any], Path]) -> None:
    summary = everything[0]
    assert summary["reward_model_pairs_held_out"] == int(0.2 * summary["pairs"])
    assert 0 <= summary["reward_model_accuracy"] <= 1 and 0 <= summary["reward_model_calibration_error"] <= 0.5


def test_pairs_are_kept_as_an_artifact(everything: tuple[dict[str, Any], Path]) -> None:
    rows = Run.open(everything[1]).read_artifact("pairs")
    assert 12 <= len(rows) <= 16 and all(r["chosen"] != r["rejected"] for r in rows)
    assert everything[0]["labels_right"] == sum(r["right"] for r in rows) / len(rows) > 0.5


class Cut(Exception):
    pass


def test_a_restart_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off in the middle: reward model, reference, artifacts and notes come back; files are equal byte for byte."""
    settings, plan = config(save_every=1), rlhf_workflow("online-dpo", **TINY | {"steps": 2})
    whole = run_plan(plan, settings, tmp_path / "whole")
    finish = Run.finish

    def cut(self: Run, phase: str) -> None:
        if phase == "online-dpo.1":
            raise Cut
        finish(self, phase)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "finish", cut)
        with pytest.raises(Cut):
            run_plan(plan, settings, tmp_path / "cut")
    assert run_plan(plan, settings, tmp_path / "cut") | {"seconds": whole["seconds"]} == whole
    for pattern in ("checkpoints/*/*.safetensors", "artifacts/*"):
        a, b = (sorted((tmp_path / k / "w").glob(pattern)) for k in ("whole", "cut"))
        assert [x.name for x in a] == [x.name for x in b] and len(a) >= 2
        assert all(x.read_bytes() == y.read_bytes() for x, y in zip(a, b, strict=True))


def test_real_pairs_have_no_gold(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "hh_rlhf"
    folder.mkdir(parents=True)
    for file in ("harmless_train_first_turn_5k.jsonl.gz", "harmless_base_test.jsonl.gz"):
        asked = [f"\n\nHuman: Say {i} to {file}\n\nAssistant:" for i in range(12)]
        with gzip.open(folder / file, "wt") as out:
            out.writelines(json.dumps({"chosen": f"{a} Yes, of course", "rejected": f"{a} No"}) + "\n" for a in asked)
    settings = config(data=str(tmp_path / "data"), sampling=Sampling(max_tokens=8))
    summary = run_plan(rlhf_workflow("online-dpo", data="hh_rlhf", **TINY), settings, tmp_path)
    found = summary["measured"]["online-dpo-measured.1"]
    assert "gold" not in found and {"proxy", "kl", "win_rate"} <= found.keys() and "verdict" not in summary
    assert summary["pairs"] == 12


def test_options_are_checked_and_kept() -> None:
    with pytest.raises(UserError, match="no optimiser named 'online_dpoo'; did you mean 'online-dpo'"):
        rlhf_workflow("online_dpoo")
    with pytest.raises(UserError, match="got rounds=0"):
        rlhf_workflow(rounds=0)
    plan = find("rlhf-workflow(beta=0.5, rounds=1)", "plan")()
    assert plan.options["beta"] == 0.5 and plan.options["optimiser"] == "dpo"


def test_curves_and_verdicts() -> None:
    point = {"kl": 0.0, "proxy": 0.0, "gold": 1.0}
    measured = {
        "start": point,
        "ppo-measured.1": point | {"kl": 2.0, "gold": 1.5},
        "ppo-measured.2": point | {"kl": 4.0},
    }
    assert [p.kl for p in curves(measured)["ppo"]] == [0.0, 2.0, 4.0]
    rising = [Point(0, 0, 0), Point(1, 1, 1)]
    assert "over-optimised" not in verdict(rising)
    assert "over-optimised: gold was 1.00 at 1.0 nats" in verdict([*rising, Point(2, 2, 0.5)])
