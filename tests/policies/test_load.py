"""Mistakes that a user may make with a model, and the sentence for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.models.decoder import Decoder
from posttrain.policies.load import find_folder, load_decoder, load_model, load_tokenizer, save_model
from tests.models import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.saved(tiny.ours("llama"), tmp_path)
    return tmp_path


def test_a_folder_is_a_policy(folder: Path) -> None:
    policy = load_model(str(folder), "cpu")
    assert isinstance(policy.model, Decoder) and policy.stop_ids == [1]
    assert policy.decode(policy.encode(tiny.prompts("hi there 7")[0])) == "hi there 7"


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_an_answer_ends_where_the_folder_says_too(name: str, tmp_path: Path) -> None:
    """The end of a turn is another token than the end of a text; ours and transformers' models know both."""
    tiny.saved(tiny.ours(name) if name in tiny.OURS else tiny.theirs(name), tmp_path)
    config = tmp_path / "generation_config.json"
    config.write_text(json.dumps({"eos_token_id": [1, 7]}))
    policy = load_model(str(tmp_path), "cpu")
    assert policy.stop_ids == policy.clone().stop_ids == policy.as_reward_model().stop_ids == [1, 7]
    config.write_text(json.dumps({"eos_token_id": 5}))
    assert load_model(str(tmp_path), "cpu").stop_ids == [1, 5]


def test_stop_ids_stop_answers_and_are_saved_with_the_model(folder: Path, tmp_path: Path) -> None:
    """With every id a stop, an answer is one token long; the exported folder says the same to transformers."""
    from transformers import GenerationConfig

    every = list(range(1, tiny.V))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": every}))
    policy = load_model(str(folder), "cpu")
    made = [r for some in policy.sample(tiny.prompts("ab", "cd"), 4, Sampling(max_tokens=8)) for r in some]
    ends = [r for r in made if int(r.actions[0]) != 0]
    assert ends and all(len(r) == 1 and (not r.truncated) for r in ends)
    save_model(policy, tmp_path / "saved")
    assert load_model(str(tmp_path / "saved"), "cpu").stop_ids == every
    assert GenerationConfig.from_pretrained(tmp_path / "saved").eos_token_id == every


def test_without_a_generation_config_the_config_names_the_stops(folder: Path) -> None:
    """As transformers does: Llama 3 lists its stops in both."""
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token_id": [1, 9]}))
    assert load_model(str(folder), "cpu").stop_ids == [1, 9]


@pytest.mark.parametrize("bad", ["</s>", [1, "2"], -1, True, 10**60])
def test_stop_ids_that_are_none(folder: Path, bad: object) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": bad}))
    with pytest.raises(UserError, match="expected a token id, or a list of them"):
        load_model(str(folder), "cpu")


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"has no config\.json"):
        load_model(str(folder))


@pytest.mark.parametrize(("text", "told"), [("{", "cannot be read as JSON"), ("[1]", "holds a list, expected")])
def test_damaged_config(folder: Path, text: str, told: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=told):
        load_model(str(folder))


@pytest.mark.parametrize("keep", [0, 4, 100, -10])
def test_damaged_weights(folder: Path, keep: int) -> None:
    """Empty, cut in the header, and cut in the last tensor."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        load_model(str(folder))


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple:
        return Path.touch, (self.trace,)


def test_pickled_weights_are_refused(folder: Path) -> None:
    """A pickle that runs code when it is read is left alone, by our decoder and through transformers."""
    trace = folder / "trace"
    torch.save({"lm_head.weight": Trap(trace)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="pickled weights are not read"):
        load_model(str(folder))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))  # not ours: goes to transformers
    with pytest.raises(UserError, match="transformers cannot load"):
        load_model(str(folder))
    assert not trace.exists()


def test_code_in_a_folder_is_not_run(folder: Path) -> None:
    """A config that names a class in the folder's own Python file is refused, and the file is not imported."""
    trace = folder / "trace"
    (folder / "modeling.py").write_text(f"open({str(trace)!r}, 'w')\nclass Model: pass\n")
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "modeling.Model", "AutoModelForCausalLM": "modeling.Model"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine", "auto_map": auto_map}))
    with pytest.raises(UserError, match="transformers cannot load"):
        load_decoder(str(folder), torch.float32)
    assert not trace.exists()


def test_weights_of_another_model(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"missing .*layers\.2"):
        load_model(str(folder))
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(UserError, match=r"unexpected .*layers\.1"):
        load_model(str(folder))
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 50}))
    with pytest.raises(UserError, match=r"has shape \(\d+, \d+\), but its config.json says"):
        load_model(str(folder))


def test_a_tied_head_that_is_stored_too(tmp_path: Path) -> None:
    """Some checkpoints name the embedding twice, and old ones store the rotary frequencies: neither is a weight."""
    from safetensors.torch import load_file, save_file

    tiny.saved(tiny.ours("llama-gqa-tied"), tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    extra = {"lm_head.weight": state["model.embed_tokens.weight"].clone()}
    extra |= {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(state | extra, file)
    model = load_model(str(tmp_path), "cpu").model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, state["model.embed_tokens.weight"])


def test_a_shard_is_missing(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UserError, match=r"lacks model-2\.safetensors"):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("name", "told"), [("poket", "'pocket'"), ("smolm2", "'smollm2'"), ("zzzz", "a model folder, or")]
)
def test_unknown_name(name: str, told: str) -> None:
    with pytest.raises(UserError, match=f"no model named {name!r}; .*{told}"):
        find_folder(name)


def test_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*args: object, **kwargs: object) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(
        UserError,
        match=r"cannot get 'some/model' from the hub \(ConnectionError\); check the connection, or pass a local folder",
    ):
        find_folder("some/model")


@pytest.mark.parametrize("dtype", ["float31", "nn"])
def test_unknown_dtype(folder: Path, dtype: str) -> None:
    with pytest.raises(UserError, match=f"dtype is '{dtype}'; use float32 or bfloat16"):
        load_model(str(folder), "cpu", dtype)


def test_tokenizer_without_end(folder: Path) -> None:
    tiny.letters(pad_token="<pad>").save_pretrained(folder)
    with pytest.raises(UserError, match="no end-of-text token"):
        load_tokenizer(str(folder))


def test_no_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="cannot load a tokenizer"):
        load_tokenizer(str(folder))


def test_recurrent_models_are_refused(tmp_path: Path) -> None:
    """Mamba keeps its memory elsewhere than in a cache of keys and values: reported on loading, not at the first sample."""
    config = {"vocab_size": tiny.V, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    tiny.random_hf("mamba", config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="mamba models cannot be sampled token by token here"):
        load_decoder(str(tmp_path), torch.float32)
