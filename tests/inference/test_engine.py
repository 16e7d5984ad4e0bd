"""The slot engine generates the same answers as plain sampling, whatever the slots, the pages and the order of admission."""

import weakref
from itertools import chain

import pytest
import torch

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.inference.attention import heads_fit
from posttrain.inference.engine import Engine
from posttrain.inference.jobs import Job
from posttrain.models.decoder import Decoder
from posttrain.models.sampling import generate
from posttrain.models.shape import DecoderConfig
from tests.inference.graphs import use_graphs

SHAPES = {
    "llama": DecoderConfig(60, 32, 48, 2, 4, 2, 8),
    "qwen2": DecoderConfig(1500, 32, 48, 2, 4, 4, 8, qkv_bias=True, model_type="qwen2"),
    "qwen3": DecoderConfig(60, 32, 48, 2, 4, 1, 16, qk_norm=True, tied=False, model_type="qwen3"),
    "biases": DecoderConfig(60, 32, 48, 2, 4, 2, 8, qkv_bias=True, out_bias=True, mlp_bias=True),
}


def small_model(name: str) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(SHAPES[name]).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, mean=float(p.dim() == 1), std=0.2)
    return model


CONTEXTS = [torch.arange(2, 2 + n) for n in (1, 4, 9, 3)]
KEYS = [[rng.key(p, i) for i in range(n)] for p, n in enumerate((3, 1, 4, 2))]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("how", [Sampling(12), Sampling(12, temperature=0.0), Sampling(12, temperature=0.7, top_k=4)])
def test_same_answers_as_plain_sampling(name, how):
    model = small_model(name)
    want = generate(model, CONTEXTS, KEYS, how, [1, 5])
    got = Engine(model).generate(CONTEXTS, KEYS, how, [1, 5])
    for a, b in zip(chain(*want), chain(*got), strict=True):
        assert a.tokens.tolist() == b.tokens.tolist() and a.stopped == b.stopped
        torch.testing.assert_close(a.logp_T, b.logp_T, atol=1e-4, rtol=0)


def texts(samples):
    return [s.tokens.tolist() for g in samples for s in g]


@pytest.mark.parametrize("num_pages", [0, 40])  # one page per slot, as without a GPU; pages of 64, as with one
def test_fewer_slots_than_answers_changes_nothing(num_pages):
    model = small_model("llama")
    want = generate(model, CONTEXTS, KEYS, Sampling(12), [1])
    small = Engine(model, max_slots=3, num_pages=num_pages)
    got = small.generate(CONTEXTS, KEYS, Sampling(12), [1])
    assert small.slots.count == 3
    assert texts(got) == texts(want)


LONG = [torch.arange(n) % 50 + 2 for n in (130, 64, 65, 3)]
MANY = [[rng.key(p, i) for i in range(5)] for p in range(4)]


def test_pages_are_shared_by_a_group_and_released():
    model = small_model("llama")
    want = generate(model, LONG, MANY, Sampling(90), [1])
    engine = Engine(model, max_slots=6, num_pages=200)
    assert texts(engine.generate(LONG, MANY, Sampling(90), [1])) == texts(want)
    assert engine.prefill_tokens == sum(len(c) - 1 for c in LONG)  # one prefill per prompt, whatever the slots
    assert len(engine.slots.pages.free) == 199 and engine.preempted == 0


def test_too_few_pages_preempt_and_change_nothing():
    model = small_model("llama")
    want = generate(model, LONG, MANY, Sampling(90), [1])
    engine = Engine(model, num_pages=12)  # one answer to the first prompt fills four
    assert texts(engine.generate(LONG, MANY, Sampling(90), [1])) == texts(want)
    assert engine.preempted > 0 and len(engine.slots.pages.free) == 11


@pytest.mark.parametrize("num_pages", [0, 13, 60])
@pytest.mark.parametrize("max_slots", [3, 50])
def test_snapshots_behind_the_device_change_nothing(num_pages, max_slots):
    """Several steps between snapshots, the host one snapshot behind: finished slots are stepped on, and the results discarded."""
    model = small_model("llama")
    limits = [[7 * i + 3 * p + 1 for i in range(5)] for p in range(4)]
    want = Engine(model).generate(LONG, MANY, Sampling(90), [1], limits=limits)
    engine = Engine(model, max_slots=max_slots, num_pages=num_pages, stride=4)
    for _ in range(2):
        got = engine.generate(LONG, MANY, Sampling(90), [1], limits=limits)
        assert texts(got) == texts(want) and not engine.busy
        assert [s.stopped for g in got for s in g] == [s.stopped for g in want for s in g]
        if num_pages:
            assert len(engine.slots.pages.free) == num_pages - 1


def test_slots_that_jobs_were_moved_out_of_hold_nothing(monkeypatch):
    """On a GPU the batch size is a power of two. Slots that the last jobs of one call were moved out of are stepped in the next
    call without a job; what they write must not land in pages that other sequences have by then."""
    model = small_model("llama")
    engine = Engine(model, num_pages=22)  # few pages, so that they are reused
    monkeypatch.setattr(engine, "_bucket", lambda n: max(4, 1 << (n - 1).bit_length()))
    keys = [[rng.key("moved", p, i) for i in range(8)] for p in range(2)]
    contexts = [2 + torch.arange(128) % n for n in (50, 40)]
    limits = [[5] * 6 + [40, 41], [5] * 6 + [42, 43]]  # the last of each stay and move together
    engine.generate(contexts, keys, Sampling(43), [], limits=limits)
    few = [keys[0], keys[1][:5]]
    want = generate(model, contexts, few, Sampling(30), [])
    got = engine.generate(contexts, few, Sampling(30), [])
    assert texts(got) == texts(want)
    for a, b in zip(chain(*want), chain(*got), strict=True):
        torch.testing.assert_close(a.logp_T, b.logp_T, atol=1e-4, rtol=0)


def test_no_room_for_one_answer_is_a_sentence():
    with pytest.raises(UserError, match="max_tokens"):
        Engine(small_model("llama"), num_pages=3).generate(LONG, MANY, Sampling(90), [])


def test_a_cached_prefix_is_not_prefilled_again():
    model = small_model("llama")
    engine = Engine(model, num_pages=60, prefix_cache=True)
    (first,) = engine.generate(LONG[:1], [[7]], Sampling(90), [])
    prefill_tokens = engine.prefill_tokens
    longer = torch.cat((LONG[0], first[0].tokens, torch.tensor([5, 6, 7])))  # the next turn of the same conversation
    again = engine.generate([longer], [[8]], Sampling(20), [])
    assert engine.prefill_tokens - prefill_tokens == len(longer) - 1 - 192  # three pages of 64 were there
    assert texts(again) == texts(generate(model, [longer], [[8]], Sampling(20), []))
    with torch.no_grad():
        model.model.norm.weight.mul_(1.1)
    fresh = engine.generate([longer], [[8]], Sampling(20), [])
    assert texts(fresh) == texts(generate(model, [longer], [[8]], Sampling(20), []))


def test_limits_of_each_answer_and_mixed_settings():
    model = small_model("llama")
    limits = [[3, 1, 7, 12, 5][: len(k)] for k in KEYS]
    got = Engine(model).generate(CONTEXTS, KEYS, Sampling(12), [], limits=limits)
    assert [[len(s.tokens) for s in g] for g in got] == limits
    whole = generate(model, CONTEXTS, KEYS, Sampling(12), [])
    for a, b in zip(chain(*got), chain(*whole), strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()[: len(a.tokens)] and not a.stopped
    engine = Engine(model)
    cut = Sampling(12, 0.7, min_p=0.2, raw_logp=True)
    hows = (Sampling(12), Sampling(12, temperature=0.0), Sampling(12, top_p=0.5), cut)
    engine.prepare(4, 30, 12, [1])
    jobs = [Job(CONTEXTS[1], 5, how) for how in hows]
    engine.waiting.extend(jobs)
    while engine.busy:
        engine.step()
    for job, how in zip(jobs, hows, strict=True):
        want = generate(model, CONTEXTS[1:2], [[5]], how, [1])[0][0]
        assert job.tokens.tolist() == want.tokens.tolist()
        torch.testing.assert_close(job.logp, want.logp_T, atol=1e-4, rtol=0)


def test_raw_log_probabilities_are_those_at_temperature_one():
    model = small_model("llama")
    tempered, raw = (generate(model, CONTEXTS, KEYS, Sampling(12, 0.5, raw_logp=r), [1])[1][0] for r in (False, True))
    text = torch.cat((CONTEXTS[1], raw.tokens))
    logits = model.logits(model.hidden(text[None]))[0, len(CONTEXTS[1]) - 1 : -1]
    for got, inv_temperature in ((tempered, 2.0), (raw, 1.0)):
        want = torch.log_softmax(inv_temperature * logits, -1).gather(-1, raw.tokens[:, None]).squeeze(-1)
        torch.testing.assert_close(got.logp_T, want.detach(), atol=1e-5, rtol=1e-5)


def test_a_stop_string_ends_an_answer():
    model = small_model("llama")
    whole = generate(model, CONTEXTS, KEYS, Sampling(12), [])

    def find_stop(tokens):  # "a token over 40" as a stop string
        over = (tokens > 40).nonzero()
        return int(over[0]) + 1 if len(over) else 0

    got = Engine(model, max_slots=4).generate(CONTEXTS, KEYS, Sampling(12), [], find_stop=find_stop)
    for a, b in zip(chain(*got), chain(*whole), strict=True):
        n = find_stop(b.tokens)
        assert a.tokens.tolist() == b.tokens.tolist()[: n or 12] and a.stopped == bool(n)


def test_an_interrupted_call_leaves_nothing_behind():
    model = small_model("llama")
    engine = Engine(model, num_pages=60)

    def find_stop(tokens):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(LONG, MANY, Sampling(90), [], find_stop=find_stop)
    assert not engine.busy and len(engine.slots.pages.free) == 59
    assert texts(engine.generate(CONTEXTS, KEYS, Sampling(12), [1])) == texts(
        generate(model, CONTEXTS, KEYS, Sampling(12), [1])
    )


def test_new_weights_are_seen_at_once():
    model = small_model("llama")
    engine = Engine(model)
    before = engine.generate(CONTEXTS, KEYS, Sampling(12), [1])
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    again = engine.generate(CONTEXTS, KEYS, Sampling(12), [1])
    fresh = generate(model, CONTEXTS, KEYS, Sampling(12), [1])
    assert [s.tokens.tolist() for g in again for s in g] == [s.tokens.tolist() for g in fresh for s in g]
    assert [s.tokens.tolist() for g in again for s in g] != [s.tokens.tolist() for g in before for s in g]


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_prefill_in_rounded_shapes_as_graphs_do_changes_nothing(monkeypatch, prefix_cache):
    """A GPU prefills batches of rounded shapes, from the second time on as a captured graph with inputs of its own."""

    model = small_model("llama")
    engine = Engine(model, num_pages=90, prefix_cache=prefix_cache)
    engine.generate(LONG, MANY, Sampling(20), [])
    graphs = use_graphs(engine, monkeypatch)
    for step in range(4):
        contexts = [c.roll(step) for c in LONG[:3]]  # three sequences of up to 129 tokens: prefilled as four of 160
        want = generate(model, contexts, MANY[:3], Sampling(20), [1])
        assert texts(engine.generate(contexts, MANY[:3], Sampling(20), [1])) == texts(want)
    replayed = {shape: graph.replayed for shape, (graph, _) in graphs.items()}
    assert replayed == {(4, 160, 0): 3} if not prefix_cache else sum(replayed.values()) > 1


def test_growing_frees_the_old_memory_first(monkeypatch):
    engine = Engine(small_model("llama"), num_pages=40)
    engine.generate(CONTEXTS, KEYS, Sampling(4), [1])
    old, there = weakref.ref(engine.slots), []
    make = engine._allocate
    monkeypatch.setattr(engine, "_allocate", lambda *size: there.append(old()) or make(*size))
    engine.generate(CONTEXTS, KEYS, Sampling(400), [1])
    assert there == [None]


def test_padding_beyond_the_longest_sequence():
    """Two sequences with a past of 128 and 64 positions: the first one's padding ends beyond the rotary table."""
    model, one = small_model("llama"), LONG[0]
    two = torch.cat((one[:64], one[64:].flip(0)))
    engine = Engine(model, num_pages=60, prefix_cache=True)
    for contexts in ([one], [one, two]):
        keys = [row[:2] for row in MANY[: len(contexts)]]
        want = generate(model, contexts, keys, Sampling(20), [1])
        assert texts(engine.generate(contexts, keys, Sampling(20), [1])) == texts(want)


def test_a_finished_job_is_collected_not_preempted():
    """The host is one snapshot behind and pages run out: an answer that has stopped by then must not be preempted and resumed."""
    model = small_model("llama")
    contexts = [torch.arange(n) % 50 + 2 for n in (63, 129, 130, 2, 60)]
    for tag in (2, 3, 4):
        keys = [[rng.key(tag, p, i) for i in range(n)] for p, n in enumerate((4, 1, 5, 6, 4))]
        engine = Engine(model, num_pages=14, stride=8)
        want = generate(model, contexts, keys, Sampling(70), [1])
        assert texts(engine.generate(contexts, keys, Sampling(70), [1])) == texts(want)
        assert engine.preempted > 0 and len(engine.slots.pages.free) == 13


def test_fewer_pages_than_slots_even_where_one_page_holds_an_answer():
    model, contexts = small_model("llama"), [torch.arange(60) % 50 + 2, torch.arange(60) % 40 + 2]
    keys = [[rng.key("few", p, i) for i in range(n)] for p, n in enumerate((6, 3))]
    engine = Engine(model, num_pages=5)
    assert texts(engine.generate(contexts, keys, Sampling(3), [1])) == texts(
        generate(model, contexts, keys, Sampling(3), [1])
    )
    assert not engine.slots.one_page_each and len(engine.slots.pages.free) == 4


def test_heads_that_the_kernels_take():
    """On a GPU a policy with other heads samples without the engine, and a server says so."""
    assert [D for D in (4, 8, 16, 24, 32, 64, 80, 96, 100, 128, 256) if heads_fit(D)] == [16, 32, 64, 128, 256]
