"""Three small verifiable tasks for SmolLM2-135M-Instruct as folders of JSONL: reasoning-gym's chain sums, those of two digits alone (1%
right at the start), and word problems.

python examples/smollm2_tasks.py --out tasks          (needs reasoning-gym; the training machine then does not)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

TRAIN, TEST = 4000, 400


def chain_sums(least: int = 1) -> dict[str, list[dict[str, str]]]:
    """Two numbers of one (or `least`) or two digits, added or subtracted; no question is in both splits."""
    import reasoning_gym

    rows: dict[str, str] = {}
    made = reasoning_gym.create_dataset(
        "chain_sum", size=3 * TRAIN, seed=0, min_terms=2, max_terms=2, min_digits=least, max_digits=2
    )
    for row in made:
        rows.setdefault(row["question"], row["answer"])
    flat = [{"question": q, "answer": a} for q, a in rows.items()]
    return {"test": flat[:TEST], "train": flat[TEST : TEST + TRAIN]}


def word_problems() -> dict[str, list[dict[str, str]]]:
    """The school's word problems of one step; splits are by what is asked, however it is put."""
    from posttrain.environments.task import task

    env = task("word_problems", level=1, think=False)
    out = {}
    for split, count in (("train", TRAIN), ("test", TEST)):
        asked = [env.prompt(i, split) for i in range(count)]
        out[split] = [{"question": p.last, "answer": str(p.answer)} for p in {p.last: p for p in asked}.values()]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    made = {"chain-sums": chain_sums(), "two-digit-sums": chain_sums(2), "word-problems": word_problems()}
    for name, splits in made.items():
        (args.out / name).mkdir(parents=True, exist_ok=True)
        for split, rows in splits.items():
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (args.out / name / f"{split}.jsonl").write_text(text)
        print(f"{args.out / name}: " + ", ".join(f"{len(rows)} {split}" for split, rows in splits.items()))


if __name__ == "__main__":
    main()
