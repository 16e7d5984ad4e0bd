"""Train pocket-2 on the conversations of the workshop and the school, measure it, and write its model card.

    python -m examples.pocket2 --out posttrain/models/pocket2 --grow posttrain/models/pocket --minutes 100
                                                                               (one core of a CPU: what the package holds)
    python -m examples.pocket2 --out /tmp/pocket2 --width 192 --layers 8 --inner 512 --batch 512 --minutes 6     (one H200, from scratch)
    python -m examples.pocket2 --out /tmp/pocket2 --from /tmp/pocket2 --minutes 150    (goes on where that folder's training was)
    python -m examples.pocket2 --count                                        (FLOPs and tokens, nothing is trained)

On a GPU workers write conversations while the trainer reads; where it reads faster than they write, rows are read again, and the end says
how often. On a CPU the trainer writes them itself and reads each once. `--grow` begins with the layers of pocket, which can do the school's
tasks, and with its embeddings for the tokens that both have.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from examples import pocket2_card
from examples.pocket import fresh, optimiser_of, save
from examples.pocket2_corpus import FOLDER, SPECIALS, block, encoded, tokenizer_of
from examples.pocket2_rows import (
    LENGTH,
    OBSERVED,
    Stream,
    Written,
    backward_in_pieces,
    filled,
    loss_of,
    piece_loss,
    pieces,
    weights_of,
)
from posttrain.core.errors import UserError
from posttrain.models.decoder import Decoder, DecoderConfig
from posttrain.policies.load import load_decoder
from posttrain.weights.optimisers import muon

SHAPE = DecoderConfig(
    vocab_size=1024, hidden_size=128, intermediate_size=512, num_layers=6, num_heads=4, num_kv_heads=4, head_dim=32,
    rope_theta=10000.0, rms_eps=1e-5, tied=True, max_positions=1024,
)  # fmt: skip
STATE = "training.pt"  # in the folder of a model: all that its training needs to go on


def shape_of(args: argparse.Namespace) -> DecoderConfig:
    """pocket-2's shape, or another."""
    return replace(SHAPE, hidden_size=args.width, num_layers=args.layers, num_heads=args.width // 32,
                   num_kv_heads=args.width // 32, intermediate_size=args.inner)  # fmt: skip


def grown(shape: DecoderConfig, folder: Path) -> Decoder:
    """A model with the layers of the one in the folder; tokens that it does not have begin as the mean of its own for the same text."""
    old, known, new = load_decoder(str(folder), torch.float32), tokenizer_of(folder), tokenizer_of()
    assert isinstance(old, Decoder)
    model = fresh(shape)
    if (old.width, len(old.model.layers)) != (model.width, len(model.model.layers)):
        raise UserError(
            f"the model to grow has width {old.width} and {len(old.model.layers)} layers; "
            f"pass --width {old.width} --layers {len(old.model.layers)}"
        )
    state = {k: v for k, v in old.state_dict().items() if "embed" not in k and "lm_head" not in k}
    model.load_state_dict(state, strict=False)
    before, after = old.model.embed_tokens.weight.data, model.model.embed_tokens.weight.data
    vocabulary = known.get_vocab()
    after *= before.std() / after.std()
    for token, place in new.get_vocab().items():
        if token in vocabulary:
            after[place] = before[vocabulary[token]]
        elif token not in SPECIALS and not token.startswith("<"):
            after[place] = before[known.encode(new.decode([place]), add_special_tokens=False).ids].mean(0)
    after[SPECIALS.index("<|tool|>")] = before[vocabulary["<|user|>"]]
    return model


@dataclass
class Training:
    """Where a training is: the model, its optimiser, and what it has read."""

    args: argparse.Namespace
    model: Decoder
    optimiser: torch.optim.Optimizer
    about: dict[str, Any] = field(default_factory=lambda: {"steps": 0, "tokens": 0, "seconds": 0.0, "block": 0})

    @staticmethod
    def begin(args: argparse.Namespace, device: str) -> Training:
        torch.manual_seed(args.seed)
        shape = shape_of(args)
        model = (grown(shape, args.grow) if args.grow else fresh(shape)).to(device)
        made = (
            muon(model.named_parameters(), args.lr, weight_decay=0.05, betas=(0.9, 0.98))
            if args.muon
            else optimiser_of(model, args.lr)
        )
        out = Training(args, model, made)
        if args.resume:
            kept = torch.load(args.resume / STATE, map_location=device, weights_only=True)
            model.load_state_dict(kept["model"])
            made.load_state_dict(kept["optimiser"])
            out.about = kept["about"]
        return out

    def keep(self) -> None:
        """The model as it is, and what is needed to go on."""
        about = {"minutes": self.args.minutes, "batch": self.args.batch, "lr": self.args.lr, "seed": self.args.seed}
        about |= {"optimiser": "muon" if self.args.muon else "adamw", "observed": self.args.observed} | self.about
        about |= {"parameters": sum(p.numel() for p in self.model.parameters()), "torch": torch.__version__,
                  "grown_from": self.args.grow.name if self.args.grow else "",
                  "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "one core of a CPU"}  # fmt: skip
        save(self.model, self.args.out, about)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if self.args.out.resolve() != FOLDER.resolve():
                shutil.copy(FOLDER / name, self.args.out / name)
        state = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "about": self.about}
        torch.save(state, self.args.out / f"{STATE}.new")
        os.replace(self.args.out / f"{STATE}.new", self.args.out / STATE)


def held_out(model: Decoder, seed: int) -> float:
    """The loss of what the assistant says in conversations of another seed."""
    rows = torch.from_numpy(filled(encoded(tokenizer_of(), [said for said, _ in block(seed + 10**6, 0, 160)]))).long()
    made = [p.to(model.lm_head.weight.device) for p in pieces(rows)]
    with torch.no_grad():
        return sum(float(piece_loss(model, p, 0.0)) for p in made) / sum(float(weights_of(p, 0.0).sum()) for p in made)


def train(args: argparse.Namespace) -> Decoder:
    """The model after `minutes`, kept in its folder with what it read."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    going = Training.begin(args, device)
    model, optimiser, about = going.model, going.optimiser, going.about
    stream = Stream(args.workers, args.seed) if args.workers else Written(args.seed, about["block"])
    step_fn = torch.compile(loss_of) if device == "cuda" and not args.eager else loss_of
    began, before, budget = time.time(), about["seconds"], args.minutes * 60
    worked = about.setdefault("cpu_seconds", 0.0) - time.process_time()
    shown = kept = 0.0
    while about["seconds"] < budget and (not args.steps or about["steps"] < args.steps):
        done = max(about["seconds"] / budget, about["steps"] / args.steps if args.steps else 0.0)
        rate = min(1.0, (about["steps"] + 1) / args.warm) * (1 - done) ** 0.8  # warm up, then fall to zero
        for group in optimiser.param_groups:
            group["lr"] = args.lr * max(rate, 0.01)
        rows = stream.next(args.batch).to(device, non_blocking=True).long()
        optimiser.zero_grad(set_to_none=True)
        if device == "cuda":
            with torch.autocast(device, torch.bfloat16):
                loss = step_fn(model, rows)
            loss.backward()
        else:
            backward_in_pieces(model, rows, args.observed)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        about["steps"] += 1
        about["tokens"] += int((rows[:, 2] >= 0).sum())
        about["seconds"] = before + time.time() - began
        about["cpu_seconds"] = worked + time.process_time()  # less than the seconds where others share the machine
        about["block"] = getattr(stream, "number", 0)
        about["reread"] = round(stream.read / stream.written, 2)
        if about["steps"] == 1 or about["seconds"] - shown > args.show * 60:
            shown = about["seconds"]
            about["loss"] = round(held_out(model, args.seed), 4)
            print(" ".join(f"{k} {v:,.4g}" if k == "loss" else f"{k} {v:,.0f}" for k, v in about.items()), flush=True)
        if about["seconds"] - kept > args.keep * 60:
            kept = about["seconds"]
            going.keep()
    stream.close()
    about["loss"] = round(held_out(model, args.seed), 4)
    print(f"trained: {about}", flush=True)
    going.keep()
    return model


def count(shape: DecoderConfig, batch: int, minutes: float) -> str:
    """FLOPs and tokens before anything runs; what a machine should reach is an estimate, to be compared with what it does."""
    width, layers, read = shape.hidden_size, shape.num_layers, LENGTH - 1
    dense = 6 * shape.parameters
    attention = 12 * layers * read * width  # the whole square: the mask is dense
    apart = 12 * layers * 100 * width  # on a CPU: conversations of about 100 tokens, each alone
    per_step = (dense + attention) * batch * read
    lines = [f"{shape.parameters:,} parameters, {2 * shape.parameters / 1e6:.2f} MB in bf16"]
    lines.append(
        f"{(dense + attention) / 1e6:.1f} MFLOP per token ({dense / 1e6:.1f} dense, {attention / 1e6:.1f} attention)"
    )
    lines.append(f"{per_step / 1e12:.2f} TFLOP and {batch * read:,} tokens per step")
    for name, speed in (
        ("10% of 989 TFLOP/s", 0.10 * 989e12 / (dense + attention)),
        ("60 GFLOP/s, one core", 60e9 / (dense + apart)),
    ):
        lines.append(f"at {name}: {speed:,.0f} tokens/s, {speed * minutes * 60 / 1e6:,.0f}M tokens in {minutes:g} min")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    gpu = torch.cuda.is_available()
    parser.add_argument("--out", type=Path, help="the folder to write: weights, tokenizer, card, accuracy.json")
    parser.add_argument("--grow", type=Path, help="begin with the layers of the model in this folder")
    parser.add_argument("--from", type=Path, dest="resume", help="go on with the training of this folder")
    parser.add_argument("--minutes", type=float, default=100.0, help="of training; measuring takes a few more")
    parser.add_argument("--steps", type=int, default=0, help="end after so many, if that is earlier")
    parser.add_argument("--batch", type=int, default=512 if gpu else 21, help="rows of 384 tokens per step")
    parser.add_argument("--width", type=int, default=SHAPE.hidden_size, help="a multiple of 32")
    parser.add_argument("--layers", type=int, default=SHAPE.num_layers)
    parser.add_argument("--inner", type=int, default=SHAPE.intermediate_size, help="width of the feed-forward layers")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warm", type=int, default=200, help="steps until the whole rate")
    parser.add_argument("--muon", action="store_true", help="Muon for the matrices of the layers")
    parser.add_argument("--observed", type=float, default=OBSERVED, help="weight of what others say (on a CPU)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=max(1, (mp.cpu_count() or 2) - 2) if gpu else 0)
    parser.add_argument("--show", type=float, default=1.0, help="minutes between two lines")
    parser.add_argument("--keep", type=float, default=3.0, help="minutes between two checkpoints")
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
    if args.resume and not (args.resume / STATE).exists():
        raise UserError(f"{args.resume} has no {STATE}; --from takes a folder that this script has written")
    args.out.mkdir(parents=True, exist_ok=True)
    train(args)
    if args.problems:
        pocket2_card.write(args.out, args.problems)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from None
