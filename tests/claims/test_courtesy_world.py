"""What claims about a hidden taste are trained on: triples that the methods of lists can read, best first."""

from __future__ import annotations

from claims.machinery.arms import Bench
from claims.worlds.courtesy import requests, triples
from posttrain.environments.language.courtesy import utility
from posttrain.environments.task import pair_task


def test_triples_are_ranked_lists_whose_first_answer_the_taste_likes_best() -> None:
    with Bench(100) as bench:
        rows = triples(bench, 6, noise=0.0)
        env = pair_task(bench.rows("triples", rows), kind="lists")
    asked = {
        requests().prompt(100_000 + 10_000 * 100 + i).last: requests().prompt(100_000 + 10_000 * 100 + i)
        for i in range(12)
    }
    seen = 0
    for split in ("train", "test"):
        for i in range(len(rows)):
            p = env.prompt(i, split)
            told = [a["text"] for a in p.info["ranked"]]
            assert told in [row["responses"] for row in rows]
            worth = [utility(asked[p.last], text) for text in told]
            assert worth == sorted(worth, reverse=True)
            seen += 1
    assert seen == 2 * len(rows)
