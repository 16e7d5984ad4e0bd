"""The slot engine makes the same answers as plain sampling, whatever the slots; kernels' twins mean what they say."""

import weakref
from itertools import chain

import pytest
import torch

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.inference.engine import Engine
from posttrain.inference.jobs import Job
from posttrain.inference.prefill import Reader
from posttrain.inference.sampling import Sampling, generate
from posttrain.models.decoder import Decoder
from posttrain.models.shape import DecoderConfig

SHAPES = {
    "llama": DecoderConfig(60, 32, 48, 2, 4, 2, 8),
    "qwen2": DecoderConfig(1500, 32, 48, 2, 4, 4, 8, qkv_bias=True, model_type="qwen2"),
    "qwen3": DecoderConfig(60, 32, 48, 2, 4, 1, 16, qk_norm=True, tied=False, model_type="qwen3"),
    "biases": DecoderConfig(60, 32, 48, 2, 4, 2, 8, qkv_bias=True, out_bias=True, mlp_bias=True),
}


def made(name: str) -> Decoder:
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
    model = made(name)
    want = generate(model, CONTEXTS, KEYS, how, [1, 5])
    got = Engine(model).generate(CONTEXTS, KEYS, how, [1, 5])
    for a, b in zip(chain(*want), chain(*got), strict=True):
        assert a.tokens.tolist() == b.tokens.tolist() and a.stopped == b.stopped
        torch.testing.assert_close(a.logp_T, b.logp_T, atol=1e-4, rtol=0)


def texts(made):
    return [s.tokens.tolist() for g in made for s in g]


@pytest.mark.parametrize("room", [0, 40])  # a page a slot, as without a GPU; pages of 64, as with one
def test_fewer_slots_than_answers_changes_nothing(room):
    model = made("llama")
    want = generate(model, CONTEXTS, KEYS, Sampling(12), [1])
    small = Engine(model, most=3, room=room)
    got = small.generate(CONTEXTS, KEYS, Sampling(12), [1])
    assert small.slots.count == 3
    assert texts(got) == texts(want)


LONG = [torch.arange(n) % 50 + 2 for n in (130, 64, 65, 3)]
MANY = [[rng.key(p, i) for i in range(5)] for p in range(4)]


def test_pages_shared_by_a_group_and_given_back():
    model = made("llama")
    want = generate(model, LONG, MANY, Sampling(90), [1])
    engine = Engine(model, most=6, room=200)
    assert texts(engine.generate(LONG, MANY, Sampling(90), [1])) == texts(want)
    assert engine.read == sum(len(c) - 1 for c in LONG)  # a prompt is read once, whatever the slots
    assert len(engine.slots.pages.free) == 199 and engine.preempted == 0


def test_too_few_pages_preempt_and_change_nothing():
    model = made("llama")
    want = generate(model, LONG, MANY, Sampling(90), [1])
    engine = Engine(model, room=12)  # one answer to the first prompt fills four
    assert texts(engine.generate(LONG, MANY, Sampling(90), [1])) == texts(want)
    assert engine.preempted > 0 and len(engine.slots.pages.free) == 11


@pytest.mark.parametrize("room", [0, 13, 60])
@pytest.mark.parametrize("most", [3, 50])
def test_looking_behind_the_device_changes_nothing(room, most):
    """Several steps between looks, the host a look behind: ended slots are stepped on, and nothing of it is kept."""
    model = made("llama")
    limits = [[7 * i + 3 * p + 1 for i in range(5)] for p in range(4)]
    want = Engine(model).generate(LONG, MANY, Sampling(90), [1], limits=limits)
    engine = Engine(model, most=most, room=room, stride=4)
    for _ in range(2):
        got = engine.generate(LONG, MANY, Sampling(90), [1], limits=limits)
        assert texts(got) == texts(want) and not engine.busy
        assert [s.stopped for g in got for s in g] == [s.stopped for g in want for s in g]
        if room:
            assert len(engine.slots.pages.free) == room - 1


def test_slots_that_jobs_moved_away_from_hold_nothing(monkeypatch):
    """On a GPU the number of slots stepped is a power of two. Slots that the last jobs of one call moved away from are stepped
    in the next call without a job; what they write must not land in pages that others have by then."""
    model = made("llama")
    engine = Engine(model, room=22)  # few pages, so that they are used again
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
        Engine(made("llama"), room=3).generate(LONG, MANY, Sampling(90), [])


def test_a_known_beginning_is_not_read_again():
    model = made("llama")
    engine = Engine(model, room=60, remember=True)
    (first,) = engine.generate(LONG[:1], [[7]], Sampling(90), [])
    read = engine.read
    longer = torch.cat((LONG[0], first[0].tokens, torch.tensor([5, 6, 7])))  # the next turn of the same conversation
    again = engine.generate([longer], [[8]], Sampling(20), [])
    assert engine.read - read == len(longer) - 1 - 192  # three pages of 64 were there
    assert texts(again) == texts(generate(model, [longer], [[8]], Sampling(20), []))
    with torch.no_grad():
        model.model.norm.weight.mul_(1.1)
    fresh = engine.generate([longer], [[8]], Sampling(20), [])
    assert texts(fresh) == texts(generate(model, [longer], [[8]], Sampling(20), []))


def test_limits_of_each_answer_and_mixed_settings():
    model = made("llama")
    limits = [[3, 1, 7, 12, 5][: len(k)] for k in KEYS]
    got = Engine(model).generate(CONTEXTS, KEYS, Sampling(12), [], limits=limits)
    assert [[len(s.tokens) for s in g] for g in got] == limits
    whole = generate(model, CONTEXTS, KEYS, Sampling(12), [])
    for a, b in zip(chain(*got), chain(*whole), strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()[: len(a.tokens)] and not a.stopped
    engine = Engine(model)
    cut = Sampling(12, 0.7, min_p=0.2, raw_logp=True)
    ways = (Sampling(12), Sampling(12, temperature=0.0), Sampling(12, top_p=0.5), cut)
    engine.open(4, 30, 12, [1])
    jobs = [Job(CONTEXTS[1], 5, how) for how in ways]
    engine.waiting.extend(jobs)
    while engine.busy:
        engine.turn()
    for job, how in zip(jobs, ways, strict=True):
        want = generate(model, CONTEXTS[1:2], [[5]], how, [1])[0][0]
        assert job.tokens.tolist() == want.tokens.tolist()
        torch.testing.assert_close(job.logp, want.logp_T, atol=1e-4, rtol=0)


def test_raw_log_probabilities_are_those_at_temperature_one():
    model = made("llama")
    tempered, raw = (generate(model, CONTEXTS, KEYS, Sampling(12, 0.5, raw_logp=r), [1])[1][0] for r in (False, True))
    text = torch.cat((CONTEXTS[1], raw.tokens))
    logits = model.logits(model.hidden(text[None]))[0, len(CONTEXTS[1]) - 1 : -1]
    for got, heat in ((tempered, 2.0), (raw, 1.0)):
        want = torch.log_softmax(heat * logits, -1).gather(-1, raw.tokens[:, None]).squeeze(-1)
        torch.testing.assert_close(got.logp_T, want.detach(), atol=1e-5, rtol=1e-5)


def test_a_stop_string_ends_an_answer():
    model = made("llama")
    whole = generate(model, CONTEXTS, KEYS, Sampling(12), [])

    def completes(tokens):  # "a token over 40" as a stop string
        over = (tokens > 40).nonzero()
        return int(over[0]) + 1 if len(over) else 0

    got = Engine(model, most=4).generate(CONTEXTS, KEYS, Sampling(12), [], completes)
    for a, b in zip(chain(*got), chain(*whole), strict=True):
        n = completes(b.tokens)
        assert a.tokens.tolist() == b.tokens.tolist()[: n or 12] and a.stopped == bool(n)


def test_an_interrupted_call_leaves_nothing_behind():
    model = made("llama")
    engine = Engine(model, room=60)

    def completes(tokens):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(LONG, MANY, Sampling(90), [], completes)
    assert not engine.busy and len(engine.slots.pages.free) == 59
    assert texts(engine.generate(CONTEXTS, KEYS, Sampling(12), [1])) == texts(
        generate(model, CONTEXTS, KEYS, Sampling(12), [1])
    )


def test_new_weights_are_seen_at_once():
    model = made("llama")
    engine = Engine(model)
    before = engine.generate(CONTEXTS, KEYS, Sampling(12), [1])
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    again = engine.generate(CONTEXTS, KEYS, Sampling(12), [1])
    fresh = generate(model, CONTEXTS, KEYS, Sampling(12), [1])
    assert [s.tokens.tolist() for g in again for s in g] == [s.tokens.tolist() for g in fresh for s in g]
    assert [s.tokens.tolist() for g in again for s in g] != [s.tokens.tolist() for g in before for s in g]


@pytest.mark.parametrize("remember", [False, True])
def test_reading_in_rounded_sizes_as_graphs_do_changes_nothing(monkeypatch, remember):
    """A GPU reads texts of rounded numbers and lengths, the second time and on as a captured graph with inputs of its own."""

    class Graph:
        def __init__(self, reader, inputs):
            self.reader, self.inputs, self.replayed = reader, inputs, 0

        def replay(self):
            self.replayed += 1
            self.reader.fused.read(*self.inputs, self.reader.pages)

    def capture(self, size, given):
        inputs = tuple(torch.zeros_like(x) for x in given)
        self.graphs[size] = Graph(self, inputs), inputs

    monkeypatch.setattr(Reader, "_capture", capture)
    model = made("llama")
    engine = Engine(model, room=90, remember=remember)
    engine.generate(LONG, MANY, Sampling(20), [])
    engine.slots.reader.pool = "a GPU's"
    for turn in range(4):
        contexts = [c.roll(turn) for c in LONG[:3]]  # three texts of up to 129 tokens: read as four of 160
        want = generate(model, contexts, MANY[:3], Sampling(20), [1])
        assert texts(engine.generate(contexts, MANY[:3], Sampling(20), [1])) == texts(want)
    graphs = engine.slots.reader.graphs
    replayed = {size: graph.replayed for size, (graph, _) in graphs.items()}
    assert replayed == {(4, 160): 3} if not remember else sum(replayed.values()) > 1


def test_growing_lets_the_old_memory_go_first(monkeypatch):
    engine = Engine(made("llama"), room=40)
    engine.generate(CONTEXTS, KEYS, Sampling(4), [1])
    old, there = weakref.ref(engine.slots), []
    make = engine._make
    monkeypatch.setattr(engine, "_make", lambda *size: there.append(old()) or make(*size))
    engine.generate(CONTEXTS, KEYS, Sampling(400), [1])
    assert there == [None]


def test_padding_beyond_the_longest_text():
    """Two texts with a past of 128 and 64 places: the first one's padding ends beyond the places that rotations are known for."""
    model, one = made("llama"), LONG[0]
    two = torch.cat((one[:64], one[64:].flip(0)))
    engine = Engine(model, room=60, remember=True)
    for contexts in ([one], [one, two]):
        keys = [row[:2] for row in MANY[: len(contexts)]]
        want = generate(model, contexts, keys, Sampling(20), [1])
        assert texts(engine.generate(contexts, keys, Sampling(20), [1])) == texts(want)


def test_who_has_ended_unseen_is_not_preempted():
    """The host is a look behind and pages run out: an answer that has stopped by then must not be put off and go on."""
    model = made("llama")
    contexts = [torch.arange(n) % 50 + 2 for n in (63, 129, 130, 2, 60)]
    for tag in (2, 3, 4):
        keys = [[rng.key(tag, p, i) for i in range(n)] for p, n in enumerate((4, 1, 5, 6, 4))]
        engine = Engine(model, room=14, stride=8)
        want = generate(model, contexts, keys, Sampling(70), [1])
        assert texts(engine.generate(contexts, keys, Sampling(70), [1])) == texts(want)
        assert engine.preempted > 0 and len(engine.slots.pages.free) == 13


def test_fewer_pages_than_slots_even_where_one_page_holds_an_answer():
    model, contexts = made("llama"), [torch.arange(60) % 50 + 2, torch.arange(60) % 40 + 2]
    keys = [[rng.key("few", p, i) for i in range(n)] for p, n in enumerate((6, 3))]
    engine = Engine(model, room=5)
    assert texts(engine.generate(contexts, keys, Sampling(3), [1])) == texts(
        generate(model, contexts, keys, Sampling(3), [1])
    )
    assert not engine.slots.fixed and len(engine.slots.pages.free) == 4
