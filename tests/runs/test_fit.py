"""Nothing is sampled or trained beyond the window: rows are left out and counted, answers cut off, episodes ended."""

from __future__ import annotations

import json

import pytest
import torch

from posttrain.core import rng
from posttrain.core.answers import conversation
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.plan import Phase, Plan
from posttrain.core.protocols import Environment, Episode, RolloutRequest, Step
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import End, Prompt, Rollout
from posttrain.environments.data import data
from posttrain.environments.mapped import with_system_message
from posttrain.environments.task import of_rows
from posttrain.methods.dpo import dpo
from posttrain.methods.grpo import grpo
from posttrain.methods.ppo import ppo
from posttrain.methods.sft import sft
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.window import positions, token_count
from posttrain.rollouts.episode import episodes
from posttrain.runs import plans as recipe
from posttrain.runs.fit import fit
from posttrain.runs.refuse import suits
from posttrain.runs.told import understood
from tests.models import tiny
from tests.wiring.spies import traced

HOW = Sampling(max_tokens=8)


def policy() -> LanguagePolicy:
    made = tiny.policy(tiny.decoder(max_positions=64))
    assert made.window == 64
    return made


def asked(*lengths: int, **more) -> list[dict[str, str]]:
    return [{"question": chr(97 + i % 26) * n, "answer": "1"} | more for i, n in enumerate(lengths)]


def test_positions_of_every_kind_of_model():
    assert positions(policy().model) == 64
    assert positions(tiny.wrapped("gpt2")) == 128
    assert positions(torch.nn.Linear(1, 1)) == 0


def test_prompts_without_room_for_an_answer_are_left_out_and_counted_and_the_others_keep_their_ids():
    env = data({"train": asked(5, 56, 57, 20, 200), "test": asked(6, 300)})
    found = fit(env, policy(), grpo, HOW)  # 64 positions, 8 for the answer: 56 is the last that fits
    assert {p.id for p in found.splits["train"]} == {"rows-train-0", "rows-train-1", "rows-train-3"}
    assert found.size("test") == 1
    reason, count = list(found.left_out.items())[-1]
    assert count == 3 and "more than 56 tokens (a window of 64 with room for an answer of 8)" in reason
    assert any(line.startswith("left out: 3 rows whose prompt") for line in understood(found, policy()))
    assert fit(data(asked(5, 6, 7)), policy(), grpo, HOW).left_out["bad rows"] == 0


def test_nothing_left_is_refused_and_so_is_an_answer_as_long_as_the_window():
    with pytest.raises(UserError, match="no row is left to train on; all 2 are rows whose prompt"):
        fit(data({"train": asked(80, 90), "test": asked(5)}), policy(), grpo, HOW)
    with pytest.raises(UserError, match=r"max-tokens 64 leaves no room for a prompt .* 64 positions; use 32 or fewer"):
        fit(data(asked(5, 6)), policy(), grpo, Sampling(max_tokens=64))


def test_written_answers_and_pairs_must_fit_with_their_prompts():
    rows = [{"question": "a" * 20, "answer": "b" * n} for n in (43, 44)]  # 20 + 43 + 1 for the end is 64
    found = fit(data({"train": rows, "test": asked(5)}), policy(), sft, HOW)
    assert [len(p.answer) for p in found.splits["train"]] == [43]
    pairs = [{"prompt": "a" * 20, "chosen": "b", "rejected": "c" * n} for n in (43, 44)]
    found = fit(of_rows({"train": pairs, "test": [{"prompt": "t", "chosen": "a", "rejected": "b"}]}, "pairs"),
                policy(), dpo, HOW)  # fmt: skip
    assert [len(p.info["rejected"]) for p in found.train] == [43]
    chat = [{"role": r, "content": "a" * 20} for r in ("user", "assistant", "user", "assistant")]
    rows = [
        {"messages": chat},
        {"messages": chat[:2] + [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]},
    ]
    found = fit(data({"train": rows, "test": asked(5)}), policy(), sft, HOW)
    assert [p.answer for p in found.splits["train"]] == ["c"]


def test_bytes_alone_decide_where_they_can():
    made = policy()
    assert token_count(made, Prompt.text("x", "a" * 10), limit=56) <= 56
    assert token_count(made, Prompt.text("x", "a" * 56), limit=56) == 56  # exact where the bytes alone would say no
    assert token_count(made, Prompt.text("x", "a" * 10), "b" * 5, 0) == 16


def test_an_answer_is_cut_off_at_the_window_and_its_neighbours_are_what_they_were():
    made = policy()
    short, tight = Prompt.text("short", "a"), Prompt.text("tight", "a" * 60)
    alone = made.sample([short], 2, HOW)
    both = made.sample([short, tight], 2, HOW)
    assert [r.actions.tolist() for r in both[0]] == [r.actions.tolist() for r in alone[0]]
    for r in both[1]:
        assert len(r) <= 4 and (r.end is End.TRUNCATED or len(r) < 4 or int(r.actions[-1]) in made.stop_ids)
        assert r.logp_T.tolist() == pytest.approx(made.forward([r])["logp_BT"][0, : len(r)].tolist(), abs=1e-4)
    with pytest.raises(
        UserError, match="a prompt of 64 tokens leaves no room for an answer in this model's window of 64"
    ):
        made.sample([Prompt.text("full", "a" * 64)], 1, HOW)


def test_rows_beyond_the_positions_are_never_trained_on():
    made = tiny.policy(tiny.wrapped("gpt2"))
    seen, actions = torch.full((100,), 5), torch.full((40,), 5)
    with pytest.raises(UserError, match="a row of 140 tokens is longer than this model's window of 128 positions"):
        made.forward([Rollout.single(Prompt.text("x", "a"), seen, actions, torch.zeros(40))])


def test_ids_outside_the_vocabulary_are_told():
    with pytest.raises(UserError, match=r"token id 99, and this model has ids 0 to 39"):
        policy().act([[Turn.empty(Observation(torch.tensor([3, 99])))]], [[rng.key(0)]], HOW)


class Talk(Environment):
    """It answers every turn with as many letters as it was made with, for ever."""

    name = "talk"

    def __init__(self, letters: int) -> None:
        self.letters = letters

    def prompt(self, index, split="train"):
        return Prompt.text(f"{split}-{index}", "a")

    def open(self, prompt, key):
        class Going(Episode):
            def step(_, turn):
                turn.stopped = True  # as if every turn ended by itself
                return Step([{"role": "user", "content": "b" * self.letters}], reward=0.0)

        return Going()


def test_an_episode_that_outgrows_the_window_ends_truncated():
    made = policy()
    env = Talk(20)
    (group,) = episodes(RolloutRequest({"policy": made}, [env.prompt(0)], HOW, env=env), n=2)
    for r in group.rollouts:
        assert r.end is End.TRUNCATED and r.stop == "max_context"
        assert len(r.context) + len(r.actions) <= 64 and len(r.turns) > 1
    assert made.forward(group.rollouts)["logp_BT"].isfinite().all()


def test_answers_are_heard_under_their_own_prompt_also_where_one_is_cut_off():
    made, heard = policy(), []
    some = [Prompt.text("tight", "a" * 60), Prompt.text("short", "a"), Prompt.text("tight too", "b" * 60)]
    found = made.sample(some, 24, HOW, finished=lambda p, i, text: heard.append((p.id, i, text())))
    want = {(p.id, i, r.text) for p, rs in zip(some, found, strict=True) for i, r in enumerate(rs)}
    assert set(heard) <= want and {"short", "tight too"} <= {h[0] for h in heard}  # those that end by themselves


def test_a_conversation_is_learned_with_its_system_message_and_a_template_that_rewrites_is_refused_at_once():
    chat = [
        {"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    ]
    env = with_system_message(data({"train": [{"messages": chat}], "test": asked(5)}), "brief")
    (prompt,) = env.splits["train"]
    assert [m["content"] for m in conversation(prompt)] == ["brief", "a", "b", "c", "d"]
    made = policy()
    assert fit(env, made, sft, HOW).splits["train"] == (prompt,)
    made.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content if loop.last else 'x' }}{{ eos_token }}{% endfor %}"
    )
    with pytest.raises(UserError, match="rewrites earlier turns"):
        fit(env, made, sft, HOW)


def test_held_out_rows_of_demonstrations_need_room_for_an_answer_that_is_sampled():
    rows = asked(60, 5)  # 60 + 1 + 1 fits as it is written; a sampled answer may have 8
    found = fit(
        data({"train": asked(60, 6), "test": [r | {"question": r["question"] + "z"} for r in rows]}), policy(), sft, HOW
    )
    assert (found.size("train"), found.size("test")) == (2, 1)


def test_a_conversation_fits_as_it_is_learned_with_the_end_of_every_answer():
    made, found = policy(), {}
    for n in range(1, 12):  # 3 turns of n letters each, their ends, and the lines between them
        chat = [{"role": r, "content": "a" * n} for r in ("user", "assistant") * 3]
        env = data({"train": [{"messages": chat}, {"messages": chat[:2]}], "test": asked(5)})
        kept = fit(env, made, sft, HOW).splits["train"]
        whole = next(p for p in env.splits["train"] if len(p.content) == 5)
        (row,) = made.imitated(whole, conversation(whole)).rows
        found[n] = len(row.observation.tokens) + len(row)
        assert (whole in kept) == (found[n] <= 64)
        if whole in kept:
            made.forward([row])
    assert 64 in found.values() or {n > 64 for n in found.values()} == {True, False}


def test_training_rows_without_an_answer_are_left_out_and_counted():
    chat = [{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    rows = [{"messages": chat}, {"messages": chat[:2]}]
    env = data({"train": rows, "test": [{"messages": [{"role": "user", "content": "t"}]}]})
    suits(sft, env)
    found = fit(env, policy(), sft, HOW)
    assert [p.answer for p in found.splits["train"]] == ["b"]
    assert found.left_out["training rows without an answer to imitate"] == 1
    with pytest.raises(UserError, match="the first prompt of rows has none"):
        suits(sft, data({"train": rows[:1], "test": rows[1:]}))


def test_a_plan_leaves_out_the_rows_that_a_method_would(caplog, tmp_path):
    """In training, in a phase of imitation before it, and on held-out questions; the others are asked as before."""
    for name in ("train", "test"):
        rows = [{"question": f"{name} {i}?", "answer": f"we say so, that is\n#### {i}"} for i in range(12)]
        rows += [{"question": f"{name} {i}" + "x" * 600, "answer": f"we say so, {i}\n#### {i}"} for i in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = traced("reft(warmup=1, epochs=1)", str(tmp_path), prompts=4, eval_problems=15)
    asked = {g.prompt.last for step in trace.steps for g in step.groups}
    assert len(asked) == 12 and max(map(len, asked)) < 10
    assert trace.summary["eval_problems"] == 12
    assert "left out 6 rows whose prompt has more than 506 tokens" in caplog.text


def test_what_a_phase_cannot_do_is_refused_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(recipe, "load_policy", lambda config: pytest.fail("loaded"))
    plan = Plan((Phase("rl", grpo, 4, lambda c: None), Phase("value", ppo, 4, lambda c: None)), "p")
    for changes, told in (
        ({"num_generations": 1}, "there is 1 per prompt"),
        ({"sampling": Sampling(temperature=0.0)}, "at temperature 0 all answers"),
        ({"critic_warmup": 4}, "critic_warmup is 4 and the run has 4 steps"),
    ):
        with pytest.raises(UserError, match=told):
            recipe.run_plan(plan, Config(**changes))


def test_every_answer_of_a_list_and_a_labelled_one_must_fit():
    rows = [{"prompt": f"q{i}", "responses": ["a", "b" * n], "scores": [1, 0]} for i, n in enumerate((5, 80, 5))]
    held = [
        {"prompt": "t", "responses": ["a", "b" * 90], "scores": [1, 0]},
        {"prompt": "u", "responses": ["a", "b"], "scores": [1, 0]},
    ]
    lists = fit(of_rows({"train": rows, "test": held}, "lists"), policy(), sft.but(rollout="lists"), HOW)
    assert [p.last for p in lists.train] == ["q0", "q2"] and [p.last for p in lists.test] == ["u"]
    said = [{"prompt": f"q{i}", "completion": "a" * n, "label": True} for i, n in enumerate((5, 80, 5))]
    labels = fit(of_rows({"train": said, "test": said[:1]}, "labels"), policy(), sft.but(rollout="labels"), HOW)
    assert [p.last for p in labels.train] == ["q2"]  # q0 is held out
    assert list(labels.left_out.items())[-1][1] == 1


def test_a_method_of_lists_or_labels_needs_prompts_that_carry_them():
    env = data(asked(5, 6, 7))
    with pytest.raises(UserError, match=r"learns from ranked lists.*give rows with a prompt, responses and scores"):
        suits(sft.but(rollout="lists"), env)
    with pytest.raises(UserError, match=r"learns from good and bad answers.*a completion and a label"):
        suits(sft.but(rollout="labels"), env)
