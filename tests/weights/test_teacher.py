"""A teacher in the place of the reference: what it says of tokens, whose tokens they must be, and that no checkpoint holds it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.policies.load import load_model, save_model
from posttrain.weights.teacher import teacher
from tests.models import tiny
from tests.wiring.spies import ROWS, tiny_folder

NAMES = ("logp_BT", "topk_id_BTK", "topk_logp_BTK")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model with other weights."""
    made = load_model(tiny_folder(), "cpu")
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    path = tmp_path_factory.mktemp("teacher")
    save_model(made, path)
    return str(path)


def rows_of(policy: Any) -> list[Any]:
    return [policy.written(Prompt.text(str(i), "ab cd"), text).row for i, text in enumerate(("hello", "a b", "xyz"))]


def test_a_teacher_tells_its_own_log_probabilities_and_its_likeliest_tokens(folder: str) -> None:
    policy, other = load_model(tiny_folder(), "cpu"), load_model(folder, "cpu")
    policy.temperature = other.temperature = 0.7
    live = teacher.but(model=folder, k=5).live()
    live.start(policy)
    rows = rows_of(policy)
    found = live.streams(rows, NAMES)
    every = other.forward(rows, ("logp_BT", "dist_BTV"))
    torch.testing.assert_close(found["logp_BT"], every["logp_BT"])
    for b, row in enumerate(rows):
        want = every["dist_BTV"][b, : len(row)].topk(5, -1)
        assert torch.equal(found["topk_id_BTK"][b, : len(row)], want.indices)
        torch.testing.assert_close(found["topk_logp_BTK"][b, : len(row)], want.values)
    assert (found["logp_BT"] - policy.forward(rows, ("logp_BT",))["logp_BT"]).abs().max() > 0.1
    assert not any(p.requires_grad for p in live.policy.parameters()) and live.tensors() == {}


def test_a_teacher_with_other_tokens_is_refused(tmp_path: Path) -> None:
    live = teacher.but(model=tiny.saved(tiny.ours("llama-gqa-tied"), tmp_path)).live()
    with pytest.raises(UserError, match=r"has another tokenizer than .* use a teacher of the same family"):
        live.start(load_model(tiny_folder(), "cpu"))


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("teacher", r"a teacher is needed, and none was named: --reference \"teacher\(model='FOLDER'\)\""),
        ("teacher(model='no such folder')", "no model named 'no such folder'"),
        ("teacher(model='http://')", "is no address; write it like http://host:8000"),
        (
            "teacher(model='http://localhost:1')",
            "a server tells no whole distribution, and ref_head_VD, ref_hidden_BTD",
        ),
        ("teacher(model='pocket', k=0)", "k is 0; a teacher tells 1"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(
    reference: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posttrain.runs.build.load_model", lambda *args: pytest.fail("a model was loaded"))
    with pytest.raises(UserError, match=told):
        pt.run(model=tiny_folder(), task=ROWS, method=f"gkd(reference={reference!r})", runs=tmp_path)
    assert not list(tmp_path.iterdir())


def settings(folder: str, tmp_path: Path, name: str, **more: Any) -> dict[str, Any]:
    plain = {
        "method": taught(f"teacher(model='{folder}')"),
        "model": tiny_folder(),
        "task": ROWS,
        "runs": tmp_path,
        "name": name,
        "prompts": 2,
        "threads": 1,
        "eval_problems": 0,
    }
    return plain | {"sampling": {"max_tokens": 6}, "save_every": 1} | more


def taught(by: str, more: str = "") -> str:
    return f"gkd(reference={by!r}{more})"


def test_a_run_goes_on_with_the_same_teacher_which_no_checkpoint_holds(folder: str, tmp_path: Path) -> None:
    pt.run(steps=4, **settings(folder, tmp_path, "whole"))
    saved = [f.name for f in (tmp_path / "whole" / "checkpoints").rglob("*.safetensors")]
    assert saved and not any("reference" in name for name in saved)

    class Halts:
        def on_step(self, loop: Any, step: int, *args: Any) -> None:
            if step == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pt.run(steps=4, callbacks=[Halts()], **settings(folder, tmp_path, "halted"))
    pt.run(steps=4, **settings(folder, tmp_path, "halted"))
    read = [sorted(weights(tmp_path / name).items()) for name in ("whole", "halted")]
    assert all(torch.equal(a[1], b[1]) for a, b in zip(*read, strict=True))


def weights(run: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    newest = sorted((run / "checkpoints").iterdir())[-1]
    return {k: x for f in newest.rglob("*.safetensors") for k, x in load_file(f).items()}


def test_a_run_can_be_a_teacher(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pt.run(steps=1, **settings(folder, tmp_path / "runs", "tutor", lr=0.01))
    live = teacher.but(model="runs/tutor").live()
    policy = load_model(tiny_folder(), "cpu")
    live.start(policy)
    rows = rows_of(policy)
    assert (live.streams(rows, ["logp_BT"])["logp_BT"] - policy.forward(rows)["logp_BT"]).abs().max() > 1e-3


# ---- a server


@pytest.fixture(scope="module")
def url(folder: str) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.policies.vllm_server", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdin is not None
        yield server.stdout.readline().strip()
        server.stdin.close()
        server.wait(20)


def test_a_server_says_what_the_model_that_it_serves_says_here(folder: str, url: str) -> None:
    policy = load_model(tiny_folder(), "cpu")
    here, there = (teacher.but(model=m, k=5).live() for m in (folder, f"{url}/raw"))
    here.start(policy), there.start(policy)
    rows = rows_of(policy)
    want, found = here.streams(rows, NAMES), there.streams(rows, NAMES)
    for b, row in enumerate(rows):
        for name in NAMES:
            torch.testing.assert_close(found[name][b, : len(row)], want[name][b, : len(row)], atol=1e-4, rtol=1e-4)
    assert there.networks == ()
    policy.temperature = 0.7
    with pytest.raises(UserError, match=r"tells log-probabilities at temperature 1, and this run has 0.7"):
        there.streams(rows, NAMES)


def test_a_server_is_asked_for_no_more_than_it_tells(url: str) -> None:
    live = teacher.but(model=f"{url}/raw", k=50).live()
    policy = load_model(tiny_folder(), "cpu")
    live.start(policy)
    with pytest.raises(
        UserError, match="greater than max allowed: 20; start it with --max-logprobs 50, or ask for fewer: k=20"
    ):
        live.streams(rows_of(policy), NAMES)
    other = teacher.but(model=f"{url}/other", k=5).live()
    other.start(policy)
    with pytest.raises(UserError, match="makes other token ids"):
        other.streams(rows_of(policy), NAMES)


def test_a_student_learns_from_a_servers_likeliest_tokens(url: str, tmp_path: Path) -> None:
    few = ", loss='topk-divergence'"
    told = settings("", tmp_path, "served", lr=0.01, method=taught(f"teacher(model='{url}/raw', k=10)", few))
    found = pt.run(steps=2, **told)
    assert json.loads((tmp_path / "served" / "state.json").read_text()) and found
    with pytest.raises(UserError, match=r"nothing answers at http://127.0.0.1:9"):
        pt.run(steps=2, **(told | {"name": "no", "method": taught("teacher(model='http://127.0.0.1:9')", few)}))
