"""Half fine-tuning, as registered: which half of which layer learns, for which methods, and what the summary says of earlier tasks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.systems.supervised_from_reward.hft import KINDS, half, matrix_of, transfer
from tests.wiring import record, spies
from tests.wiring.spies import ROWS, traced

LAYER = [word for kind in KINDS.values() for word in kind]
EVERY = [(i, word) for i in range(6) for word in LAYER]
OF = {word: kind for kind, words in KINDS.items() for word in words}


@pytest.fixture
def files(tmp_path: Path) -> str:
    made = []
    for name, part in (("a", ROWS[:12]), ("b", ROWS[12:])):
        made.append(tmp_path / f"{name}.jsonl")
        made[-1].write_text("".join(json.dumps(r) + "\n" for r in part))
    return ",".join(map(str, made))


# ---- which half


def test_of_each_kind_half_learns_in_every_layer() -> None:
    for seed in range(20):
        mine = half(EVERY, "category", seed)
        counts = Counter((layer, OF[word]) for layer, word in mine)
        assert {counts[i, "attention"] for i in range(6)} == {2} and {counts[i, "norms"] for i in range(6)} == {1}
        forward = [counts[i, "feed-forward"] for i in range(6)]
        assert forward in ([1, 2] * 3, [2, 1] * 3), "9 of the 18 feed-forward matrices, in turn"


def test_every_matrix_is_drawn_as_often_as_another() -> None:
    """In 400 draws each of 4 and of 2 is taken 200 times on average (deviation 10), each of the 3 as well: 1.5 of 3."""
    drawn = Counter(m for seed in range(400) for m in half(EVERY, "category", seed))
    assert min(drawn.values()) > 150 and max(drawn.values()) < 250
    assert half(EVERY, "category", 7, 1) != half(EVERY, "category", 7, 2) and half(EVERY, "category", 7) == half(
        reversed(EVERY), "category", 7
    )


def test_coarser_halves() -> None:
    layers = half(EVERY, "layer", 3)
    assert len(layers) == 27 and Counter(i for i, _ in layers) == {i: 9 for i in {i for i, _ in layers}}
    assert len(half(EVERY, "model", 3)) == 27 and len(half(EVERY, "model", 3) & layers) < 27


def test_what_belongs_to_a_matrix_goes_with_it() -> None:
    assert matrix_of("model.model.layers.3.self_attn.q_proj.bias") == (3, "q_proj")
    assert matrix_of("model.model.layers.3.self_attn.k_norm.weight") == (3, "k_proj")
    assert matrix_of("layers.12.mlp.down_proj.weight") == (12, "down_proj")
    assert matrix_of("model.model.embed_tokens.weight") is None and matrix_of("model.model.norm.weight") is None


@pytest.mark.derived("plan/hft")
def test_backward_transfer() -> None:
    # after task 1: 0.8; after 2: 0.5 0.9; after 3: 0.4 0.7 0.6
    # overall = (0.4 + 0.7 + 0.6) / 3 = 0.566667; backward = ((0.4 - 0.8) + (0.7 - 0.9)) / 2 = -0.3
    found = transfer([[0.8], [0.5, 0.9], [0.4, 0.7, 0.6]])
    assert found == {"overall": pytest.approx(0.566667, abs=1e-6), "backward_transfer": pytest.approx(-0.3)}
    assert transfer([[0.8]]) == {"overall": 0.8}


# ---- on the registered plan


class Weights:
    """The weights as each phase's loop began and ended, and which of them had moments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, dict[str, torch.Tensor], dict[str, torch.Tensor], set[str]]] = []
        steps = record._STEPS

        def watched(loop: Any) -> Any:
            before = {n: p.detach().clone() for n, p in loop.policy.named_parameters()}
            yield from steps(loop)
            after = {n: p.detach().clone() for n, p in loop.policy.named_parameters()}
            kept = {n for n, p in loop.learner.named_parameters() if p in loop.learner.optimiser.state}
            self.seen.append((loop.phase, before, after, kept))

        monkeypatch.setattr(record, "_STEPS", watched)


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {n for n in before if not torch.equal(before[n], after[n])}


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_half_of_every_layer_learns_and_is_drawn_anew_for_each_task(
    method: str, files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method == "dpo":
        for file in files.split(","):
            rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
            pairs = [{"prompt": r["question"], "chosen": r["answer"], "rejected": "no"} for r in rows]
            Path(file).write_text("".join(json.dumps(r) + "\n" for r in pairs))
    kept = Weights(monkeypatch)
    trace = traced(f"hft(method={method!r}, tasks={files!r}, epochs=0.4)", rows="")
    assert [p.name for p in trace.phases] == [f"{method}-1", f"{method}-2"]
    assert [p.method.name for p in trace.phases] == [method] * 2
    halves = []
    for _, before, after, moments in kept.seen:
        changed = moved(before, after)
        counts = Counter(OF[m[1]] for m in map(matrix_of, changed) if m)
        assert counts["attention"] == 2 and counts["norms"] == 1 and counts["feed-forward"] in (1, 2)
        assert {n for n in before if matrix_of(n) is None} <= changed, "embeddings, head and last norm learn"
        assert moments == changed, "no moments of what does not learn"
        halves.append(changed)
    assert halves[0] != halves[1], "the second task has a half of its own"
    known = [
        {json.loads(x).get("question", json.loads(x).get("prompt")) for x in Path(file).read_text().splitlines()}
        for file in files.split(",")
    ]
    seen = [{r.prompt.last for s in trace.steps if s.phase == f"{method}-{i}" for r in s.rollouts} for i in (1, 2)]
    assert seen[0] and seen[0] <= known[0] and seen[1] and seen[1] <= known[1], "each phase learns its own task"
    assert kept.seen[1][1].keys() == kept.seen[0][2].keys() and not moved(kept.seen[0][2], kept.seen[1][1])
    assert all(p.requires_grad for p in trace.roles["policy"].parameters()), "all is free at the end"
    assert [len(row) for row in trace.summary["held_out"]] == [1, 2] and "backward_transfer" in trace.summary
    assert all(0.4 < x < 0.9 for x in trace.summary["share_learned"])


def test_one_task_in_rounds_and_without_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Weights(monkeypatch)
    trace = traced("hft(epochs=0.2, rounds=3, embeddings=False)")
    assert [p.name for p in trace.phases] == ["sft-1-1", "sft-1-2", "sft-1-3"]
    halves = [moved(before, after) for _, before, after, _ in kept.seen]
    assert all(matrix_of(n) for names in halves for n in names) and len({frozenset(h) for h in halves}) > 1
    assert trace.summary["accuracy_before"] is not None and "held_out" not in trace.summary


def test_a_method_that_samples_is_paid_by_the_reward() -> None:
    trace = traced("hft(method='raft', epochs=0.1)", reward=lambda prompt, text: float(len(text)))
    assert [p.method.name for p in trace.phases] == ["raft"] and trace.calls


def test_a_run_that_was_killed_goes_on_with_the_same_half(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    asked: dict[str, Any] = {
        "method": "hft(epochs=0.5, rounds=2)", "task": str(rows), "model": spies.tiny_folder(), "prompts": 2, "threads": 1,
        "eval_problems": 0, "save_every": 2, "warmup": 0, "lr": 3e-3,
    }  # fmt: skip

    class Kill:
        def on_step(self, loop: Any, step: int, metrics: Any) -> None:
            if loop.phase == "sft-1-2" and step == 3:
                raise KeyboardInterrupt

    pt.run(name="whole", runs=tmp_path, **asked)
    with pytest.raises(KeyboardInterrupt):
        pt.run(name="killed", runs=tmp_path, callbacks=(Kill(),), **asked)
    pt.run(name="killed", runs=tmp_path, **asked)
    from safetensors.torch import load_file

    last = [sorted((tmp_path / n / "checkpoints").glob("sft-1-2-*"))[-1] for n in ("whole", "killed")]
    one, two = ({k: x for f in path.glob("*.safetensors") for k, x in load_file(f).items()} for path in last)
    assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def test_what_it_cannot_do_is_said(files: str) -> None:
    with pytest.raises(pt.UserError, match="leave --lora away"):
        traced("hft", lora=4)
    with pytest.raises(pt.UserError, match="way to draw a half"):
        traced("hft(level='layers')")
    with pytest.raises(pt.UserError, match="not reward-model"):
        traced("hft(method='reward-model')")
    with pytest.raises(pt.UserError, match="does not use --task"):
        traced(f"hft(tasks={files!r})", ROWS)
