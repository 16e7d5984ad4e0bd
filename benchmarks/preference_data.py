"""AlpacaEval's preferences as three sets without a prompt in common: for the policy, for its judge, held out. Nothing of them is committed (CC BY-NC 4.0).

python -m benchmarks.preference_data --source ../shared/data/alpaca_eval_prefs --model smollm2 --out carry/prefs

policy/  pairs that policies and the reward model they may use learn from; its test split, `dev`, is for choosing rates
judge/   pairs that the judge learns from; its test split is the held-out pairs, for the accuracy of both reward models
ask/     the policy's prompts alone, for methods that answer them themselves; its test split is the held-out prompts
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
PROMPT, ANSWER, TEMPLATE = (
    96,
    255,
    32,
)  # most tokens of a prompt and of an answer (and its end), and what the chat template adds
HELD_OUT, DEV = 224, 48  # prompts
PAIRS_A_PROMPT = 8  # held-out pairs of one prompt, at most


def read(folder: Path) -> list[Row]:
    """Every pair, of both files: they were split by prompt for something else."""
    out = []
    for name in ("train", "test"):
        with gzip.open(folder / f"{name}.jsonl.gz", "rt") as file:
            out += [{k: row[k].strip() for k in ("prompt", "chosen", "rejected")} for row in map(json.loads, file)]
    return out


def kept(rows: Sequence[Row], tokens: Callable[[str], int]) -> tuple[list[Row], dict[str, int]]:
    """The pairs that are used, and how many are left out, by reason."""
    seen: set[tuple[str, ...]] = set()
    gone: Counter[str] = Counter()
    out = []
    known = {(r["prompt"], r["chosen"], r["rejected"]) for r in rows}
    for r in rows:
        key = (r["prompt"], r["chosen"], r["rejected"])
        if tokens(r["prompt"]) > PROMPT:
            gone["prompt too long"] += 1
        elif max(tokens(r["chosen"]), tokens(r["rejected"])) > ANSWER:
            gone["an answer too long"] += 1
        elif not r["chosen"] or not r["rejected"] or r["chosen"] == r["rejected"]:
            gone["empty or equal answers"] += 1
        elif (r["prompt"], r["rejected"], r["chosen"]) in known:
            gone["preferred both ways"] += 1
        elif key in seen:
            gone["seen before"] += 1
        else:
            out.append(r)
        seen.add(key)
    return out, dict(gone)


def by_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def splits(rows: Sequence[Row], held_out: int = HELD_OUT, dev: int = DEV) -> dict[str, list[str]]:
    """Prompts of each set: by hash, so that nothing but the prompt decides; half of the rest is the policy's, half the judge's."""
    asked = sorted({r["prompt"] for r in rows}, key=by_hash)
    half = (len(asked) - held_out - dev + 1) // 2
    ends = [0, held_out, held_out + dev, held_out + dev + half, len(asked)]
    return {n: asked[a:b] for n, a, b in zip(("held_out", "dev", "policy", "judge"), ends, ends[1:], strict=False)}


def rows_of_sets(rows: Sequence[Row], sets: dict[str, list[str]]) -> dict[str, list[Row]]:
    """The pairs of each set; of those that only measure, some of each prompt."""
    place = {prompt: name for name, asked in sets.items() for prompt in asked}
    pairs: dict[str, list[Row]] = {name: [] for name in sets}
    for r in rows:
        pairs[place[r["prompt"]]].append(r)
    for name in ("held_out", "dev"):
        few: Counter[str] = Counter()
        some = sorted(pairs[name], key=lambda r: by_hash(json.dumps(r)))
        pairs[name] = [r for r in some if not few.update([r["prompt"]]) and few[r["prompt"]] <= PAIRS_A_PROMPT]
    return pairs


def write(out: Path, rows: Sequence[Row], sets: dict[str, list[str]]) -> dict[str, dict[str, int]]:
    """The files of every set; returns how many prompts and pairs each has."""
    pairs = rows_of_sets(rows, sets)
    for file, split, name in (
        ("policy", "train", "policy"), ("policy", "test", "dev"), ("judge", "train", "judge"), ("judge", "test", "held_out"),
    ):  # fmt: skip
        dump(out / file / f"{split}.jsonl.gz", pairs[name])
    for split, name in (("train", "policy"), ("test", "held_out")):
        dump(out / "ask" / f"{split}.jsonl.gz", ({"prompt": p} for p in sets[name]))
    return {name: {"prompts": len(sets[name]), "pairs": len(pairs[name])} for name in sets}


def dump(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--model", default="smollm2", help="whose tokens are counted")
    parser.add_argument("--out", type=Path, default=Path("carry/prefs"))
    args = parser.parse_args()
    from posttrain.policies.load import find_folder, load_tokenizer

    tokenizer, counted = load_tokenizer(find_folder(args.model)), dict[str, int]()

    def tokens(text: str) -> int:
        if text not in counted:
            counted[text] = len(tokenizer(text)["input_ids"])
        return counted[text]

    rows = read(args.source)
    used, gone = kept(rows, tokens)
    sets = write(args.out, used, splits(used))
    longer = sum(tokens(r["chosen"]) > tokens(r["rejected"]) for r in used) / len(used)
    about = {"source": args.source.name, "rows": len(rows), "left_out": gone, "sets": sets, "chosen_is_longer": round(longer, 4)}  # fmt: skip
    about |= {"prompt_tokens": PROMPT, "answer_tokens": ANSWER}
    (args.out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
