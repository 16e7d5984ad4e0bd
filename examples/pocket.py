"""Train the embedded model from scratch on the school corpus, and write its model card.

    python examples/pocket.py --minutes 8 --out posttrain/models/pocket      (one H200: about 8 minutes)
    python examples/pocket.py --minutes 30 --batch 64 --out /tmp/pocket      (CPU: a weaker model, same script)

One pass over freshly generated text: workers write problems while the trainer reads, nothing is repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import queue
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoTokenizer

from posttrain.core import rng
from posttrain.models.decoder import Decoder, DecoderConfig

SHAPE = DecoderConfig(
    vocab_size=512, hidden_size=128, intermediate_size=512, num_layers=6, num_heads=4, num_kv_heads=4, head_dim=32,
    rope_theta=10000.0, rms_eps=1e-5, tied=True, max_positions=1024,
)  # fmt: skip
LENGTH = 256  # tokens of a training row: a few whole examples, none cut, none seeing another
USER = 2  # the id of <|user|>, with which every example begins
Rows = tuple[np.ndarray, np.ndarray]  # tokens and loss mask


def write_rows(seed: int, folder: str, out: mp.Queue[Rows], sloppy: float) -> None:
    """A worker: problems -> token rows of LENGTH with a loss mask (answers only count), for ever."""
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    from pocket_corpus import example

    tokenizer = AutoTokenizer.from_pretrained(folder)
    backend, draw = tokenizer.backend_tokenizer, rng.python(seed, "pocket corpus")
    assistant, end = (tokenizer.convert_tokens_to_ids(t) for t in ("<|assistant|>", "<|end|>"))
    rows, masks, at = np.zeros((1024, LENGTH), np.int16), np.zeros((1024, LENGTH), np.int8), 0
    row = 0
    while True:
        pairs = [example(draw, sloppy) for _ in range(512)]
        encoded = backend.encode_batch([t for pair in pairs for t in pair], add_special_tokens=False)
        for q, a in zip(encoded[::2], encoded[1::2], strict=True):
            ids = [USER, *q.ids, end, assistant, *a.ids, end]
            if len(ids) > LENGTH:
                continue
            if at + len(ids) > LENGTH:
                row, at = row + 1, 0
            if row == len(rows):
                out.put((rows.copy(), masks.copy()))
                rows[:], masks[:], row = 0, 0, 0
            rows[row, at : at + len(ids)] = ids
            masks[row, at + len(q.ids) + 3 : at + len(ids)] = 1
            at += len(ids)


class Stream:
    """Batches from the workers' rows, shuffled through a small pool."""

    def __init__(self, workers: int, seed: int, folder: str, sloppy: float) -> None:
        context = mp.get_context("spawn")
        self.queue: mp.Queue[Rows] = context.Queue(maxsize=4 * workers)
        self.workers = [
            context.Process(target=write_rows, args=(seed * 1000 + w, folder, self.queue, sloppy), daemon=True)
            for w in range(workers)
        ]
        for w in self.workers:
            w.start()
        self.rows = np.zeros((0, LENGTH), np.int16)
        self.mask = np.zeros((0, LENGTH), np.int8)

    def next(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        while len(self.rows) < batch:
            got = [self.queue.get(timeout=120)]
            try:
                while len(got) < 16:
                    got.append(self.queue.get_nowait())
            except queue.Empty:
                pass
            self.rows = np.concatenate([self.rows, *(g[0] for g in got)])
            self.mask = np.concatenate([self.mask, *(g[1] for g in got)])
            order = np.random.default_rng(len(self.rows)).permutation(len(self.rows))
            self.rows, self.mask = self.rows[order], self.mask[order]
        rows, mask = self.rows[:batch], self.mask[:batch]
        self.rows, self.mask = self.rows[batch:], self.mask[batch:]
        return torch.from_numpy(rows.astype(np.int64)), torch.from_numpy(mask.astype(np.float32))


def loss_of(model: Decoder, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Next-token loss over whole examples packed in rows; questions count a tenth, padding nothing."""
    rows, mask, target = rows[:, :-1], mask[:, 1:], rows[:, 1:]
    begins = rows == USER
    place = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
    start = torch.where(begins, place, 0).cummax(-1).values
    logits = model.logits(model.hidden(rows, place - start, begins.cumsum(-1))).float()
    weight = (0.1 + 0.9 * mask) * (target != 0) * (target != USER)
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return (loss * weight.flatten()).sum() / weight.sum()


def fresh(shape: DecoderConfig) -> Decoder:
    """A model of random weights, those that end a block smaller."""
    model = Decoder(shape)
    for name, p in model.named_parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, std=0.02 if "embed" in name else 0.6 / math.sqrt(p.shape[1]))
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            p.data.mul_(1 / math.sqrt(2 * shape.num_layers))
    return model


def optimiser_of(model: Decoder, lr: float) -> torch.optim.Optimizer:
    """AdamW; vectors do not decay."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        lr=lr, betas=(0.9, 0.98), fused=matrices[0].is_cuda,
    )  # fmt: skip


def train(args: argparse.Namespace) -> Decoder:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = fresh(SHAPE).to(device)
    optimiser = optimiser_of(model, args.lr)
    stream = Stream(args.workers, args.seed, args.tokenizer, args.sloppy)
    step_fn = torch.compile(loss_of) if device == "cuda" else loss_of
    stream.next(args.batch)
    began, tokens, step = time.time(), 0, 0
    budget = args.minutes * 60
    while (spent := time.time() - began) < budget:
        done = spent / budget
        rate = min(1.0, (step + 1) / 200) * (1 - done) ** 0.8  # warm up, then fall to zero as the time runs out
        for group in optimiser.param_groups:
            group["lr"] = args.lr * max(rate, 0.01)
        rows, mask = (x.to(device, non_blocking=True) for x in stream.next(args.batch))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = step_fn(model, rows, mask)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step, tokens = step + 1, tokens + rows.numel()
        if step % 200 == 0:
            print(
                f"step {step} loss {loss.item():.4f} {tokens / 1e6:.0f}M tokens {tokens / (time.time() - began):.0f}/s",
                flush=True,
            )
    for w in stream.workers:
        w.terminate()
    print(f"trained on {tokens} tokens in {step} steps, {time.time() - began:.0f} s", flush=True)
    return model


def save(model: Decoder, folder: Path, about: dict[str, object]) -> None:
    """A Hugging Face folder in bf16, weights under 8 MB."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        k: v.detach().to("cpu", torch.bfloat16).contiguous()
        for k, v in model.state_dict().items()
        if k != "lm_head.weight"
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    hf = model.config.to_hf() | {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(hf, indent=2) + "\n")
    (folder / "trained.json").write_text(json.dumps(about, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--batch", type=int, default=1024, help="rows of 256 tokens per step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sloppy", type=float, default=0.06, help="share of answers with a slip in them")
    parser.add_argument("--workers", type=int, default=max(1, (mp.cpu_count() or 2) - 2))
    parser.add_argument("--tokenizer", default=str(Path(__file__).parent.parent / "posttrain/models/pocket"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = train(args)
    about = {
        k: str(v) if isinstance(v, Path) else v
        for k, v in vars(args).items()
        if k not in ("tokenizer", "workers", "out")
    }
    about |= {"parameters": sum(p.numel() for p in model.parameters()), "torch": torch.__version__,
              "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}  # fmt: skip
    save(model, args.out, about)


if __name__ == "__main__":
    main()
