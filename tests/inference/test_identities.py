"""Prefix sharing compares all that was observed: equal tokens under different identities share neither pages nor prefill."""

import pytest

from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.inference.engine import Engine
from posttrain.inference.jobs import Job
from posttrain.inference.pages import _hash_chain
from posttrain.models.sampling import generate
from tests.inference.test_engine import LONG, MANY, small_model, texts


def prefix_engine() -> Engine:
    return Engine(small_model("llama"), max_slots=8, num_pages=60, prefix_cache=True)


SAME = [
    LONG[0],
    LONG[0].clone(),
]  # 130 tokens: two full pages of 64 and a rest, of which the last token is not prefilled
PAIR = [[rng.key("pair", i)] for i in range(2)]


@pytest.mark.parametrize(
    ("identities", "prefilled"),
    [
        (None, 129 + 1),  # the second finds both full pages
        ([b"a cat", b"a cat"], 129 + 1),
        ([b"", b""], 129 + 1),
        ([b"a cat", b"a dog"], 129 + 129),  # equal placeholder tokens, different images
        ([b"a cat", b""], 129 + 129),
    ],
)
def test_equal_tokens_share_pages_only_where_all_that_was_observed_is_equal(identities, prefilled):
    engine = prefix_engine()
    engine.generate(SAME, PAIR, Sampling(4), [], identities)
    assert engine.prefill_tokens == prefilled
    assert len(engine.slots.pages.cached) == (2 if prefilled < 200 else 4)  # distinct full pages that are remembered


def test_a_remembered_page_is_found_again_only_under_its_own_identity():
    engine = prefix_engine()
    new = []
    for identities in ([b"a cat"], [b"a dog"], [b"a cat"], [b"a dog"], None):
        before = engine.prefill_tokens
        engine.generate(SAME[:1], PAIR[:1], Sampling(4), [], identities)
        new.append(engine.prefill_tokens - before)
    assert new == [129, 129, 1, 1, 129]


def test_jobs_of_different_identities_hold_different_pages():
    """Page by page while both run: under one identity the two jobs have their first two pages in common, under two none."""
    for second, common in ((b"a cat", 2), (b"a dog", 0)):
        engine = prefix_engine()
        engine.prepare(2, 160, 8, [])
        jobs = [Job(SAME[i], PAIR[i][0], Sampling(8), identity=x) for i, x in enumerate((b"a cat", second))]
        engine.waiting.extend(jobs)
        engine.step()
        assert len(set(jobs[0].pages) & set(jobs[1].pages)) == common and jobs[0].pages and jobs[1].pages


def test_an_identity_changes_no_answer():
    engine, how = prefix_engine(), Sampling(12)
    want = generate(engine.model, LONG, MANY, how, [1])
    for identities in (None, [b"1", b"2", b"3", b"4"], [b"same"] * 4):
        assert texts(engine.generate(LONG, MANY, how, [1], identities)) == texts(want)


def test_an_identity_is_not_a_page_of_tokens():
    """The identity is hashed apart: one that equals the hash of a page is not taken for that page."""
    first, second = _hash_chain(LONG[0], 64)
    assert second not in _hash_chain(LONG[0][64:], 64, identity=first)
    assert _hash_chain(LONG[0], 64, b"") == [first, second]
