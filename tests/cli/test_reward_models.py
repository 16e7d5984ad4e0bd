"""`--reward runs/NAME`: a reward model that was trained here, or one of Hugging Face, rewards another run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.environments.school import school
from posttrain.policies.load import POCKET
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.scorers.learned import LearnedReward
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.runs.best import Best, keep_best
from posttrain.runs.inputs import inputs
from posttrain.runs.run import Run
from posttrain.runs.saved import load_reward_model
from tests.cli.conftest import Said, call

GRPO = [
    "run",
    "grpo",
    "--steps",
    "1",
    "--prompts",
    "2",
    "--num-generations",
    "2",
    "--eval-problems",
    "0",
    "--log-rollouts",
    "-1",
]
SHORT = ["--sampling.max-tokens", "8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """Two steps of reward-model on forty pairs."""
    rows = [{"prompt": f"What is {i}+1?", "chosen": str(i + 1), "rejected": f"{i}, I think"} for i in range(40)]
    file = folder / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = ["--steps", "2", "--prompts", "8", "--lr", "0.003", "--eval-problems", "4"]
    said = call("run", "reward-model", *small, "--task", str(file), "--runs", str(folder), "--name", "my-rm", "--quiet")
    assert said.code == 0, said.err
    assert "posttrain run grpo --reward" in said.out
    return folder / "my-rm"


@pytest.fixture(scope="module")
def classifier(folder: Path) -> Path:
    """A tiny Llama with one label and random weights, with the built-in model's tokenizer and chat template."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(POCKET)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_labels=1, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = LlamaForSequenceClassification(config)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder / "hf-rm")
    tokenizer.save_pretrained(folder / "hf-rm")
    return folder / "hf-rm"


def answered(run: Path) -> list[tuple[Prompt, str, float]]:
    """(prompt, answer, reward) of everything a run sampled, from its own database."""
    env = school("arithmetic")
    with Run.open(run) as opened:
        rows = opened.store.rollouts()
    return [(env.prompt(int(r["prompt_id"].rpartition("-")[2])), r["text"], r["reward"]) for r in rows]


def grpo(reward: str, folder: Path, name: str) -> Said:
    return call(*GRPO, *SHORT, "--reward", reward, "--runs", str(folder), "--name", name, "--quiet")


def test_a_run_rewards_another_run(trained: Path, folder: Path) -> None:
    """The rewards are the scores of that model's head on prompt and answer, worked out here without a scorer."""
    said = grpo(str(trained), folder, "by-run")
    assert said.code == 0, said.err
    policy, seen = load_reward_model(trained), answered(folder / "by-run")
    with torch.no_grad():
        want = [float(policy.forward([policy.written(p, text)], ("score_B",))["score_B"]) for p, text, _ in seen]
    assert len(seen) == 4 and [r for _, _, r in seen] == pytest.approx(want, abs=1e-5)
    assert max(want) - min(want) > 1e-4  # two steps have taught the head something


def test_a_run_in_a_sum(trained: Path, folder: Path) -> None:
    said = grpo(f"format + 0.5*{trained}", folder, "in-a-sum")
    assert said.code == 0, said.err
    model = LearnedReward(str(trained))
    for prompt, text, reward in answered(folder / "in-a-sum"):
        rule = build_scorer("format", None).texts([prompt], [text])[0][0]
        assert reward == pytest.approx(rule + 0.5 * model.texts([prompt], [text])[0][0], abs=1e-5)


def test_the_best_checkpoint_of_a_run(trained: Path, folder: Path) -> None:
    """`@best` is those weights, alone and in a sum, and a part of the run's identity; a sentence where none was kept."""
    kept = folder / "kept-rm"
    shutil.copytree(trained, kept)
    none = grpo(f"{kept}@best", folder, "no-best")
    assert none.code == 2 and "no held-out score was measured between its steps" in none.err, none.err
    weights = {k: x.clone() for k, x in load_reward_model(trained).state_dict().items()}
    weights |= {k: x * 0 + 7 * k.endswith("bias") for k, x in weights.items() if k.startswith("score.")}
    keep_best(kept, "train", Best(0, 2.0), lambda: {"weights": weights}, "")
    prompts, texts = [school("arithmetic").prompt(i) for i in range(2)], ["4", "a longer answer"]
    assert LearnedReward(f"{kept}@best").texts(prompts, texts)[0] == pytest.approx([7.0, 7.0])
    assert LearnedReward(str(kept)).texts(prompts, texts)[0] != pytest.approx([7.0, 7.0])
    both = build_scorer(f"0*format + 0.5*{kept}@best", None)
    assert both.texts(prompts, texts)[0] == pytest.approx([3.5, 3.5])
    assert inputs(f"format + 0.5*{kept}@best")[f"{kept}@best"].startswith("train-000000 ")
    assert "checkpoint of" in grpo(f"{kept}@worst", folder, "no-worst").err
    pairs = ["--task", str(folder / "mine.jsonl"), "--split", "all", "--json"]
    seen = json.loads(call("eval", "--model", f"{kept}@best", *pairs).out)
    assert seen["margin"] == pytest.approx(0.0)  # every answer is worth the same to it


def test_a_hugging_face_classifier(classifier: Path, folder: Path) -> None:
    """The rewards are the logit that transformers gives to the whole dialogue in the model's own template."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    said = grpo(str(classifier), folder, "by-hf")
    assert said.code == 0, said.err
    model, tokenizer = (k.from_pretrained(classifier) for k in (AutoModelForSequenceClassification, AutoTokenizer))
    seen = answered(folder / "by-hf")
    for prompt, text, reward in seen:
        dialogue = [*prompt.content, {"role": "assistant", "content": text}]
        text = tokenizer.apply_chat_template(dialogue, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        with torch.no_grad():
            assert reward == pytest.approx(float(model(**ids).logits), abs=1e-4)
    assert len({round(r, 6) for _, _, r in seen}) > 1


def test_an_exported_reward_model_is_a_classifier_of_transformers(trained: Path, tmp_path: Path) -> None:
    """Loaded by transformers alone and asked through its template, it gives the scores of the run, less the head's bias."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    to = tmp_path / "rm"
    said = call("export", str(trained), "--to", str(to))
    assert said.code == 0 and f"--reward {to}" in said.out, said.err
    model, tokenizer = (k.from_pretrained(to) for k in (AutoModelForSequenceClassification, AutoTokenizer))
    prompts = [school("arithmetic").prompt(i) for i in range(4)]
    texts = ["4", "a much longer answer than the others", "", "<think>1</think>7"]
    want = LearnedReward(str(trained)).texts(prompts, texts)[0]
    got = []
    for prompt, text in zip(prompts, texts, strict=True):
        whole = tokenizer.apply_chat_template([*prompt.content, {"role": "assistant", "content": text}], tokenize=False)
        with torch.no_grad():
            ids = tokenizer(whole, add_special_tokens=False, return_tensors="pt")
            got.append(float(model(**ids).logits) + model.config.score_bias)
    assert model.config.score_bias != 0 and "score_bias" in said.out  # the centring of scores moves it
    assert got == pytest.approx(want, abs=1e-5) and max(want) - min(want) > 1e-3
    assert LearnedReward(str(to)).texts(prompts, texts)[0] == pytest.approx(want, abs=1e-5)  # and as a reward, whole
    assert "AutoModelForSequenceClassification" in (to / "README.md").read_text()
    said = call("export", str(trained), "--to", str(tmp_path / "x"), "--format", "gguf")
    assert said.code == 2 and "a reward model is exported whole" in said.err


def test_batches_change_no_score(classifier: Path) -> None:
    prompts = [school("arithmetic").prompt(i) for i in range(5)]
    texts = ["4", "a much longer answer than the others", "", "7", "8 8 8"]
    model = LearnedReward(str(classifier))
    alone = [model.texts([p], [t])[0][0] for p, t in zip(prompts, texts, strict=True)]
    assert model.texts(prompts, texts)[0] == pytest.approx(alone, abs=1e-5)


def test_the_number_goes_by_the_folders_name(trained: Path) -> None:
    scorer = build_scorer(f"numeric + 0.5*'{trained}'", None)
    assert isinstance(scorer, RewardSum) and scorer.weights == {"numeric": 1.0, "my-rm": 0.5}
    assert isinstance(build_scorer(f"learned_reward(folder='{trained}')", None), LearnedReward)


def test_a_reward_model_can_be_audited(trained: Path) -> None:
    said = call("audit", str(trained), "--problems", "2", "--json")
    assert said.code in (0, 1) and json.loads(said.out)["rows"]


def test_mistakes_are_told_in_a_sentence(
    trained: Path, classifier: Path, folder: Path, first_run: Said, runs: Path
) -> None:
    assert first_run.code == 0
    (folder / "empty").mkdir(exist_ok=True)
    two = folder / "two-labels"
    two.mkdir(exist_ok=True)
    for file in classifier.iterdir():
        (two / file.name).write_bytes(file.read_bytes())
    config = json.loads((two / "config.json").read_text())
    (two / "config.json").write_text(
        json.dumps(config | {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}})
    )
    for reward, sentence in {
        str(folder / "my-mr"): f"there is no such folder; did you mean {folder / 'my-rm'}?",
        str(folder / "empty"): "neither a run nor a model folder",
        str(runs / "grpo-arithmetic"): "trained a policy, which gives no scores",
        str(POCKET): "it holds a model of the kind LlamaForCausalLM",
        str(two): "a classifier with 2 labels",
    }.items():
        said = grpo(reward, folder, "mistaken")
        assert said.code == 2 and sentence in said.err and said.err.count("\n") <= 2, (reward, said.err)


def test_a_run_that_has_not_ended_is_refused(trained: Path, folder: Path) -> None:
    import sqlite3

    half = folder / "half"
    shutil.copytree(trained, half)
    with sqlite3.connect(half / "run.sqlite") as db:
        db.execute("UPDATE phases SET finished = 0")
    assert "has not ended" in grpo(str(half), folder, "h").err
    shutil.rmtree(half / "checkpoints")
    assert "has no checkpoint yet" in grpo(str(half), folder, "h").err


def test_a_classifier_without_its_head_is_refused(classifier: Path, tmp_path: Path) -> None:
    """transformers would fill the head with random numbers: rewards without meaning."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(classifier, tmp_path / "headless")
    file = tmp_path / "headless" / "model.safetensors"
    save_file({k: x for k, x in load_file(file).items() if k != "score.weight"}, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"its weights lack score.weight, which would be random"):
        LearnedReward(str(tmp_path / "headless"))


def test_odd_folders_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": "LlamaForCausalLM"}')
    with pytest.raises(UserError, match="a model of the kind LlamaForCausalLM"):
        LearnedReward(str(tmp_path))
    (tmp_path / "run.sqlite").write_text("")
    with pytest.raises(UserError, match=r"its run.sqlite is not that of a run"):
        LearnedReward(str(tmp_path))


def test_a_run_is_evaluated_on_its_own_pairs_with_its_own_columns_and_system_message(tmp_path: Path) -> None:
    rows = [{"ask": f"What is {i}+1?", "good": str(i + 1), "bad": f"{i}, no", "kind": "ab"[i % 2]} for i in range(20)]
    file, saved = tmp_path / "mine.jsonl", tmp_path / "saved.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = ["--question", "ask", "--chosen", "good", "--rejected", "bad"]
    small = ["--steps", "1", "--prompts", "2", "--eval-problems", "2", "--runs", str(tmp_path)]
    for method in ("dpo", "reward-model"):
        said = call("run", method, "--task", str(file), *columns, *small, "--system", "Be brief.", "--name", method)
        assert said.code == 0, said.err
        said = call("eval", "--model", method, "--runs", str(tmp_path), "--by", "kind", "--save", str(saved), "--json")
        assert said.code == 0, said.err
        told = [json.loads(line) for line in saved.read_text().splitlines()]
        assert json.loads(said.out)["pairs"] == len(told) < 10  # those that were held out
        assert all(r["prompt"][0] == {"role": "system", "content": "Be brief."} for r in told)
    said = call("eval", "--task", str(file), *columns, "--json")
    assert said.code == 0 and json.loads(said.out)["pairs"] == 20, said.err
