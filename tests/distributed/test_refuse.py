"""What cannot work elsewhere or with a lag is refused in a sentence that says what to type."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.protocols import Environment
from posttrain.core.registry import Part, find
from posttrain.distributed.choose import settled
from posttrain.distributed.refuse import refuse
from posttrain.distributed.setup import check, code, setup
from posttrain.methods.grpo import grpo
from posttrain.rollouts.sample import sample
from posttrain.runs.build import Pieces, build_loop
from posttrain.runs.wire import unpack
from tests.models import tiny


def told(method: str, given: Any = None, **settings: Any) -> str:
    with pytest.raises(UserError) as error:
        refuse(Config(**settings), find_method(method), given or {})
    return str(error.value)


@pytest.mark.parametrize("name", ["reinforce", "gpg"])
def test_a_loss_without_a_ratio_to_the_sampler_is_refused_with_a_lag(name: str) -> None:
    assert "has no ratio to the weights that sampled them; use a loss that corrects for it (--loss tis" in told(
        name, lag=1
    )
    refuse(Config(lag=0), find_method(name), {})


@pytest.mark.parametrize("name", ["grpo", "tis", "decoupled-ppo", "gspo", "ppo"])
def test_a_loss_with_a_ratio_is_not(name: str) -> None:
    refuse(Config(lag=2), find_method(name).but(rounds=1), {})


def test_corrections_that_are_named_exist_and_have_a_ratio() -> None:
    for name in ("tis", "decoupled_ppo", "ppo"):
        assert "old_logp_BT" in find(name, "policy_loss").card.reads


def test_refills_are_refused_with_a_lag_and_work_without() -> None:
    assert "add --rounds 1" in told("dapo", lag=1)
    refuse(Config(sampler="process"), find_method("dapo"), {})


def test_methods_that_do_not_sample() -> None:
    assert "dpo learns from pairs that are there already" in told("dpo", lag=1)
    assert "sft learns from demonstrations that are there already" in told("sft", sampler="process")


class Opening:
    opens = True


class Plain:
    opens = False


def test_objects_of_python_do_not_travel() -> None:
    assert "workers load the model by its name" in told("grpo", {"policy": object()}, sampler="process")
    assert "name it (task='FILE.py:NAME')" in told("grpo", {"env": Opening()}, sampler="process")
    assert "several policies play here (judge)" in told("grpo", {"others": {"judge": 1}}, sampler="process")
    assert "a source of its own" in told("grpo", {"source": object()}, lag=1)
    assert "name it (reward='FILE.py:NAME')" in told("grpo", {"scorer": object()}, reward_workers=1)
    refuse(Config(sampler="process"), grpo, {"env": Plain(), "scorer": object()})  # answers alone need no task
    other = grpo.but(rollout=Part(lambda ask: [], sample.card))
    with pytest.raises(UserError, match="workers find the rollout sample by its name, and this one is another"):
        refuse(Config(sampler="process"), other, {})


def test_the_number_of_shards_is_written_down_where_workers_sample() -> None:
    assert settled(Config(sampler="process")).shards == 8 and settled(Config(sampler="ray", shards=3)).shards == 3
    assert settled(Config()) == Config(), "a run without workers is what it was"


def test_a_worker_with_other_code_or_data_says_so(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "a", "answer": "b"}\n')
    mine = unpack(setup(Config(task="rows.jsonl"), sample))
    check(mine)
    with pytest.raises(UserError, match=rf"other code of posttrain \({code()}, in .*\) than the run \(0000\)"):
        check(mine | {"code": "0000"})
    rows.write_text('{"question": "a", "answer": "c"}\n')
    with pytest.raises(UserError, match=r"a worker has another rows\.jsonl than the run; copy the same file"):
        check(mine)
    rows.unlink()
    with pytest.raises(UserError, match=r"a worker cannot read rows\.jsonl of the task"):
        check(mine)
    with pytest.raises(UserError, match=r"one of them is a builtins\.object"):
        setup(Config(), Part(sample.fn, sample.card, {"n": object()}))


def test_a_rollout_of_the_script_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that imported the script would run it: and with it the training that starts workers."""
    monkeypatch.setattr(sample.fn, "__module__", "__main__")
    assert "put it into a file of its own and import that" in told("grpo", sampler="process")


def test_commands_that_train_step_by_step_say_so() -> None:
    """`posttrain compare` builds its loops without workers."""
    for settings in ({"lag": 1}, {"sampler": "process"}, {"shards": 2}):
        with pytest.raises(UserError, match="--sampler, --lag and --shards are for posttrain run"):
            build_loop(Config(**settings), grpo, tiny.policy(), Pieces(Environment(), None, None))  # type: ignore[arg-type]
