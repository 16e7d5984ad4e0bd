"""Figures of a data set: quantiles, bins, duplicates, and test questions that stand in the training set."""

from __future__ import annotations

from posttrain.core.types import Prompt
from posttrain.environments.survey import bins, lengths, overlap, quantiles, repeated, survey


def prompts(*texts: str, **info) -> list[Prompt]:
    return [Prompt.text(f"p{i}", text, "ab", **info) for i, text in enumerate(texts)]


def test_quantiles_and_bins():
    assert quantiles(range(1, 101)) == {"min": 1, "25%": 26, "median": 51, "75%": 76, "95%": 96, "99%": 100, "max": 100}
    assert quantiles([7]) == dict.fromkeys(("min", "25%", "median", "75%", "95%", "99%", "max"), 7)
    found = bins([*range(100), 5000])  # 101 values: the 99th percentile is 99, bins are 10 wide
    assert found[0] == (0, 9, 10) and found[-1] == (90, 5000, 11) and sum(n for _, _, n in found) == 101
    assert bins([24, 25, 29])[0][0] == 24  # none that is empty in front


def test_lengths_of_prompts_pairs_and_conversations():
    assert lengths(prompts("abc", "de")) == {"prompt": [3, 2], "answer": [2, 2]}
    pair = prompts("q", chosen="long one", rejected="x")
    assert lengths(pair, kind="pairs") == {"prompt": [1], "preferred answer": [8], "other answer": [1]}
    turns = (
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "v"},
    )
    chat = [Prompt("x", turns, "four", {"imitated": turns[1]})]
    assert lengths(chat)["answer"] == [9]  # two turns, line by line
    assert lengths([Prompt.text("x", "abc")]) == {"prompt": [3]}


def test_duplicates_up_to_case_and_marks():
    assert repeated(prompts("What is it?", "what is IT", "other")) == (1, "what is IT")
    assert repeated(prompts("?", "!", "漢字", "漢字"))[0] == 1  # texts without a word are compared as they are


WORDS = [f"w{i}" for i in range(40)]


def test_near_contamination_is_half_of_the_sequences_of_eight_words():
    whole = " ".join(WORDS)  # 40 words: 33 sequences of 8
    train = prompts(whole, "something else")
    half = " ".join(
        [*WORDS[:24], *(f"x{i}" for i in range(16))]
    )  # 33 sequences too, 17 of them whole in the first 24 words
    less = " ".join([*WORDS[:23], *(f"x{i}" for i in range(17))])  # 16 of 33
    test = prompts(whole.upper(), half, less, "something else", "something other")
    found = {n.id: n.share for n in overlap(train, test)}
    assert found == {"p0": 1.0, "p3": 1.0, "p1": 17 / 33}
    two = prompts(" ".join(WORDS[:20]), " ".join(WORDS[20:]))
    assert not [
        n for n in overlap(two, prompts(whole)) if n.share > 0.5
    ]  # of one training question, not of several together


def test_survey():
    found = survey(
        prompts("one two", "one two", "three"), prompts("three", "four"), count=lambda text: len(text.split())
    )
    assert found["rows"] == {"train": 3, "test": 2}
    assert found["lengths"]["tokens"]["prompt"]["max"] == 2 and found["lengths"]["characters"]["answer"]["min"] == 2
    assert found["duplicates"] == {"train": 1, "first": "one two"}
    assert found["contamination"] == {"word for word": 1, "near": 0, "first": "three"}
