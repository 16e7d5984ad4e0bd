"""Models and data sets by hub id, and `--push-to-hub`, through the real client against a hub on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.environments.test_stream import parquet, rows
from tests.hub.stand_in import TOKEN, StandIn
from tests.wiring.spies import tiny_folder

# a process that does what each line of JSON says and answers with one: the client reads its address when it is imported
SCRIPT = """
import contextlib, io, json, sys
from pathlib import Path

def task_of(spec):
    from posttrain.environments.task import task
    env = task(spec)
    return [env.size("train"), env.size("test"), env.prompt(0).answer]

def pairs_of(spec):
    from posttrain.environments.task import pair_task
    env = pair_task(spec)
    return [len(env.train), len(env.test)]

def model_of(spec):
    from posttrain.policies.load import load_model
    policy = load_model(spec, "cpu")
    return [sum(p.numel() for p in policy.parameters()), policy.decode(policy.observe(__import__("posttrain").Prompt.text("a", "1+1")).tokens)]

def folder_of(spec):
    from posttrain.policies.load import find_folder
    return find_folder(spec)

def push_of(spec):
    from posttrain.commands.hub import check_repo, push
    folder, name = spec
    check_repo(name)
    return push(Path(folder), name, False)

def command_of(argv):
    from posttrain.cli import main
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        code = main(argv)
    return [code, err.getvalue()]

for line in sys.stdin:
    verb, spec = json.loads(line)
    from posttrain.core.errors import UserError
    try:
        said = {"found": globals()[verb + "_of"](spec)}
    except UserError as error:
        said = {"error": str(error)}
    print(json.dumps(said), flush=True)
"""


class Client:
    """posttrain in a process of its own, with a hub, a cache and a token of its own."""

    def __init__(self, endpoint: str, home: Path, token: str = "") -> None:
        plain = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        root = Path(__file__).parent.parent.parent
        more = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_ETAG_TIMEOUT": "1", "PYTHONPATH": str(root)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env=plain | more | ({"HF_TOKEN": token} if token else {}), cwd=root,
            stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def ask(self, verb: str, spec: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([verb, spec]) + "\n")
        self.process.stdin.flush()
        late = threading.Timer(90, self.process.kill)  # one that waits for ever is a failure, not a test without end
        late.start()
        line = self.process.stdout.readline()
        late.cancel()
        assert line, f"no answer to {verb} {spec}"
        return json.loads(line)

    def error(self, verb: str, spec: Any) -> str:
        said = self.ask(verb, spec)
        assert "error" in said, said
        assert "\n" not in said["error"]
        return str(said["error"])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    root = tmp_path_factory.mktemp("hub")
    for name in ("tiny", "private-tiny"):
        shutil.copytree(tiny_folder(), root / "models" / "org" / name)
    (root / "models" / "org" / "tiny" / "modeling.py").write_text("raise SystemExit")  # code is not fetched
    written = {"train.jsonl": rows(30), "data/validation.jsonl": rows(36)[30:]}
    for name in ("sums", "private-sums"):
        for file, some in written.items():
            path = root / "datasets" / "org" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in some))
    for subset in ("main", "other"):
        for split, some in (("train", rows(20)), ("test", rows(25)[20:])):
            folder = root / "datasets" / "org" / "sets@parquet" / subset / split
            folder.mkdir(parents=True)
            parquet(folder / "0000.parquet", some[:3], 10)
            parquet(folder / "0001.parquet", some[3:], 10)
    (root / "datasets" / "org" / "sets").mkdir()
    pair = root / "datasets" / "org" / "pairs" / "train.jsonl"
    pair.parent.mkdir()
    pair.write_text("".join(json.dumps({"prompt": f"q{i}", "chosen": "a", "rejected": "b"}) + "\n" for i in range(20)))
    (root / "datasets" / "org" / "empty").mkdir()
    with StandIn(root) as made:
        yield made


@pytest.fixture(scope="module")
def nobody(hub: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    made = Client(hub.url, tmp_path_factory.mktemp("home"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def somebody(hub: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    made = Client(hub.url, tmp_path_factory.mktemp("home"), TOKEN)
    yield made
    made.close()


def test_data_sets_by_id_with_their_subsets_and_splits(nobody: Client) -> None:
    assert nobody.ask("task", "org/sums")["found"][:2] == [30, 6]  # JSONL of the repository itself
    assert nobody.ask("task", "org/sets(subset='main')")["found"][:2] == [20, 5]  # the hub's Parquet copies
    assert "org/sets has several subsets: main, other; name one" in nobody.error("task", "org/sets")
    assert "did you mean 'other'" in nobody.error("task", "org/sets(subset='othre')")
    train, test = nobody.ask("pairs", "org/pairs")["found"]
    assert train + test == 20 and test > 0
    assert "has no file that can be read" in nobody.error("task", "org/empty")


def test_a_model_by_id_without_its_code(hub: StandIn, nobody: Client) -> None:
    size, text = nobody.ask("model", "org/tiny")["found"]
    assert size > 1000 and "1+1" in text
    assert not any(path.endswith(".py") for _, path in hub.asked)


def test_what_is_private_or_missing_is_one_sentence_with_what_to_do(nobody: Client, somebody: Client) -> None:
    for name in ("org/private-tiny", "org/nowhere"):
        told = nobody.error("folder", name)
        assert f"cannot get '{name}' from the hub" in told and "a token is needed: type `hf auth login`" in told
        code, err = nobody.ask("command", ["run", "grpo", "--model", name, "--runs", "/nowhere"])["found"]
        assert code == 2 and "hf auth login" in err and err.count("\n") == 1
    for name in ("org/private-sums", "org/nowhere"):
        code, err = nobody.ask("command", ["data", name])["found"]
        assert (
            code == 2
            and f"cannot get the data set '{name}'" in err
            and "a token is needed: type `hf auth login`" in err
        )
    assert somebody.ask("folder", "org/private-tiny")["found"].endswith("0" * 39 + "1")
    assert somebody.ask("task", "org/private-sums")["found"][:2] == [30, 6]
    assert "that your token may read it" in somebody.error("folder", "org/nowhere")


def test_a_folder_is_pushed_and_can_be_loaded(hub: StandIn, nobody: Client, somebody: Client, tmp_path: Path) -> None:
    assert "needs a token of the hub" in nobody.error("push", [tiny_folder(), "me/new"])
    assert "a repository is called org/name" in somebody.error("push", [tiny_folder(), "new"])
    assert somebody.ask("push", [tiny_folder(), "me/new"])["found"] == f"{hub.url}/me/new"
    there = {p.name: p.read_bytes() for p in (hub.root / "models" / "me" / "new").iterdir()}
    assert there == {p.name: p.read_bytes() for p in Path(tiny_folder()).iterdir()}
    assert somebody.ask("folder", "me/new")["found"]
    assert somebody.ask("push", [tiny_folder(), "me/new"])["found"].endswith("me/new")  # again: what is there is kept


def test_a_hub_that_is_not_there_or_says_nothing_is_told_soon(tmp_path: Path) -> None:
    """A port that refuses; a server that takes the connection and never answers (the client alone would wait for ever)."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        quiet = Client(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path / "a", "hf_x")
        gone = Client("http://127.0.0.1:9", tmp_path / "b", "hf_x")
        try:
            for client in (gone, quiet):
                assert re.search(
                    r"cannot get 'org/tiny' from the hub \(\w+\); check the connection",
                    client.error("folder", "org/tiny"),
                )
                told = client.error("push", [str(tmp_path), "me/new"])
                assert "could not push to me/new" in told and "check the connection" in told and str(tmp_path) in told
            assert "check the id and the connection" in gone.error("task", "org/sums")
        finally:
            quiet.close(), gone.close()
