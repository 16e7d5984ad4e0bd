"""What is in a set of preferences, before anything is learned from it: both sides' lengths, how often the longer answer wins, who agrees."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from posttrain.core.types import Prompt
from posttrain.environments.agreement import Agreement, agreement, judgements, repeats
from posttrain.environments.conversions import paired, worst
from posttrain.environments.data import question_of
from posttrain.environments.preferences import Pair

Count = Callable[[str], int]
SIDES = {
    "pairs": ("preferred answer", "other answer"),
    "lists": ("best answer", "worst answer"),
    "labels": ("good answer", "bad answer"),
}


def sides(prompt: Prompt, kind: str) -> dict[str, str]:
    """The better and the worse answer of a prompt, by what they are called; one of them alone where it is good or bad."""
    better, worse = SIDES[kind]
    info = prompt.info
    if kind == "labels":
        return {better if info["label"] else worse: info["response"]}
    if kind == "lists":
        return {better: info["ranked"][0]["text"], worse: info["ranked"][worst(info["ranked"])]["text"]}
    return {better: info["chosen"], worse: info["rejected"]}


def differences(prompts: Iterable[Prompt], kind: str, count: Count = len) -> list[int]:
    """By how much the preferred answer is longer than the other: of each pair, of every two answers of a list with different scores."""
    pairs = (
        [q for p in prompts for q in paired(p, every=True)]
        if kind == "lists"
        else list(prompts)
        if kind == "pairs"
        else []
    )
    known: dict[str, int] = {}
    return [_length(q.info["chosen"], count, known) - _length(q.info["rejected"], count, known) for q in pairs]


def _length(text: str, count: Count, known: dict[str, int]) -> int:
    if text not in known:
        known[text] = count(text)
    return known[text]


def longer_wins(gaps: Sequence[int]) -> dict[str, Any]:
    """How often the longer answer is preferred, of the comparisons whose answers differ in length."""
    differ = sum(g != 0 for g in gaps)
    return {"share": sum(g > 0 for g in gaps) / differ if differ else None, "of": differ, "equal": len(gaps) - differ}


def longer_is_good(prompts: Iterable[Prompt], count: Count = len) -> dict[str, Any]:
    """How often a good answer is longer than a bad one, of all comparisons of one with another that differ in length."""
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for p in prompts:
        lengths[p.info["label"]].append(count(p.info["response"]))
    bad = sorted(lengths[False])
    below = sum(bisect_left(bad, n) for n in lengths[True])
    equal = sum(bisect_right(bad, n) - bisect_left(bad, n) for n in lengths[True])
    differ = len(bad) * len(lengths[True]) - equal
    return {"share": below / differ if differ else None, "of": differ, "equal": equal}


def signed_bins(values: Sequence[int], most: int = 16) -> list[tuple[int, int, int]]:
    """(from, up to, how many) of numbers on both sides of 0: bins of one round width, the outermost with the 1% beyond them too."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 100], ordered[-1 - len(ordered) // 100]
    width = next(w for k in range(12) for m in (1, 2, 5) if (w := m * 10**k) * most > high - low)
    first, last = low // width, high // width
    counts = [0] * (last - first + 1)
    for v in values:
        counts[min(max(v // width, first), last) - first] += 1
    made = [((first + i) * width, (first + i + 1) * width - 1, n) for i, n in enumerate(counts)]
    made[0] = (min(made[0][0], ordered[0]), *made[0][1:])
    return [*made[:-1], (made[-1][0], max(made[-1][1], ordered[-1]), made[-1][2])]


def as_pairs(prompts: Iterable[Prompt]) -> list[Pair]:
    return [Pair(p, p.info["chosen"], p.info["rejected"], p.info.get("preferred")) for p in prompts]


def agreed(prompts: Sequence[Prompt], kind: str) -> Agreement | None:
    """How far those agree who judged the same two answers, or called the same answer good or bad."""
    prompts = [
        p for p in prompts if {"annotator", "votes"} & set(p.info)
    ]  # a row without a name may be a copy of another
    if kind == "pairs":
        return agreement(judgements(as_pairs(prompts)))
    units: dict[tuple[str, str], list[float]] = {}
    for p in prompts if kind == "labels" else ():
        units.setdefault((question_of(p), p.info["response"]), []).append(float(p.info["label"]))
    return agreement(units.values())


def preference_figures(prompts: Sequence[Prompt], kind: str, count: Count = len) -> dict[str, Any]:
    """All figures of a set of preferences; `of` is how many prompts there are."""
    wins = longer_is_good(prompts, count) if kind == "labels" else longer_wins(differences(prompts, kind, count))
    found = agreed(prompts, kind)
    names = {
        n
        for p in prompts
        for n in (*p.info.get("annotators", ()), *([p.info["annotator"]] if "annotator" in p.info else ()))
    }
    out: dict[str, Any] = {
        "kind": kind, "of": len(prompts), "longer_wins": wins, "annotators": len(names), "agreement": asdict(found) if found else None,
    }  # fmt: skip
    if kind == "pairs":
        soft = [p.info["preferred"] for p in prompts if "preferred" in p.info]
        twice, both, _ = repeats(as_pairs(prompts))
        out |= {
            "soft": len(soft),
            "mean_preferred": sum(soft) / len(soft) if soft else None,
            "repeated": twice,
            "contradictory": both,
        }
    if kind == "lists":
        sizes = [len(p.info["ranked"]) for p in prompts]
        equal = sum(len({a["score"] for a in p.info["ranked"]}) < n for p, n in zip(prompts, sizes, strict=True))
        out |= {"answers": sum(sizes), "fewest": min(sizes), "most": max(sizes), "with_equal_scores": equal}
    if kind == "labels":
        good = sum(p.info["label"] for p in prompts)
        both = sum(len(set(some)) > 1 for some in _labels(prompts).values())
        out |= {"good": good, "bad": len(prompts) - good, "contradictory": both}
    return out


def _labels(prompts: Iterable[Prompt]) -> dict[tuple[str, str], list[bool]]:
    out: dict[tuple[str, str], list[bool]] = {}
    for p in prompts:
        out.setdefault((question_of(p), p.info["response"]), []).append(p.info["label"])
    return out


def sentences(found: dict[str, Any]) -> list[str]:
    """The figures, one sentence each."""
    out, kind = [], found["kind"]
    if kind == "lists":
        span = f"{found['fewest']} to {found['most']}" if found["fewest"] < found["most"] else str(found["most"])
        out.append(
            f"lists: {found['of']:,} of {span} answers, {found['answers']:,} in all; {found['with_equal_scores']:,} have equal scores"
        )
    if kind == "labels":
        out.append(
            f"good: {100 * found['good'] / found['of']:.0f}% of {found['of']:,} answers; {found['contradictory']:,} are called both good and bad"
        )
    if kind == "pairs":
        out.append(
            f"pairs: {found['of']:,}; {found['repeated']:,} repeat an earlier one, {found['contradictory']:,} are compared in both ways"
        )
    wins = found["longer_wins"]
    if wins["share"] is not None:
        what = "a good answer is longer than a bad one" if kind == "labels" else "the longer answer is preferred"
        out.append(
            f"length: {what} in {100 * wins['share']:.1f}% of {wins['of']:,} comparisons ({wins['equal']:,} more are of equal length)"
        )
    if found.get("soft"):
        out.append(
            f"how sure: {found['soft']:,} pairs say how likely the first answer is preferred, {found['mean_preferred']:.2f} on average"
        )
    return out + _agreement(found)


def _agreement(found: dict[str, Any]) -> list[str]:
    by = found["agreement"]
    named = f"annotators: {found['annotators']:,}" if found["annotators"] else "annotators: nobody is named"
    if by is None:
        return [f"{named}; none judged what another did"] if found["annotators"] else []
    alpha = "not defined, all say the same" if by["alpha"] != by["alpha"] else f"{by['alpha']:.2f}"
    return [
        f"{named}; {by['judged']:,} things were judged more than once, {by['votes']:,} times: the majority has {100 * by['majority']:.0f}%, "
        f"two judgements agree in {100 * by['agreed']:.0f}%, Krippendorff's alpha is {alpha}"
    ]
