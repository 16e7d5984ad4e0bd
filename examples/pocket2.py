"""Train pocket-2 from scratch on the conversations of the workshop and the school, measure it, and write its model card.

    python -m examples.pocket2 --out posttrain/models/pocket2                  (one H200: about 8 minutes in all)
    python -m examples.pocket2 --out /tmp/pocket2 --minutes 5 --batch 16 --width 64 --layers 3 --problems 20
                                                                               (CPU: a toy of the same kind, to try the script)
    python -m examples.pocket2 --count                                        (FLOPs and tokens, nothing is trained)

Workers write conversations while the trainer reads; where it reads faster than they write, rows are read again, and the end says how often.
Only the assistant's turns are learned, all else counts a tenth in the loss.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import queue
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from examples import pocket2_card
from examples.pocket import fresh, optimiser_of, save
from examples.pocket2_corpus import FOLDER, block, encoded, tokenizer_of
from posttrain.core.errors import UserError
from posttrain.models.decoder import Decoder, DecoderConfig

SHAPE = DecoderConfig(
    vocab_size=1024, hidden_size=192, intermediate_size=512, num_layers=8, num_heads=6, num_kv_heads=6, head_dim=32,
    rope_theta=10000.0, rms_eps=1e-5, tied=True, max_positions=1024,
)  # fmt: skip
LENGTH = 385  # tokens of a row: a few whole conversations, none cut, none seeing another; 384 are read
ROWS = 512  # in one delivery of a worker
POOL = 60_000  # rows that are kept to be drawn from
OBSERVED = 0.1  # weight in the loss of what the model does not say itself
Rows = np.ndarray  # (n, 3, LENGTH) int16: tokens, whether learned, the conversation's number in its row (-1: padding)


def shape_of(args: argparse.Namespace) -> DecoderConfig:
    """pocket-2's shape, or a smaller one to try the script with."""
    return replace(SHAPE, hidden_size=args.width, num_layers=args.layers, num_heads=args.width // 32, num_kv_heads=args.width // 32,
                   intermediate_size=args.width * 8 // 3 // 16 * 16)  # fmt: skip


def filled(conversations: list[tuple[list[int], list[bool]]]) -> Rows:
    """Conversations in rows, one after the other; one that is longer than a row is left out."""
    rows = [_empty()]
    at = number = 0
    for ids, learned in conversations:
        if len(ids) > LENGTH:
            continue
        if at + len(ids) > LENGTH:
            rows.append(_empty())
            at = number = 0
        rows[-1][:, at : at + len(ids)] = ids, learned, [number] * len(ids)
        at, number = at + len(ids), number + 1
    return np.stack(rows[:-1]) if len(rows) > 1 else np.stack(rows)


def _empty() -> np.ndarray:
    row = np.zeros((3, LENGTH), np.int16)
    row[2] = -1
    return row


def write_rows(worker: int, seed: int, workers: int, out: mp.Queue[Rows]) -> None:
    """A worker: its blocks of the corpus as rows, for ever."""
    tokenizer, number = tokenizer_of(), worker
    while True:
        made = filled(encoded(tokenizer, [said for said, _ in block(seed, number)]))
        for start in range(0, len(made), ROWS):
            out.put(made[start : start + ROWS])
        number += workers


class Stream:
    """Batches drawn from a pool that workers refill, the oldest row first."""

    def __init__(self, workers: int, seed: int) -> None:
        context = mp.get_context("spawn")
        self.queue: mp.Queue[Rows] = context.Queue(maxsize=4 * workers)
        self.workers = [
            context.Process(target=write_rows, args=(w, seed, workers, self.queue), daemon=True) for w in range(workers)
        ]
        for worker in self.workers:
            worker.start()
        self.pool = np.zeros((POOL, 3, LENGTH), np.int16)
        self.written = self.read = 0
        self.draw = np.random.default_rng(seed)

    def next(self, batch: int) -> torch.Tensor:
        """A batch from the pool, with what has been written meanwhile; only the first one waits, until there is enough of it."""
        self._take()
        while self.written < 2 * batch:
            self._keep(self.queue.get(timeout=300))
        self.read += batch
        return torch.from_numpy(self.pool[self.draw.integers(0, min(self.written, POOL), batch)])

    def _take(self) -> None:
        """Everything that has been delivered."""
        while True:
            try:
                self._keep(self.queue.get_nowait())
            except queue.Empty:
                return

    def _keep(self, rows: Rows) -> None:
        """In the places of the oldest."""
        self.pool[(self.written + np.arange(len(rows))) % POOL] = rows
        self.written += len(rows)

    def close(self) -> None:
        for worker in self.workers:
            worker.terminate()


def loss_of(model: Decoder, rows_B3L: torch.Tensor) -> torch.Tensor:
    """Next-token loss over conversations packed in rows; the assistant's tokens count in full, others a tenth, padding nothing."""
    tokens, learned, part = rows_B3L[:, 0, :-1], rows_B3L[:, 1, 1:], rows_B3L[:, 2, :-1]
    target, same = rows_B3L[:, 0, 1:], rows_B3L[:, 2, 1:] == part
    # rotary positions are relative, so a conversation may stand anywhere in its row
    logits = model.logits(model.hidden(tokens, segments_BT=part)).float()
    weight = (OBSERVED + (1 - OBSERVED) * learned) * same * (part >= 0)
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return (loss * weight.flatten()).sum() / weight.sum()


def train(args: argparse.Namespace) -> tuple[Decoder, dict[str, float]]:
    """The model after `minutes`, and what it read."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = fresh(shape_of(args)).to(device)
    optimiser = optimiser_of(model, args.lr)
    stream = Stream(args.workers, args.seed)
    step_fn = torch.compile(loss_of) if device == "cuda" and not args.eager else loss_of
    began, tokens, step, shown = time.time(), 0, 0, 0.0
    budget = args.minutes * 60
    while (spent := time.time() - began) < budget and (not args.steps or step < args.steps):
        done = max(spent / budget, step / args.steps if args.steps else 0.0)
        rate = min(1.0, (step + 1) / 200) * (1 - done) ** 0.8  # warm up, then fall to zero as the time runs out
        for group in optimiser.param_groups:
            group["lr"] = args.lr * max(rate, 0.01)
        rows = stream.next(args.batch).to(device, non_blocking=True).long()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = step_fn(model, rows)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step, tokens = step + 1, tokens + args.batch * (LENGTH - 1)
        if step == 1 or spent - shown > args.minutes * 60 / 40:
            shown = spent
            print(
                f"step {step} loss {loss.item():.4f} {tokens / 1e6:.1f}M tokens {tokens / (time.time() - began):,.0f}/s "
                f"rows read {stream.read / stream.written:.2f} times",
                flush=True,
            )
    stream.close()
    took = time.time() - began
    read = {"steps": step, "tokens": tokens, "seconds": round(took), "loss": round(loss.item(), 4), "reread": round(stream.read / stream.written, 2)}  # fmt: skip
    print(f"trained: {read}", flush=True)
    return model, read


def count(shape: DecoderConfig, batch: int, minutes: float) -> str:
    """FLOPs and tokens before anything runs; what an H200 should reach is an estimate, to be compared with what it does."""
    width, layers, read = shape.hidden_size, shape.num_layers, LENGTH - 1
    dense = 6 * shape.parameters
    attention = 12 * layers * read * width  # the whole square: the mask is dense
    per_step = (dense + attention) * batch * read
    lines = [f"{shape.parameters:,} parameters, {2 * shape.parameters / 1e6:.2f} MB in bf16"]
    lines.append(
        f"{(dense + attention) / 1e6:.1f} MFLOP per token ({dense / 1e6:.1f} dense, {attention / 1e6:.1f} attention)"
    )
    lines.append(f"{per_step / 1e12:.2f} TFLOP and {batch * read:,} tokens per step")
    for share in (0.05, 0.10, 0.15):
        speed = share * 989e12 / (dense + attention)
        lines.append(
            f"at {share:.0%} of 989 TFLOP/s: {speed / 1e6:.1f}M tokens/s, {speed * minutes * 60 / 1e9:.2f}B tokens in {minutes:g} min"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the folder to write: weights, tokenizer, card, accuracy.json")
    parser.add_argument("--minutes", type=float, default=6.0, help="of training; measuring takes about one more")
    parser.add_argument("--steps", type=int, default=0, help="end after so many, if that is earlier")
    parser.add_argument("--batch", type=int, default=512, help="rows of 384 tokens per step")
    parser.add_argument(
        "--width", type=int, default=SHAPE.hidden_size, help="a multiple of 32; smaller to try the script on a CPU"
    )
    parser.add_argument("--layers", type=int, default=SHAPE.num_layers)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=max(1, (mp.cpu_count() or 2) - 2))
    parser.add_argument("--problems", type=int, default=200, help="of each skill and level in the card; 0: no card")
    parser.add_argument("--eager", action="store_true", help="without torch.compile: slower, where that fails")
    parser.add_argument("--count", action="store_true", help="print FLOPs and tokens and do nothing")
    args = parser.parse_args()
    if args.width % 32 or args.width < 32 or args.layers < 1:
        raise UserError(f"--width is a multiple of 32 and --layers at least 1, got {args.width} and {args.layers}")
    if args.count:
        print(count(shape_of(args), args.batch, args.minutes))
        return
    if args.out is None:
        raise UserError("say where the model goes: python -m examples.pocket2 --out FOLDER")
    args.out.mkdir(parents=True, exist_ok=True)
    model, read = train(args)
    about = {"minutes": args.minutes, "batch": args.batch, "lr": args.lr, "seed": args.seed} | read
    about |= {"parameters": sum(p.numel() for p in model.parameters()), "torch": torch.__version__,
              "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}  # fmt: skip
    save(model, args.out, about)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if args.out.resolve() != FOLDER.resolve():
            shutil.copy(FOLDER / name, args.out / name)
    if args.problems:
        pocket2_card.write(args.out, args.problems)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from None
