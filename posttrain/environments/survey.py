"""What is in a data set, before anything is trained: lengths, questions that come twice, questions of one split in the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.core.answers import conversation, demonstration
from posttrain.core.types import Prompt
from posttrain.environments.preference_survey import SIDES, differences, preference_figures, sides, signed_bins

QUANTILES = (0, 25, 50, 75, 95, 99, 100)
GRAM = 8  # words of a sequence that two questions may share
SHARE = 0.5  # of a test question's sequences that are also in training questions: near enough to tell
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Near:
    """A test question that stands in the training set, nearly or word for word."""

    id: str
    text: str
    share: float  # of its word sequences


def asked(prompt: Prompt) -> str:
    """All that is asked, as one text."""
    contents = [m["content"] for m in prompt.content]
    return "\n".join(c if isinstance(c, str) else "".join(p.get("text", "") for p in c) for c in contents)


def answered(prompt: Prompt) -> list[str]:
    """The answers that come with a prompt: all turns of a conversation, else the one to imitate."""
    if (whole := conversation(prompt)) is not None:
        return ["\n".join(str(m["content"]) for m in whole if m["role"] == "assistant")]
    said = demonstration(prompt)
    return [] if said is None else [said]


def lengths(prompts: Iterable[Prompt], count: Callable[[str], int] = len, kind: str = "") -> dict[str, list[int]]:
    """Lengths of the prompts and of their answers, in what `count` counts; of preferences, of both sides."""
    out: dict[str, list[int]] = {"prompt": [], **{name: [] for name in SIDES.get(kind, ("answer",))}}
    for p in prompts:
        out["prompt"].append(count(asked(p)))
        for name, text in sides(p, kind).items() if kind in SIDES else [("answer", text) for text in answered(p)]:
            out[name].append(count(text))
    return {name: values for name, values in out.items() if values}


def quantiles(values: Sequence[int]) -> dict[str, int]:
    """The least, the middle, the greatest and what lies between: the value that so many percent do not exceed."""
    ordered = sorted(values)
    names = {0: "min", 50: "median", 100: "max"}
    return {names.get(q, f"{q}%"): ordered[min(len(ordered) - 1, len(ordered) * q // 100)] for q in QUANTILES}


def repeated(prompts: Iterable[Prompt]) -> tuple[int, str]:
    """How many prompts ask what an earlier one asks, up to case, spaces and marks; and the first such question."""
    seen: set[int] = set()
    count, first = 0, ""
    for p in prompts:
        text = asked(p)
        key = hash(" ".join(words(text)) or text)
        if key in seen:
            count, first = count + 1, first or text
        seen.add(key)
    return count, first


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def overlap(train: Iterable[Prompt], test: Sequence[Prompt]) -> list[Near]:
    """The test questions of which half of all sequences of 8 words, or all words of a shorter one, are in one training question.

    Only the sequences of the test set are kept in memory.
    """
    wanted: dict[int, list[int]] = {}
    sizes = []
    for i, p in enumerate(test):
        mine = grams(asked(p))
        sizes.append(len(mine))
        for g in mine:
            wanted.setdefault(g, []).append(i)
    best = [0] * len(test)
    for p in train:
        hits: dict[int, int] = {}
        for g in grams(asked(p)):
            for i in wanted.get(g, ()):
                hits[i] = hits.get(i, 0) + 1
        for i, n in hits.items():
            best[i] = max(best[i], n)
    near = [(best[i] / sizes[i], i) for i in range(len(test)) if sizes[i] and best[i] >= SHARE * sizes[i]]
    return [Near(test[i].id, asked(test[i]), share) for share, i in sorted(near, key=lambda x: (-x[0], x[1]))]


def grams(text: str) -> set[int]:
    """Hashes of all sequences of 8 words; of a text with fewer, of all of it."""
    said = words(text)
    if not said:
        return set()
    return {hash(tuple(said[i : i + GRAM])) for i in range(max(1, len(said) - GRAM + 1))}


def bins(values: Sequence[int], most: int = 16) -> list[tuple[int, int, int]]:
    """(from, up to, how many): at most so many bins of one round width; the last one has the tail beyond the 99th percentile too."""
    top = quantiles(values)["99%"]
    width = next(w for k in range(12) for m in (1, 2, 5) if (w := m * 10**k) * most > top)
    counts = [0] * (top // width + 1)
    for v in values:
        counts[min(v // width, len(counts) - 1)] += 1
    ends = [(i + 1) * width - 1 for i in range(len(counts))]
    ends[-1] = max(ends[-1], max(values))
    made = [(i * width, end, n) for i, (end, n) in enumerate(zip(ends, counts, strict=True))]
    return made[next(i for i, (_, _, n) in enumerate(made) if n) :]


def survey(
    train: Sequence[Prompt], test: Sequence[Prompt], count: Callable[[str], int] | None = None, kind: str = ""
) -> dict[str, Any]:
    """All figures of a data set; with `count`, lengths in tokens too; kind: of which preferences it is, if it is."""
    every = [*train, *test]
    units: dict[str, Callable[[str], int]] = {"characters": len} | ({"tokens": count} if count else {})
    found = {unit: lengths(every, by, kind) for unit, by in units.items()}
    histograms = {u: {k: bins(v) for k, v in some.items()} for u, some in found.items()}
    more: dict[str, Any] = {}
    if kind in SIDES and every:
        more["preferences"] = preference_figures(every, kind, count or len)
        for unit, by in units.items():
            gaps = differences(every, kind, by)
            histograms[unit] |= {"preferred less other": signed_bins(gaps)} if gaps else {}
        sure = [round(100 * p.info["preferred"]) for p in every if "preferred" in p.info]
        histograms |= {"percent": {"probability of the preference": signed_bins(sure)}} if sure else {}
    twice, first = repeated(train)
    near = overlap(train, test)
    return {
        "rows": {"train": len(train), "test": len(test)},
        "lengths": {u: {k: quantiles(v) for k, v in some.items()} for u, some in found.items()},
        "bins": histograms,
        "duplicates": {"train": twice, "first": first},
        "contamination": {
            "word for word": sum(n.share == 1.0 for n in near), "near": sum(n.share < 1.0 for n in near),
            "first": near[0].text if near else "",
        },
        **more,
    }  # fmt: skip
