"""The side of benchmarks/preference_speed.py that is TRL's: DPOTrainer with a precomputed reference, SFTTrainer with packing.

Weights are float32 under bf16 autocast, which is how TRL has float32 masters; nothing is recomputed in backward, as here; the optimiser is
transformers' default (fused AdamW). Attention is what transformers gives on such a machine (sdpa; the collator's lengths become a
mask), or "flash": torch's own varlen kernel in its place, the one that is used here, as TRL would have it with flash-attn installed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.preference_speed import LENGTH, PROMPT, Work, answering, rows_of, timed

TOKENIZER = Path(__file__).parent.parent / "posttrain" / "models" / "pocket"
PACK = 8 * LENGTH  # tokens of a packed row


def model_of(work: Work) -> Any:
    """The shape of SmolLM2-135M with random weights of the same size as the other side's."""
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

    cuda = torch.cuda.is_available()
    sizes = (512, 64, 128, 2, 4, 2) if work.tiny else (49152, 576, 1536, 30, 9, 3)
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
    shape: dict[str, Any] = dict(zip(names, sizes, strict=True))
    AttentionInterface.register("torch_varlen", varlen)
    flash = (
        work.attention == "flash" and work.kind == "sft"
    )  # rows of equal length need no mask: sdpa is the flash kernel
    shape |= {
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
        "rope_theta": 1e5,
        "bos_token_id": None,
        "eos_token_id": 0,
    }
    shape["attn_implementation"] = "torch_varlen" if flash else "sdpa"
    config = LlamaConfig(**shape)
    torch.manual_seed(0)
    kind = torch.bfloat16 if work.dtype == "pure" and cuda else torch.float32
    return LlamaForCausalLM._from_config(config, dtype=kind).to("cuda" if cuda else "cpu")


def varlen(
    module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float | None = None, **kwargs: Any
) -> tuple[Any, None]:
    """Causal attention within the sequences that the collator has told (1, H, N, D)."""
    q, k, v = [x[0].transpose(0, 1) for x in (q, k, v)]
    cu = kwargs["cu_seq_lens_q"].to(q.device)
    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        from posttrain.models.packed import _varlen_options

        longest = int(kwargs["max_length_q"])
        made: Any = varlen_attn(
            q.contiguous(), k.contiguous(), v.contiguous(), cu, cu, longest, longest, **_varlen_options()
        )
        return made[None], None
    out = []
    for a, b in zip(cu.tolist(), cu.tolist()[1:], strict=False):
        x, y, z = (part[a:b].transpose(0, 1)[None] for part in (q, k, v))
        out.append(F.scaled_dot_product_attention(x, y, z, is_causal=True, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(out)[None], None


def data_of(work: Work, file: Path) -> Any:
    """The same rows, each prompt as the other side's template writes it."""
    import json

    import pyarrow
    from datasets import Dataset
    from datasets.table import InMemoryTable

    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row["prompt"] = f"<|user|>{row['prompt']}<|end|><|assistant|>"
        if work.kind == "sft":
            row["completion"] += "<|end|>"
    table = pyarrow.Table.from_pylist(rows[: work.rows * (work.steps + 1)])
    return Dataset(
        InMemoryTable(table), fingerprint=f"{work.kind}-{work.rows}"
    )  # pyarrow 26's tables cannot be hashed by datasets 5.2


def measure(work: Work) -> dict[str, Any]:
    """Seconds of each step of the trainer."""
    import transformers
    import trl
    from transformers import TrainerCallback

    from posttrain.policies.load import load_tokenizer

    cuda, ticks = torch.cuda.is_available(), list[float]()

    class Tick(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if cuda:
                torch.cuda.reset_peak_memory_stats()

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if cuda:
                torch.cuda.synchronize()
            ticks.append(time.perf_counter())

    folder = Path(tempfile.mkdtemp())
    common: dict[str, Any] = dict(
        output_dir=str(folder), max_steps=work.steps, bf16=cuda, use_cpu=not cuda, learning_rate=1e-6, gradient_checkpointing=False,
        report_to=[], save_strategy="no", disable_tqdm=True, max_grad_norm=1.0, warmup_steps=5,
    )  # fmt: skip
    tokenizer = load_tokenizer(str(TOKENIZER))
    given = {
        "model": model_of(work),
        "processing_class": tokenizer,
        "train_dataset": data_of(work, rows_of(work, folder)),
        "callbacks": [Tick()],
    }
    try:
        if work.kind == "dpo":
            config = trl.DPOConfig(
                **common, per_device_train_batch_size=work.rows, precompute_ref_log_probs=True, beta=0.1
            )
            trainer = trl.DPOTrainer(args=config, **given)
            one = trainer.train_dataset[0]
            sizes = (len(one["prompt_ids"]), len(one["prompt_ids"]) + len(one["chosen_ids"]))
        else:
            config = trl.SFTConfig(
                **common, per_device_train_batch_size=work.rows * LENGTH // PACK, packing=True, max_length=PACK
            )
            trainer = trl.SFTTrainer(args=config, **given)
            one = trainer.train_dataset[0]
            sizes = (sum(x == -100 for x in one["labels"]) * LENGTH // PACK, len(one["input_ids"]) * LENGTH // PACK)
        if sizes != (PROMPT, LENGTH):
            raise AssertionError(f"rows of {sizes} tokens (prompt, whole), expected {(PROMPT, LENGTH)}")
        trainer.train()
        if cuda:
            torch.cuda.synchronize()
        ticks.append(time.perf_counter())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    found = {"seconds": timed(ticks), "peak_gib": peak, "versions": f"torch {torch.__version__}, transformers {transformers.__version__}, TRL {trl.__version__}",
             "hardware": torch.cuda.get_device_name() if cuda else "CPU", "attention": given["model"].config._attn_implementation,
             "optimiser": str(config.optim), "loss": [x["loss"] for x in trainer.state.log_history if "loss" in x]}  # fmt: skip
    del trainer, given
    if cuda:
        torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    answering(measure)
