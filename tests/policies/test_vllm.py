"""Sampling by vLLM: over HTTP with a server in a process of its own (`vllm_server.py`), in process with a stand-in for `vllm.LLM`."""

from __future__ import annotations

import json
import subprocess
import sys
import types
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from posttrain.api import run_config
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.distributed.refuse import refuse
from posttrain.methods.grpo import grpo
from posttrain.models.lora import add_lora
from posttrain.policies.load import load_model
from posttrain.policies.vllm.choose import sampling_engine
from posttrain.policies.vllm.in_process import LocalEngine
from posttrain.policies.vllm.over_http import ServerEngine
from posttrain.policies.vllm.request import check, sample_of
from posttrain.policies.vllm.server import Gone, Server
from tests.models.tiny import ours, prompts, saved, theirs

HOW = Sampling(12)
ASKED = prompts("abc", "what is 1", "q")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(ours("llama-gqa-tied"), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def url(folder: str) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.policies.vllm_server", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdin is not None
        yield server.stdout.readline().strip()
        server.stdin.close()
        server.wait(20)


def engine(policy: Any, address: str, tmp_path: Path) -> ServerEngine:
    made = ServerEngine(Server(address, timeout=30, patience=0.2), policy, tmp_path / "engine")
    policy.outside = made
    return made


def seen(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}/seen") as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def gap(policy: Any, groups: Any) -> float:
    """The largest distance of a sampled token's log-probability to the trainer's own."""
    rollouts = [r for g in groups for r in g]
    logp_BT = policy.forward(rollouts, ("logp_BT",))["logp_BT"].detach()
    return max(float((logp_BT[b, : len(r)] - r.logp_T).abs().max()) for b, r in enumerate(rollouts))


@torch.no_grad()
def moved(policy: Any) -> None:
    for p in policy.model.parameters():
        p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))


def test_answers_of_a_server_are_those_of_the_weights_as_they_are(folder: str, url: str, tmp_path: Path) -> None:
    policy = load_model(folder, "cpu")
    greedy = [[r.actions.tolist() for r in g] for g in policy.sample(ASKED, 1, Sampling(12, temperature=0.0))]
    mine = engine(policy, f"{url}/processed", tmp_path)
    first = policy.sample(ASKED, 4, HOW)
    assert gap(policy, first) < 1e-4
    assert len({tuple(r.actions.tolist()) for r in first[1]}) > 1, "siblings have seeds of their own"
    again = policy.sample(ASKED, 4, HOW)
    assert [[r.actions.tolist() for r in g] for g in again] == [[r.actions.tolist() for r in g] for g in first]
    ended = [r for g in first for r in g if len(r) < 12]
    assert ended and all(int(r.actions[-1]) == 1 and r.stop == "stop" for r in ended)
    assert all(r.stop == "length" for g in first for r in g if int(r.actions[-1]) != 1)
    assert [[r.actions.tolist() for r in g] for g in policy.sample(ASKED, 1, Sampling(12, temperature=0.0))] == greedy
    moved(policy)  # as an optimiser does: in place
    assert gap(policy, policy.sample(ASKED, 4, HOW)) < 1e-4, "weights and prefixes of before were used"
    told = seen(f"{url}/processed")
    assert len(told["loaded"]) == told["resets"] == 2
    assert len({body["cache_salt"] for body in told["asked"]}) == 2, (
        "by version, also where somebody else keeps prefixes"
    )
    mine.close()
    assert not (tmp_path / "engine").exists()


def test_log_probabilities_are_of_the_distribution_that_is_trained(folder: str, url: str, tmp_path: Path) -> None:
    policy = load_model(folder, "cpu")
    cold = Sampling(12, temperature=0.7)
    engine(policy, f"{url}/processed", tmp_path)
    policy.temperature = 0.7
    assert gap(policy, policy.sample(ASKED, 2, cold)) < 1e-4
    with pytest.raises(UserError, match=r"after top_k, top_p and min_p.*switch truncation off"):
        policy.sample(ASKED, 2, Sampling(12, temperature=0.7, top_p=0.8))
    with pytest.raises(UserError, match="--logprobs-mode raw_logprobs"):
        policy.sample(ASKED, 2, Sampling(12, top_p=0.8))
    engine(policy, f"{url}/raw", tmp_path)
    with pytest.raises(UserError, match=r"temperature 0.7.*--logprobs-mode processed_logprobs"):
        policy.sample(ASKED, 2, cold)
    policy.temperature = 1.0
    assert gap(policy, policy.sample(ASKED, 2, Sampling(12, top_k=3))) < 1e-4, "those before truncation"


def test_adapters_go_by_name_and_the_old_ones_are_unloaded(folder: str, url: str, tmp_path: Path) -> None:
    policy = add_lora(load_model(folder, "cpu"), 2, seed=0)
    mine = engine(policy, f"{url}/fresh", tmp_path)
    assert gap(policy, policy.sample(ASKED, 2, HOW)) < 1e-4
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if name.endswith("lora_b"):
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    before = seen(f"{url}/fresh")
    assert gap(policy, policy.sample(ASKED, 2, HOW)) < 1e-4
    now = seen(f"{url}/fresh")
    assert now["loaded"] == before["loaded"], "the base stays as it is"
    assert len(now["adapters"]) == 1 and now["adapters"] != before["adapters"]
    mine.close()
    assert seen(f"{url}/fresh")["adapters"] == []


def test_an_answer_ends_where_the_server_has_no_more_room(folder: str, url: str, tmp_path: Path) -> None:
    policy = load_model(folder, "cpu")
    engine(policy, f"{url}/short", tmp_path)
    long = policy.sample(prompts("abcdefghijklmnopq", "a"), 2, Sampling(20))
    assert [policy.encode(p).numel() for p in prompts("abcdefghijklmnopq", "a")] == [17, 1]
    assert max(len(r) for r in long[0]) <= 7 and gap(policy, long) < 1e-4
    with pytest.raises(UserError, match="window of 24 positions"):
        policy.sample(prompts("a" * 30), 1, HOW)


@pytest.mark.parametrize(
    "server, lora, told",
    [
        ("user", 0, "takes no new weights; start it with VLLM_SERVER_DEV_MODE=1"),
        ("user", 2, "takes no adapters; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        ("silent", 0, "without the log-probability of each token"),
        (
            "deaf",
            0,
            "differ from those of the model that is trained by .* nats per token after it was sent the weights",
        ),
        ("other", 0, "makes other token ids of .* serve the same --model"),
        (
            "used",
            2,
            "after it was sent the adapter: another --model, or the weights that a run without --lora left there; start it again",
        ),
    ],
)
def test_a_server_that_cannot_do_it(folder: str, url: str, tmp_path: Path, server: str, lora: int, told: str) -> None:
    policy = load_model(folder, "cpu")
    policy = add_lora(policy, lora, seed=0) if lora else policy
    if server != "used":
        moved(policy)
    engine(policy, f"{url}/{server}", tmp_path)
    with pytest.raises(UserError, match=told):
        policy.sample(ASKED, 2, HOW)


def test_addresses(folder: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_model(folder, "cpu")
    with pytest.raises(UserError, match="export VLLM_API_KEY="):
        engine(policy, f"{url}/locked", tmp_path)
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    engine(policy, f"{url}/locked/v1", tmp_path)
    with pytest.raises(UserError, match=r"nothing answers at http://127.0.0.1:1 .*vllm serve"):
        engine(policy, "http://127.0.0.1:1", tmp_path)
    with pytest.raises(UserError, match="answered 404"):
        engine(policy, f"{url}/nowhere", tmp_path)
    for bad in ("http://", "http://host:x", "http://host:99999", "ftp://host"):
        with pytest.raises(UserError, match="write it like http://host:8000"):
            Server(bad)


def test_a_server_that_was_started_again_gets_the_weights_again(folder: str, url: str, tmp_path: Path) -> None:
    policy = load_model(folder, "cpu")
    mine = engine(policy, f"{url}/processed", tmp_path)
    policy.sample(ASKED, 1, HOW)
    sent, post, fails = len(seen(f"{url}/processed")["loaded"]), mine.server.post, [1]

    def broken(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/v1/completions" and fails:
            fails.pop()
            raise Gone("connection reset")
        return post(path, body)

    mine.server.post = broken  # type: ignore[method-assign]
    assert gap(policy, policy.sample(ASKED, 2, HOW)) < 1e-4
    assert len(seen(f"{url}/processed")["loaded"]) == sent + 1
    fails[:] = [1] * 100
    with pytest.raises(UserError, match="went away 3 times"):
        policy.sample(ASKED, 2, HOW)


def settings(folder: str, **changes: Any) -> Config:
    plain: dict[str, Any] = {
        "model": folder, "task": "rows", "name": "by-vllm", "steps": 3, "prompts": 3, "num_generations": 4, "lr": 1e-2,
        "warmup": 0, "eval_problems": 0, "device": "cpu", "threads": 1, "sampling": Sampling(8), "max_norm": 10.0,
    }  # fmt: skip
    return Config(**(plain | changes))


class Steps:
    def __init__(self) -> None:
        self.gaps: list[float] = []

    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        self.gaps.append(metrics["logp_gap_max"])


def letters(prompt: Any, text: str) -> float:
    return text.count("a") / max(len(text), 1)


@pytest.mark.parametrize("more", [{}, {"sampler": "process"}], ids=["here", "worker"])
def test_a_run_whose_answers_a_server_samples(
    folder: str, url: str, tmp_path: Path, more: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"question": q, "answer": "a"}) + "\n" for q in ("abc", "what", "q", "why", "b"))
    )
    (tmp_path / "reward.py").write_text("def letters(prompt, text):\n    return text.count('a') / max(len(text), 1)\n")
    config = settings(folder, engine=f"{url}/processed", task=str(rows), reward=f"{tmp_path}/reward.py:letters", **more)
    before, watch = len(seen(f"{url}/processed")["loaded"]), Steps()
    run_config(config, tmp_path / "runs", callbacks=(watch,))
    assert len(watch.gaps) == 3 and max(watch.gaps) < 1e-3
    assert len(seen(f"{url}/processed")["loaded"]) >= before + 3, "after every update"
    told = capsys.readouterr().err
    assert "differ" not in told
    assert more or "cannot be repeated to the bit" in told
    assert not list((tmp_path / "runs" / "by-vllm" / "engine").rglob("*.safetensors")) or more


def test_mistakes_before_anything_is_loaded(folder: str) -> None:
    for changes, told in (
        ({"engine": "vllm"}, 'vLLM is not installed; pip install "posttrain\\[vllm\\]"'),
        ({"engine": "vlm"}, "no engine named 'vlm'; did you mean 'vllm'"),
        ({"engine": "host:8000"}, "write an address like http://host:8000"),
        ({"engine": "http://a,http://b"}, "--engine names 2 servers, and 1 process samples"),
        ({"engine": "http://a", "sampler": "process", "rollout_workers": 2}, "names 1 server, and 2 processes sample"),
    ):
        if changes["engine"] == "vllm" and "vllm" in sys.modules:
            continue
        with pytest.raises(UserError, match=told):
            refuse(settings(folder, **changes), grpo, {})
    with (
        pytest.raises(UserError, match="samples from language models"),
        sampling_engine(object(), settings(folder, engine="http://a"), Path()),
    ):
        pass


def test_an_answer_must_be_what_was_asked_for() -> None:
    how = Sampling(3)
    assert sample_of([4, 1], [-1.0, -2], "stop", how, [1]).stopped
    assert not sample_of([4, 5, 6], [-1.0, -2.0, -3.0], "length", how, [1]).stopped
    for tokens, logp, why, told in (
        (None, [0.0], "stop", "without token ids"),
        ([4, 1], [-1.0], "stop", "log-probability of each token"),
        ([4, 1], [-1.0, None], "stop", "log-probability of each token"),
        ([4, 1], [-1.0, float("nan")], "stop", "log-probability of each token"),
        ([4, 7], [-1.0, -1.0], "stop", "ended an answer at token 7"),
        ([4, 5], [-1.0, -1.0], "length", "after 2 of 3 tokens"),
        ([4, 5, 6], [-1.0, -1.0, -1.0], "abort", "abort"),
    ):
        with pytest.raises(UserError, match=told):
            sample_of(tokens, logp, why, how, [1])
    check(Sampling(3, temperature=0.0, top_p=0.5), "processed_logprobs")  # greedy: nothing is truncated


# ---- in process


class LLM:
    """What is used of `vllm.LLM` 0.24 (vllm/entrypoints/llm.py, vllm/outputs.py): the answers are those of the weights that it was given."""

    made: list[LLM] = []

    def __init__(self, model: str, **options: Any) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(model).eval()
        self.options, self.resets = options, 0
        self.llm_engine = types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=64))
        LLM.made.append(self)

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> list[None]:
        """Its loaders know the names of folders, in which a head that is the embedding has none: others they refuse."""
        assert method == "reload_weights"
        tied = self.model.config.tie_word_embeddings
        given = load_file(Path(kwargs["weights_path"]) / "model.safetensors") if "weights_path" in kwargs else dict(kwargs["weights_iterator"])  # fmt: skip
        if tied and "lm_head.weight" in given:
            raise ValueError("There is no module or parameter named 'lm_head'")
        missing, unexpected = self.model.load_state_dict(given, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}
        return [None]

    def reset_prefix_cache(self) -> bool:
        self.resets += 1
        return True

    @torch.no_grad()
    def generate(self, asked: list[dict[str, Any]], params: list[Any], use_tqdm: bool) -> list[Any]:
        return [types.SimpleNamespace(outputs=self.outputs(a["prompt_token_ids"], p)) for a, p in zip(asked, params, strict=True)]  # fmt: skip

    def outputs(self, prompt: list[int], p: Any) -> list[Any]:
        made = [self.output(torch.tensor(prompt), p, i) for i in range(p.n)]
        return made[::-1]  # in any order: `index` says which

    def output(self, context: Tensor, p: Any, index: int) -> Any:
        draw, tokens, said, why = torch.Generator().manual_seed(p.seed + index), list[int](), list[Any](), "length"
        while len(tokens) < p.max_tokens and why == "length":
            logp_V = self.model(input_ids=torch.cat([context, torch.tensor(tokens, dtype=torch.long)])[None]).logits[0, -1].log_softmax(-1)  # fmt: skip
            token = int(torch.multinomial(logp_V.exp(), 1, generator=draw))
            tokens.append(token)
            said.append({7: types.SimpleNamespace(logprob=0.0), token: types.SimpleNamespace(logprob=float(logp_V[token]))})  # fmt: skip
            why = "stop" if token in p.stop_token_ids else why
        return types.SimpleNamespace(index=index, token_ids=tuple(tokens), logprobs=said, finish_reason=why)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.ModuleType("vllm")
    stand_in.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    stand_in.LLM = LLM  # type: ignore[attr-defined]
    stand_in.SamplingParams = lambda **given: types.SimpleNamespace(**given)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def test_in_process(folder: str, tmp_path: Path, stand_in: None) -> None:
    policy = load_model(folder, "cpu")
    policy.outside = made = LocalEngine(policy, tmp_path / "e", HOW, {"enforce_eager": True})
    assert LLM.made[-1].options == {
        "gpu_memory_utilization": 0.4, "logprobs_mode": "raw_logprobs", "generation_config": "vllm", "enforce_eager": True,
    }  # fmt: skip
    assert gap(policy, policy.sample(ASKED, 3, HOW)) < 1e-4
    moved(policy)
    assert gap(policy, policy.sample(ASKED, 3, HOW)) < 1e-4
    assert gap(policy, policy.sample(ASKED, 3, HOW)) < 1e-4
    assert LLM.made[-1].resets == 2, "once for each change"
    made.close()


def test_models_outside_our_family_go_through_a_folder(tmp_path: Path, stand_in: None) -> None:
    """In memory transformers has a head for them that no folder has; vLLM 0.32 refuses it by name."""
    policy = load_model(saved(theirs("gemma2"), tmp_path / "gemma2"), "cpu")
    policy.outside = made = LocalEngine(policy, tmp_path / "e", HOW, {})
    assert gap(policy, policy.sample(ASKED, 2, HOW)) < 1e-4
    moved(policy)
    assert gap(policy, policy.sample(ASKED, 2, HOW)) < 1e-4
    made.close()


def test_weights_that_vllm_does_not_take_are_a_sentence(folder: str, tmp_path: Path, stand_in: None) -> None:
    policy = load_model(folder, "cpu")
    policy.outside = LocalEngine(policy, tmp_path / "e", HOW, {})
    LLM.made[-1].model.config.tie_word_embeddings = True
    named = {"lm_head.weight": torch.zeros(1)}
    with pytest.raises(UserError, match=r"vLLM did not take the new weights .*no module or parameter named 'lm_head'"):
        policy.outside._reload(weights_iterator=named.items())
