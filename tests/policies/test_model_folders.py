"""Model folders of strangers: whatever is in their files, loading ends in a model or in one sentence, and reads nothing else."""

from __future__ import annotations

import json
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from posttrain.cli import explain
from posttrain.core.errors import UserError
from posttrain.models import folder as folders
from posttrain.policies import template
from posttrain.policies.load import POCKET, load_decoder, load_model
from tests.cli.conftest import call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(POCKET, tmp_path / "mo?del"))


def change(folder: Path, file: str, **values: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def said(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        load_model(str(folder), "cpu")
    text = str(error.value)
    assert len(text) < 600 and "\n" not in text
    return text


def test_a_question_mark_in_the_name_is_no_matter(folder: Path) -> None:
    assert load_model(str(folder), "cpu").name == str(folder)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "holds a list, expected a JSON object"),
        ("[" * 100_000, "cannot be read as JSON"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "cannot be read as JSON"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin1"), "cannot be read as JSON"),
        ("", "cannot be read as JSON"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_configurations_that_are_none(folder: Path, file: str, text: str, told: str) -> None:
    (folder / file).write_text(text)
    assert told in said(folder) and file in said(folder)


def test_a_configuration_that_is_a_folder(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "config.json cannot be read as JSON" in said(folder)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"hidden_size": "x"}, "hidden_size in config.json is 'x'"),
        ({"hidden_size": -1}, "hidden_size in config.json is -1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers in config.json is 1000000000"),
        ({"num_attention_heads": 0}, "num_attention_heads in config.json is 0"),
        ({"rope_theta": "a"}, "rope_theta is 'a'"),
        ({"rope_scaling": [1]}, "rope_scaling in config.json is [1]"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling in config.json cannot be used"),
        ({"rms_norm_eps": None}, "rms_eps is None"),
        ({"num_key_value_heads": 3, "num_attention_heads": 4}, "multiple"),
        ({"model_type": "nonsense"}, "transformers cannot load"),
        ({"model_type": ["llama"]}, "transformers cannot load"),
        ({"vocab_size": 77}, "does not fit|has shape"),
    ],
)
def test_shapes_that_make_no_sense(folder: Path, values: dict[str, Any], told: str) -> None:
    change(folder, "config.json", **values)
    text = said(folder)
    assert any(t in text for t in told.split("|")), text


def test_a_configuration_without_a_shape(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"}')
    assert "has no vocab_size" in said(folder)


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ({"a": "../outside.safetensors"}, "no .safetensors file of that folder"),
        ({"a": "/etc/passwd"}, "no .safetensors file of that folder"),
        ({"a": "config.json"}, "no .safetensors file of that folder"),
        ({"a": 3}, "not a table of file names"),
        (["a"], "not a table of file names"),
        ({"a": "gone.safetensors"}, "lacks gone.safetensors"),
        ({}, "no .safetensors file"),
    ],
)
def test_an_index_reads_nothing_outside_its_folder(folder: Path, listed: Any, told: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    assert told in said(folder)


def test_weights_that_are_cut_off_or_a_folder(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "damaged or not a safetensors file" in said(folder)
    weights.unlink()
    weights.mkdir()
    assert "damaged or not a safetensors file" in said(folder)


@pytest.mark.parametrize("text", ["[]", "{", "{}", "[" * 50_000, '{"model": {"type": "BPE", "vocab": 3}}'])
def test_tokenizers_that_are_none(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    assert "tokenizer" in said(folder)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("{{ raise_exception('only for adults') }}", "only for adults"),
        ("{{ messages[7].content }}", "chat template cannot write this conversation (user)"),
        ("{% for %}", "chat template cannot write"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'x' * 2000000 }}", "more than 1,000,000 characters"),
        ("{{ ''.__class__.__mro__ }}", "chat template cannot write"),
    ],
)
def test_chat_templates_that_raise_or_grow(folder: Path, body: str, told: str) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    change(folder, "tokenizer_config.json", chat_template=body)
    assert told in said(folder)


def test_a_template_that_never_ends_is_left_behind(monkeypatch: Any) -> None:
    monkeypatch.setattr(template, "_SECONDS", 0.1)
    end = threading.Event()

    class Endless:
        def apply_chat_template(self, *args: Any, **more: Any) -> str:
            end.wait(60)
            return ""

    with pytest.raises(UserError, match="the chat template of mine does not end"):
        template.try_template(Endless(), "mine")
    end.set()


def test_a_model_larger_than_memory_is_refused_with_the_numbers(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(folders, "free_memory", lambda: 8e6)
    assert "takes about 13" in (text := said(folder)) or "takes about" in text
    assert "8.0 MB are free" in text and "M parameters" in text
    monkeypatch.undo()
    change(folder, "config.json", hidden_size=10**6, intermediate_size=10**7, head_dim=1000)
    assert "GB of memory" in said(folder)


def test_half_of_a_character_is_no_prompt() -> None:
    from posttrain.core.types import Prompt

    policy = load_model("pocket", "cpu")
    with pytest.raises(UserError, match="prompt 'p' holds half of a character"):
        policy.observe(Prompt.text("p", "a \ud800 b"))


def test_out_of_memory_and_files_that_cannot_be_used_are_sentences() -> None:
    torch_says = RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"
    )
    assert "out of memory" in str(explain(torch_says))
    assert explain(PermissionError(13, "Permission denied", "/x")) == (
        "Permission denied: /x; check the path, the disk and its permissions"
    )
    assert "database of a run cannot be read (no such table)" in str(explain(sqlite3.OperationalError("no such table")))
    assert explain(RuntimeError("a bug")) is None


def test_a_full_disk_behind_stdout() -> None:
    command = f"{sys.executable} -m posttrain --version > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and "No space left on device" in done.stderr and done.stderr.count("\n") == 1


def test_a_limit_on_file_sizes(tmp_path: Path) -> None:
    small = ("--steps", "1", "--prompts", "1", "--num-generations", "2", "--eval-problems", "1", "--quiet")
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, was[1]))  # as ulimit -f: weights are larger
    try:
        found = call("run", "grpo", *small, "--runs", str(tmp_path), "--name", "small")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)
    assert found.code == 2 and found.err.count("error: ") == 1 and "disk is full" in found.err


def test_loading_nothing_but_the_shape_allocates_nothing(folder: Path) -> None:
    import torch

    change(folder, "config.json", num_hidden_layers=9)
    with pytest.raises(UserError, match="does not fit its config"):
        load_decoder(str(folder), torch.float32)


def test_chat_says_it_in_one_line(folder: Path) -> None:
    (folder / "config.json").write_text("[]")
    found = call("chat", "--model", str(folder), "--say", "hi")
    assert found.code == 2 and found.err.count("\n") == 1 and "holds a list" in found.err
