"""pocket-2: its tokenizer and chat template, what it is trained on, how rows are packed and drawn, its card, its name."""

from __future__ import annotations

import json
import queue
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from examples import pocket2, pocket2_card, pocket2_corpus, pocket2_rows, pocket_corpus
from examples.pocket import fresh, optimiser_of, save
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation, Turn, join
from posttrain.environments.base import split_of
from posttrain.environments.school import TASKS
from posttrain.environments.workshop import SKILLS, hermes, tool_calls, workshop
from posttrain.environments.workshop.scene import Played, conversation
from posttrain.models.decoder import DecoderConfig
from posttrain.policies.conversation import between, turns_of
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import EMBEDDED, load_decoder, load_model, load_tokenizer
from posttrain.rollouts.episode import episodes

SMALL = DecoderConfig(
    vocab_size=1024, hidden_size=32, intermediate_size=48, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16,
    tied=True, max_positions=1024,
)  # fmt: skip
needs_weights = pytest.mark.skipif(
    not (EMBEDDED["pocket-2"] / "model.safetensors").exists(),
    reason="pocket-2 has no weights here yet: python -m examples.pocket2 --out posttrain/models/pocket2",
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(str(pocket2_corpus.FOLDER))


@pytest.fixture(scope="module")
def made() -> list[tuple[list[dict[str, Any]], str]]:
    return pocket2_corpus.block(7, 0, 260)


# ---- tokens and template


def test_tags_are_one_token_and_texts_come_back(tokenizer: Any, made: Any) -> None:
    assert len(tokenizer) == pocket2_corpus.VOCABULARY == pocket2.SHAPE.vocab_size
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    tags = [*pocket2_corpus.SPECIALS, *pocket2_corpus.TAGS]
    assert [tokenizer.encode(t) for t in tags] == [[i] for i in range(len(tags))]
    for said, _ in made:
        for m in said:
            assert tokenizer.decode(tokenizer.encode(m["content"]), skip_special_tokens=True) == m["content"]
    odd = "Grüße, 世界! 12,345\n\t<think>é</think>"
    assert tokenizer.decode(tokenizer.encode(odd)) == odd
    assert not [t for t in tokenizer.get_vocab() if len(t) > 1 and re.search(r"\d", t)]


def test_rows_are_what_the_template_renders_and_what_turns_learn(tokenizer: Any, made: Any) -> None:
    fast = pocket2_corpus.tokenizer_of()
    rows = pocket2_corpus.encoded(fast, [said for said, _ in made])
    for (said, _), (ids, learned) in zip(made, rows, strict=True):
        text = tokenizer.apply_chat_template(said, tokenize=False)
        assert tokenizer.encode(text) == ids
        turns = turns_of(tokenizer, said)
        joined = [
            (i, own) for t in turns for x, own in ((t.observation.tokens, False), (t.actions, True)) for i in x.tolist()
        ]
        assert joined == list(zip(ids, learned, strict=True))


def test_ids_are_appended_never_rendered_again(tokenizer: Any) -> None:
    """Whatever is said between turns, the whole rendering is the first part, the answer, and what `between` adds."""
    said = [{"role": "system", "content": "Tools:"}, {"role": "user", "content": "hi"}]
    for answer in ("<search>a b</search>", "<think>1</think>2", hermes.call("sql", query="SELECT 'x'"), " spaces  "):
        for role in ("tool", "user"):
            more = [{"role": role, "content": "a\n\nb"}]
            head = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
            whole = tokenizer.apply_chat_template(
                [*said, {"role": "assistant", "content": answer}, *more], tokenize=False, add_generation_prompt=True
            )
            assert whole == f"{head}{answer}<|end|>{between(tokenizer, more)}"


def test_the_template_writes_tools_and_calls_as_the_corpus_does(tokenizer: Any) -> None:
    tools = tool_calls.listed({"prices": {}, "distances": {}})
    ask = [{"role": "user", "content": "hi"}]
    by_system = [{"role": "system", "content": hermes.described([t.schema for t in tools])}, *ask]
    with_tools = tokenizer.apply_chat_template(ask, tools=[t.schema for t in tools], tokenize=False)
    assert with_tools == tokenizer.apply_chat_template(by_system, tokenize=False)
    calls = [{"type": "function", "function": {"name": "calculator", "arguments": {"expression": '6*7 < "é"'}}}]
    text = tokenizer.apply_chat_template(
        [*ask, {"role": "assistant", "content": None, "tool_calls": calls}], tokenize=False
    )
    inside = re.search(r"<tool_call>(.*)</tool_call>", text)
    assert inside and json.loads(inside[1]) == {"name": "calculator", "arguments": {"expression": '6*7 < "é"'}}
    calls[0]["function"]["arguments"] = {"expression": "6*7"}
    text = tokenizer.apply_chat_template(
        [*ask, {"role": "assistant", "content": "", "tool_calls": calls}], tokenize=False
    )
    assert text.endswith(f"<|assistant|>{hermes.call('calculator', expression='6*7')}<|end|>")
    calls[0]["function"]["arguments"] = '{"expression": "6*7"}'
    assert text == tokenizer.apply_chat_template(
        [*ask, {"role": "assistant", "content": "", "tool_calls": calls}], tokenize=False
    )
    with pytest.raises(Exception, match="the roles are system, user, assistant and tool, got boss"):
        tokenizer.apply_chat_template([{"role": "boss", "content": "hi"}], tokenize=False)


# ---- the corpus


def test_the_tables_cover_every_skill() -> None:
    assert set(pocket2_corpus.CARE) == set(SKILLS)
    assert set(pocket2_corpus.SHARES) == {*SKILLS, "school", "talk"}
    assert sum(pocket2_corpus.SHARES.values()) == pytest.approx(1.0)
    for shares in (*pocket2_corpus.LEVEL_SHARES.values(), pocket2_corpus.SCHOOL_LEVEL_SHARES):
        assert sum(shares) == pytest.approx(1.0)
    assert {m.DEFAULT_LEVEL for m in SKILLS.values()} == set(pocket2_corpus.LEVEL_SHARES)
    for even, odd in pocket2_corpus.CARE.values():
        assert 0.05 < odd < even < 0.8  # the right way is always there, and never all


def test_the_corpus_is_reproducible_and_has_every_skill(made: Any) -> None:
    assert made == pocket2_corpus.block(7, 0, 260) != pocket2_corpus.block(7, 1, 260)
    assert set(Counter(skill for _, skill in made)) == set(pocket2_corpus.SHARES)


@pytest.mark.parametrize("skill", ["number_guess", "second_try"])
def test_the_right_way_is_shown_as_often_as_the_table_says(skill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, shown = Random(3), []
    seen: list[Any] = []
    make = SKILLS[skill].make
    monkeypatch.setattr(SKILLS[skill], "make", lambda r, level: seen.append(make(r, level)) or seen[-1])
    for _ in range(600):
        habit = pocket2_corpus.skill_example(rng, skill, 2).habit
        assert split_of(seen[-1]) == "train" and habit in ("", *SKILLS[skill].HABITS)
        shown.append((seen[-1].info["wording"] % 2, not habit))
    for parity, care in enumerate(pocket2_corpus.CARE[skill]):
        right = [r for p, r in shown if p == parity]
        assert abs(sum(right) / len(right) - care) < 0.09  # three standard errors of 300 draws


def test_what_perfect_imitation_would_reach() -> None:
    # neither habit of a second try is ever right: (0.62 + 0.30) / 2 sampled; greedy, the even half of the wordings
    sampled, greedy = pocket2_corpus.imitated("second_try", 1, 300)
    assert sampled == pytest.approx(0.46, abs=0.09) and greedy == pytest.approx(0.5, abs=0.09)
    sampled, greedy = pocket2_corpus.imitated("one_liners", 1, 300)
    assert sampled == pytest.approx(0.47, abs=0.09) and greedy == pytest.approx(0.5, abs=0.09)
    sampled, _ = pocket2_corpus.imitated("better_answer", 1, 300)
    assert sampled > 0.32 + 0.68 * 0.2 - 0.09  # 0.32 the right way, and habits that hit


@pytest.mark.parametrize("skill", SKILLS)
def test_every_skill_leaves_something_to_sharpen(skill: str) -> None:
    for share in pocket2_corpus.imitated(skill, SKILLS[skill].DEFAULT_LEVEL, 150):
        assert 0.2 < share < 0.7
    even, odd = pocket2_corpus.CARE[skill]
    weights = list(SKILLS[skill].HABITS.values())
    usual = weights[0] / sum(weights)
    assert weights[0] == max(weights)
    assert (
        even > (1 - even) * usual + 0.1 and (1 - odd) * usual > odd + 0.1
    )  # each wording has one way that is the likeliest


# ---- rows, batches, loss


def test_rows_hold_whole_conversations(made: Any) -> None:
    encoded = pocket2_corpus.encoded(pocket2_corpus.tokenizer_of(), [said for said, _ in made])
    too_long = [([5] * (pocket2_rows.LENGTH + 1), [True] * (pocket2_rows.LENGTH + 1))]
    rows = pocket2_rows.filled([*too_long, *encoded])
    assert rows.shape[1:] == (3, pocket2_rows.LENGTH) and rows.dtype == np.int16
    found = []
    for tokens, learned, part in rows:
        for k in range(part.max() + 1):
            found.append((tokens[part == k].tolist(), learned[part == k].astype(bool).tolist()))
        assert not tokens[part < 0].any()
    assert found == encoded[: len(found)] and len(encoded) - len(found) < 20  # the last row is not full


def test_the_loss_of_a_row_is_that_of_its_conversations_apart() -> None:
    """Packed or each alone: the same weighted sum of the same log-probabilities."""
    torch.manual_seed(0)
    model = fresh(SMALL)
    draw = Random(0)
    parts = [([draw.randrange(2, 1024) for _ in range(n)], [draw.random() < 0.5 for _ in range(n)]) for n in (7, 12, 5)]
    packed = torch.from_numpy(pocket2_rows.filled(parts)).long()
    assert packed.shape[0] == 1
    total = weights = 0.0
    for ids, learned in parts:
        row = torch.tensor([ids])
        logits = model.logits(model.hidden(row[:, :-1])).float()
        loss = F.cross_entropy(logits[0], row[0, 1:], reduction="none")
        weight = torch.tensor([1.0 if own else pocket2_rows.OBSERVED for own in learned[1:]])
        total += float((loss * weight).sum().detach())
        weights += float(weight.sum())
    assert pocket2_rows.loss_of(model, packed).item() == pytest.approx(total / weights, rel=1e-5)


def stream_of(*deliveries: np.ndarray) -> pocket2_rows.Stream:
    stream = pocket2_rows.Stream.__new__(pocket2_rows.Stream)
    stream.queue = queue.Queue()  # type: ignore[assignment]
    for rows in deliveries:
        stream.queue.put(rows)
    stream.pool = np.zeros((pocket2_rows.POOL, 3, pocket2_rows.LENGTH), np.int16)
    stream.written = stream.read = 0
    stream.draw = np.random.default_rng(0)
    return stream


def test_the_pool_takes_in_what_is_written_and_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pocket2_rows, "POOL", 6)
    rows = np.arange(10)[:, None, None] * np.ones((1, 3, pocket2_rows.LENGTH), np.int64)
    stream = stream_of(rows[1:4], rows[4:7], rows[7:10])
    batch = stream.next(2)
    assert sorted(stream.pool[:, 0, 0].tolist()) == [4, 5, 6, 7, 8, 9]
    assert (stream.written, stream.read) == (9, 2) and set(batch[:, 0, 0].tolist()) <= {4, 5, 6, 7, 8, 9}
    for _ in range(10):  # nothing more is written: rows are read again
        stream.next(2)
    assert stream.read == 22 and stream.written == 9


def test_a_batch_comes_from_what_was_written_and_not_from_empty_places() -> None:
    stream = stream_of(np.full((4, 3, pocket2_rows.LENGTH), 7))
    assert bool((stream.next(2) == 7).all())


def test_a_few_steps_lower_the_loss(made: Any) -> None:
    torch.manual_seed(0)
    model = fresh(SMALL)
    optimiser = optimiser_of(model, 1e-2)
    rows = torch.from_numpy(
        pocket2_rows.filled(pocket2_corpus.encoded(pocket2_corpus.tokenizer_of(), [s for s, _ in made[:40]]))
    ).long()
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        loss = pocket2_rows.loss_of(model, rows)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] > 6.5 and losses[-1] < losses[0] - 1.0


def test_the_count_is_of_the_shape() -> None:
    # 1024*128 embeddings; 6 layers of 4*128*128 attention, 3*128*512 feed-forward and 2*128 norms; 128 of the last norm
    parameters = 1024 * 128 + 6 * (4 * 128 * 128 + 3 * 128 * 512 + 2 * 128) + 128
    norms = (2 * 6 + 1) * 128
    assert pocket2.SHAPE.parameters + norms == parameters == sum(p.numel() for p in fresh(pocket2.SHAPE).parameters())
    assert 2 * parameters < 7_600_000  # with the tokenizer, the card and accuracy.json below 8 MB
    assert pocket2.count(pocket2.SHAPE, 512, 6).startswith(f"{parameters - norms:,} parameters")


def test_pieces_have_the_loss_and_the_gradient_of_packed_rows(made: Any) -> None:
    encoded = pocket2_corpus.encoded(pocket2_corpus.tokenizer_of(), [s for s, _ in made[:60]])
    rows = torch.from_numpy(pocket2_rows.filled(encoded)).long()
    cut = pocket2_rows.pieces(rows, 600)
    assert len(cut) > 3 and all(p.shape[0] * p.shape[2] <= 600 or p.shape[0] == 1 for p in cut)
    said = sorted(t for p in cut for t in [tuple(r[0][r[2] == 0].tolist()) for r in p])
    assert said == sorted(tuple(r[0][r[2] == k].tolist()) for r in rows for k in range(int(r[2].max()) + 1))
    torch.manual_seed(0)
    packed, apart = fresh(SMALL), fresh(SMALL)
    apart.load_state_dict(packed.state_dict())
    loss = pocket2_rows.loss_of(packed, rows)
    loss.backward()
    assert pocket2_rows.backward_in_pieces(apart, rows) == pytest.approx(loss.item(), rel=1e-5)
    for p, q in zip(packed.parameters(), apart.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, atol=1e-6)  # type: ignore[arg-type]
    weight = pocket2_rows.weights_of(rows, 0.0)  # nothing observed counts: the assistant's tokens alone
    assert set(weight.unique().tolist()) == {0.0, 1.0} and weight.sum() == sum(
        sum(own) for _, own in encoded[: len(said)]
    )


def test_the_trainer_writes_rows_itself_and_reads_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    short = pocket2_corpus.block
    monkeypatch.setattr(pocket2_rows, "block", lambda seed, number: asked.append(number) or short(seed, number, 40))
    one, whole = pocket2_rows.Written(3), pocket2_rows.Written(3)
    twice = torch.cat([one.next(5), one.next(6)])
    assert torch.equal(twice, whole.next(11)) and one.read == 11 <= one.written
    before = one.number
    assert asked[:before] == list(range(before))
    assert torch.equal(pocket2_rows.Written(3, before).next(1), pocket2_rows.Written(3, before).next(1))
    assert asked[-1] == before  # goes on with blocks that were not read


def test_a_grown_model_has_pockets_layers_and_its_words(tokenizer: Any) -> None:
    model, pocket = (
        pocket2.grown(pocket2.SHAPE, EMBEDDED["pocket"]),
        load_decoder(str(EMBEDDED["pocket"]), torch.float32),
    )
    known = load_tokenizer(str(EMBEDDED["pocket"]))
    for a, b in zip(model.model.layers.parameters(), pocket.model.layers.parameters(), strict=True):
        assert torch.equal(a, b)
    mine, theirs = model.model.embed_tokens.weight, pocket.model.embed_tokens.weight
    for token in ("7", "<think>", "<|end|>", "<|assistant|>"):
        at, there = tokenizer.convert_tokens_to_ids(token), known.convert_tokens_to_ids(token)
        assert torch.equal(mine[at], theirs[there])
    word = tokenizer.convert_tokens_to_ids("SELECT")  # pocket writes it in several tokens
    pieces = known("SELECT", add_special_tokens=False)["input_ids"]
    assert len(pieces) > 1 and torch.allclose(mine[word], theirs[pieces].mean(0), atol=1e-6)
    with pytest.raises(UserError, match="pass --width 128 --layers 6"):
        pocket2.grown(SMALL, EMBEDDED["pocket"])


def test_a_training_goes_on_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = pocket2_corpus.block
    monkeypatch.setattr(pocket2_rows, "block", lambda seed, number: short(seed, number, 24))
    monkeypatch.setattr(pocket2, "shape_of", lambda args: SMALL)
    monkeypatch.setattr(pocket2, "held_out", lambda model, seed: 0.0)

    def go(out: str, steps: int, more: list[str]) -> dict[str, Any]:
        told = ["pocket2", "--out", str(tmp_path / out), "--steps", str(steps), "--batch", "2", "--lr", "0.01"]
        monkeypatch.setattr("sys.argv", [*told, "--problems", "0", "--warm", "1", "--minutes", "60", *more])
        pocket2.main()
        return torch.load(tmp_path / out / pocket2.STATE, weights_only=True)

    first = go("a", 2, [])
    then = go("b", 4, ["--from", str(tmp_path / "a")])
    assert (first["about"]["steps"], then["about"]["steps"]) == (2, 4) and then["about"]["block"] > first["about"][
        "block"
    ]
    moved = {k for k in first["model"] if not torch.equal(first["model"][k], then["model"][k])}
    assert moved and then["optimiser"]["state"][0]["step"] == 4
    with pytest.raises(UserError, match=r"has no training\.pt"):
        go("c", 1, ["--from", str(tmp_path / "nothing")])


# ---- playing, measuring, the card


@pytest.fixture(scope="module")
def beginner(tokenizer: Any) -> LanguagePolicy:
    torch.manual_seed(1)
    return LanguagePolicy(fresh(SMALL), tokenizer, "beginner")


@pytest.mark.parametrize("skill", [name for name, module in SKILLS.items() if hasattr(module, "Scene")])
def test_an_episode_holds_the_ids_of_a_training_row(beginner: LanguagePolicy, skill: str) -> None:
    """The expert's texts, turn by turn through the policy's own reading of the scene, are id for id the row it is trained on."""
    env = workshop(skill)
    prompt = env.prompt(1)
    messages, earned = conversation(SKILLS[skill], prompt, "", Random(0))
    if tools := prompt.info.get("tools"):
        messages.insert(0, {"role": "system", "content": hermes.described(tools)})
    ((row, learned),) = pocket2_corpus.encoded(pocket2_corpus.tokenizer_of(), [messages])
    episode, turns, seen = env.open(prompt, 0), list[Turn](), beginner.observe(prompt)
    assert isinstance(episode, Played)
    total = 0.0
    for text in (m["content"] for m in messages if m["role"] == "assistant"):
        ids = torch.tensor([*beginner.tokenizer.encode(text), beginner.tokenizer.eos_token_id])
        turn = Turn.of(seen, ids, torch.zeros(len(ids)), text)
        turn.continues = bool(turns)
        turns.append(turn)
        step = episode.step(turn)
        total += step.reward or 0.0
        if step.messages is not None:
            assert not isinstance(step.messages, Observation)
            seen = beginner.extend(turns, step.messages)
    whole = join(turns)
    assert torch.cat([whole.context, whole.actions]).tolist() == row and total == pytest.approx(earned)
    assert [False] * len(whole.context) + whole.mask_T.tolist() == learned


def test_a_beginner_plays(beginner: LanguagePolicy) -> None:
    env = workshop("number_guess")
    ask = RolloutRequest({"policy": beginner}, [env.prompt(i) for i in range(2)], Sampling(8), env=env)
    for group in episodes(ask, n=2):
        assert all(r.info.get("error") is None and r.total == 0.0 for r in group.rollouts)


def test_what_is_measured(beginner: LanguagePolicy) -> None:
    rows = pocket2_card.measure_skill(beginner, "second_try", 2)
    assert [r["level"] for r in rows] == [1, 2, 3] and [r["default"] for r in rows] == [False, True, False]
    assert all(r["turns"] <= 2 and r["problems"] == 2 and 0 <= r["greedy"] <= 1 for r in rows)


def a_row(skill: str, level: int, sampled: float = 0.4, **more: Any) -> dict[str, Any]:
    numbers = {
        "greedy": 0.5,
        "error": 0.03,
        "turns": 2.0,
        "calls": 1.0,
        "faults": 0.25,
        "tokens": 30.0,
        "problems": 200,
    }
    return {"skill": skill, "level": level, "sampled": sampled, "default": level == 2} | numbers | more


def test_the_card_says_what_was_measured_and_what_was_not() -> None:
    rows = [a_row(s, level, by_text=s == "one_liners") for s in SKILLS for level in (1, 2, 3)]
    rows += [a_row(t, 3, think=think) for t in TASKS for think in (True, False)]
    trained = {"parameters": 3735552, "minutes": 6.0, "tokens": 10**9, "hardware": "NVIDIA H200"}
    text = pocket2_card.card(rows, trained)
    assert "| treasure | 2* | 58% / 24% | 40% | 50% | 2.0 | 1.0 | 0.25 | 30 |" in text
    assert "one_liners: no program was run" in text and "1,000.0M tokens" in text and "from scratch" in text
    assert text.count("\n| ") == 33 + 10 + 2  # rows of skills and of the school, and their two heads


def test_calls_and_faults_are_counted_per_attempt(beginner: LanguagePolicy) -> None:
    prompt = workshop("tool_calls").prompt(0)
    rollout, other = beginner.written(prompt, "x"), beginner.written(prompt, "y")
    rollout.info["tools"] = [
        {"calls": [{"name": "a"}, {"name": "b"}], "faults": []},
        {"calls": [{"name": "a"}], "faults": ["no", "no"]},
    ]
    made = pocket2_card.row("tool_calls", 1, [(rollout, 1.0), (other, 0.0)], [(rollout, 1.0), (other, 0.5)])
    assert (made["calls"], made["faults"], made["sampled"], made["greedy"]) == (1.5, 1.0, 0.5, 0.5)


# ---- the name


def test_without_weights_the_name_says_how_to_make_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(EMBEDDED, "pocket-2", tmp_path / "pocket2")
    with pytest.raises(
        UserError, match=r"pocket-2 has no weights here yet; train them .* `python -m examples.pocket2 --out FOLDER`"
    ):
        load_model("pocket-2", "cpu")
    with pytest.raises(UserError, match="did you mean 'pocket-2'"):
        load_model("pocket-3", "cpu")


def test_a_model_that_was_saved_is_loaded_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer: Any
) -> None:
    torch.manual_seed(0)
    model = fresh(SMALL)
    save(model, tmp_path, {"seed": 0})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((pocket2_corpus.FOLDER / name).read_bytes())
    monkeypatch.setitem(EMBEDDED, "pocket-2", tmp_path)
    policy = load_model("pocket-2", "cpu")
    assert policy.name == "pocket-2" and policy.stop_ids == [1] and policy.window == 1024
    ids = torch.tensor([[3, 40, 50, 1]])
    assert torch.allclose(policy.model.hidden(ids), model.bfloat16().float().hidden(ids), atol=1e-4)  # type: ignore[operator]


@needs_weights
def test_the_weights_fit_their_size_and_their_card() -> None:
    folder = EMBEDDED["pocket-2"]
    assert sum(f.stat().st_size for f in folder.iterdir()) <= 8_000_000
    rows = json.loads((folder / "accuracy.json").read_text())
    assert {r["skill"] for r in rows} == {*SKILLS, *TASKS}
    assert (folder / "MODEL_CARD.md").read_text() == pocket2_card.card(
        rows, json.loads((folder / "trained.json").read_text())
    )


def test_the_schools_examples_are_pockets() -> None:
    assert set(pocket2_corpus.SCHOOL_SHARES) == set(pocket_corpus.WEIGHTS) == set(TASKS)
    assert sum(pocket2_corpus.SCHOOL_SHARES.values()) == pytest.approx(1.0)
