"""Conversations in the engine: whatever the memory, the order and the strides, each turn is what a fresh call gives, each token is read once
(and one more a turn), and every page is given back."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation, Turn, join
from posttrain.inference.engine import Engine
from posttrain.inference.pages import Pages
from posttrain.inference.prefill import SPAN
from posttrain.inference.sessions import Session
from posttrain.policies.engine_turns import EngineTurns
from tests.inference.graphs import use_graphs
from tests.inference.test_engine_random import agreed, on_an_edge
from tests.runs import tiny_run

KINDS = {"slots": {}, "pages": {"num_pages": 400}, "strides": {"num_pages": 400, "stride": 4}}


class Chat:
    """Conversations with drawn observations: those of one group begin alike."""

    def __init__(self, seed: int, count: int, turns: int, longest: int = 90) -> None:
        draw = random.Random(seed)
        first = [self.drawn(draw, draw.randrange(1, longest)) for _ in range(max(count // 3, 1))]
        self.seen = [[first[c % len(first)], *(self.drawn(draw, draw.randrange(1, longest)) for _ in range(turns - 1))] for c in range(count)]  # fmt: skip
        self.turns: list[list[Turn]] = [[] for _ in range(count)]
        self.seed = seed

    @staticmethod
    def drawn(draw: random.Random, n: int) -> torch.Tensor:
        return torch.tensor([draw.randrange(2, 38) for _ in range(n)])

    def pending(self, c: int) -> list[Turn]:
        mine = self.turns[c]
        return [*mine, Turn.empty(Observation(self.seen[c][len(mine)]), continues=bool(mine))]

    def key(self, c: int) -> int:
        return rng.key(self.seed, c, len(self.turns[c]))

    def play(self, sampler: EngineTurns, order: random.Random | None = None) -> None:
        """All turns of all; the next one is asked for at once, or some steps later."""
        later = list(range(len(self.turns)))
        while later or sampler.busy:
            for c in list(later):
                if order is None or not sampler.busy or order.random() < 0.4:
                    later.remove(c)
                    sampler.ask(c, self.pending(c), self.key(c))
            for c, turn in sampler.step():
                assert isinstance(c, int)
                self.turns[c].append(turn)
                if len(self.turns[c]) < len(self.seen[c]):
                    later.append(c)


def talk(
    policy: Any, how: Sampling, seed: int = 0, count: int = 7, turns: int = 4, engine: Any = None
) -> tuple[Chat, Engine]:
    engine = engine or Engine(policy.model)
    sampler = EngineTurns(policy, engine, how, 3, count)
    chat = Chat(seed, count, turns)
    try:
        chat.play(sampler, random.Random(seed) if seed else None)
    finally:
        sampler.close()
    return chat, engine


def check(policy: Any, chat: Chat, how: Sampling) -> None:
    """Every turn against a fresh engine that reads the whole of its context."""
    every = [(c, k) for c, turns in enumerate(chat.turns) for k in range(len(turns))]
    rows = [join([*chat.turns[c][:k], Turn.empty(Observation(chat.seen[c][k]), continues=k > 0)]) for c, k in every]
    contexts = [torch.cat([row.observation.tokens, row.actions]) for row in rows]
    keys = [rng.key(chat.seed, c, k) for c, k in every]
    fresh = Engine(policy.model).generate(contexts, [[key] for key in keys], how, policy.stop_ids)
    for (c, k), context, key, (want,) in zip(every, contexts, keys, fresh, strict=True):
        turn = chat.turns[c][k]
        same = agreed(want.tokens, turn.actions)
        torch.testing.assert_close(want.logp_T[:same], turn.logp_T[:same], atol=1e-4, rtol=0)
        if same < max(len(want.tokens), len(turn.actions)):
            assert on_an_edge(policy.model, torch.cat((context, want.tokens[:same])), key, same, how), (c, k, same)
        assert turn.version_T.tolist() == [3] * len(turn) and turn.mask_T.all() and turn.continues == (k > 0)
    assert [len(turns) for turns in chat.turns] == [len(seen) for seen in chat.seen]


def read_once(chat: Chat) -> int:
    """Tokens that must be read: what conversations begin with, once for those that begin alike, and what is seen later, with the last
    token of the turn before it; the last one of all this is read by the first decode step."""
    first = {tuple(seen[0].tolist()) for seen in chat.seen}
    return sum(len(ids) - 1 for ids in first) + sum(len(seen) for some in chat.seen for seen in some[1:])


def all_free(engine: Engine) -> None:
    assert engine.slots is not None and not engine.lent
    pages = engine.slots.pages
    if not engine.slots.one_page_each:
        assert len(pages.free) == pages.count - 1 and not any(pages.ref_count) and not pages.idle


@pytest.mark.parametrize("kind", KINDS)
def test_each_token_is_read_once_and_one_more_a_turn(kind: str) -> None:
    policy, how = tiny_run.policy(), Sampling(12)
    engine = Engine(policy.model, **KINDS[kind])  # type: ignore[arg-type]
    engine.prepare(
        7, 4 * 102 + 64, 12, policy.stop_ids
    )  # as long as it gets: longer slots later would mean reading again
    chat, _ = talk(policy, how, engine=engine)
    check(policy, chat, how)
    all_free(engine)
    assert engine.prefill_tokens == read_once(chat)


def test_conversations_that_begin_alike_are_neighbours_in_all_their_turns_and_share_whole_pages() -> None:
    """Attention reads what neighbours share once (test_attention.py); each keeps its slot while few enough talk."""
    policy, how = tiny_run.policy(), Sampling(12)
    engine = Engine(policy.model, num_pages=400, stride=4)
    engine.prepare(8, 512, 12, policy.stop_ids)
    slots, shared = [set[int]() for _ in range(6)], set[int]()
    sampler, chat = EngineTurns(policy, engine, how, 3, 6), Chat(5, 6, 3)
    chat.seen = [[torch.arange(2, 38).repeat(4)[c % 2 : 142 + c % 2], *seen[1:]] for c, seen in zip([0, 0, 0, 1, 1, 1], chat.seen, strict=True)]  # fmt: skip
    assign = engine.table.assign

    def spied(slot: int, job: Any) -> None:
        slots[next(c for c, s in sampler.sessions.items() if s is job.session)].add(slot)
        shared.add(job.prefix_len)
        assign(slot, job)

    engine.table.assign, engine._bucket = spied, lambda n: 8  # type: ignore[method-assign]
    chat.play(sampler)
    sampler.close()
    check(policy, chat, how)
    all_free(engine)
    assert shared == {128} and slots == [{c} for c in range(6)]


def test_a_past_is_read_alike_in_the_way_of_a_gpu() -> None:
    """A key head for each query head, whole pages, the mask as numbers: the same turns."""
    policy, how = tiny_run.policy(), Sampling(12)
    engine = Engine(policy.model, num_pages=400)
    engine.prepare(7, 4 * 102 + 64, 12, policy.stop_ids)
    assert engine.slots is not None and not engine.slots.fused.wide
    engine.slots.fused.wide = True
    chat, _ = talk(policy, how, engine=engine)
    check(policy, chat, how)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_later_turns_in_rounded_shapes_as_graphs_do_are_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A GPU replays what it has captured for the shape: sequences, new tokens and positions to look at are rounded up."""
    policy, how = tiny_run.policy(), Sampling(12)
    engine = Engine(policy.model, max_slots=5, num_pages=400)
    engine.prepare(7, 7 * 102 + 64, 12, policy.stop_ids, kept=7)
    graphs = use_graphs(engine, monkeypatch)
    chat, _ = talk(policy, how, seed, turns=7, engine=engine)
    check(policy, chat, how)
    later = {shape: graph.replayed for shape, (graph, _) in graphs.items() if shape[2]}
    assert sum(later.values()) >= 2, later
    assert all((n.bit_count() == 1 and width % 32 == 0 and used % SPAN == 0) for n, width, used in later)


@pytest.mark.parametrize("seed", range(1, 9))
def test_any_memory_and_order_give_the_same_turns(seed: int) -> None:
    draw = random.Random(seed)
    policy, how = tiny_run.policy(), draw.choice([Sampling(12), Sampling(70), Sampling(30, temperature=0.7, top_k=5)])
    engine = Engine(policy.model, max_slots=draw.choice([2, 5, 50]), num_pages=draw.choice([0, 16, 30, 60]), stride=draw.choice([1, 4, 8]))  # fmt: skip
    chat, _ = talk(policy, how, seed, count=draw.choice([3, 8]), engine=engine)
    check(policy, chat, how)
    all_free(engine)


def test_idle_conversations_lose_their_pages_before_a_job_is_preempted() -> None:
    policy, how = tiny_run.policy(), Sampling(12)
    engine = Engine(policy.model, max_slots=2, num_pages=24)  # two sequences fit whatever they grow to, eight do not
    engine.prepare(8, 470, 12, policy.stop_ids)
    chat, _ = talk(policy, how, engine=engine, count=8)
    check(policy, chat, how)
    assert engine.prefill_tokens > read_once(chat) and engine.preempted == 0
    all_free(engine)


def test_more_conversations_than_slots_all_keep_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where pages are counted by the engine itself: 16 slots for 60 conversations."""
    policy, how = tiny_run.policy(), Sampling(12)
    engine = Engine(policy.model, max_slots=3)
    engine.cuda = True
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 2**30))
    engine.prepare(16, 512, 12, policy.stop_ids)
    chat, _ = talk(policy, how, engine=engine, count=60)
    assert engine.slots is not None and engine.slots.count == 16
    assert engine.prefill_tokens == read_once(chat)
    all_free(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_a_branch_goes_on_from_the_same_state_without_reading(kind: str) -> None:
    policy, how = tiny_run.policy(), Sampling(12)
    engine = Engine(policy.model, **KINDS[kind])  # type: ignore[arg-type]
    engine.prepare(7, 400, 12, policy.stop_ids)
    sampler, chat = EngineTurns(policy, engine, how, 3, 4), Chat(5, 2, 3)

    def turn(who: Any, c: int) -> Turn:
        sampler.ask(who, chat.pending(c), chat.key(c))
        while not (done := sampler.step()):
            pass
        return done[0][1]

    chat.turns[0].append(turn(0, 0))
    sampler.branch(0, "other")
    read = engine.prefill_tokens
    one, other = turn(0, 0), turn("other", 0)
    assert torch.equal(one.actions, other.actions) and len(one)
    torch.testing.assert_close(one.logp_T, other.logp_T, atol=1e-5, rtol=0)
    assert engine.prefill_tokens - read == 2 * len(chat.seen[0][1])
    sampler.close()
    all_free(engine)


@pytest.mark.parametrize("pages", [0, 100])
def test_a_context_that_was_rewritten_is_read_anew(pages: int) -> None:
    policy, how = tiny_run.policy(), Sampling(12)
    sampler = EngineTurns(policy, Engine(policy.model, num_pages=pages), how, 3, 2)
    first, other = [5, 6, 7, 8] * 20, [9, 16, 27, 8] * 40
    sampler.ask(
        "long", [Turn.empty(Observation(torch.tensor([3] * 400)))], rng.key("long")
    )  # slots that are long enough for all
    for k, ids in enumerate((first, other, first)):
        sampler.ask("one", [Turn.empty(Observation(torch.tensor(ids)))], rng.key(k))
        while "one" not in (done := dict(sampler.step())):
            pass
        ((want,),) = Engine(policy.model).generate([torch.tensor(ids)], [[rng.key(k)]], how, policy.stop_ids)
        assert torch.equal(done["one"].actions, want.tokens)
        torch.testing.assert_close(done["one"].logp_T, want.logp_T, atol=1e-4, rtol=0)
    sampler.close()
    all_free(sampler.engine)


def test_pages_beyond_what_was_read_are_given_back() -> None:
    pool = Pages(tiny_run.policy().model, 10, 4)
    session, pages = Session(), pool.allocate(5)
    session.keep(torch.arange(9), pages, pool)
    assert session.pages == pages[:3] and len(pool.free) == 6
    session.drop(pool)
    assert len(pool.free) == 9 and not pool.idle


def test_who_waits_for_whom_does_not_depend_on_earlier_calls() -> None:
    """An engine whose slots are longer than this call needs holds back what one with slots of just this length would."""
    policy, engine = tiny_run.policy(), None
    rooms = []
    for longest in (0, 500):
        engine = Engine(policy.model)
        if longest:
            engine.prepare(4, longest, 12, policy.stop_ids)
        sampler = EngineTurns(policy, engine, Sampling(12), 3, 4)
        sampler.ask("one", [Turn.empty(Observation(torch.tensor([5, 6, 7])))], rng.key(1))
        sampler.step()
        rooms.append(sampler.room)
        sampler.close()
    assert rooms == [15, 15]


def test_a_whole_call_beside_conversations_leaves_them_alone() -> None:
    policy, how = tiny_run.policy(), Sampling(6)
    sampler = policy.turns(how, 0, 2)
    assert sampler is not None and policy.turns(how, 0, 2) is None and policy._engine(turns=True) is None
    chat = Chat(3, 2, 2)
    sampler.ask(0, chat.pending(0), chat.key(0))
    sampler.step()
    beside = policy.act([chat.pending(1)], [[chat.key(1)]], how)[0][0]
    assert sampler.busy and len(beside)
    sampler.close()
    assert policy.turns(how, 0, 2) is not None
