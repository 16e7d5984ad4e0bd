"""Any causal language model of transformers, behind the interface of our decoder, at transformers' own speed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.core.errors import UserError
from posttrain.models.folder import check_memory, one_line
from posttrain.models.lora import merged_state


class HFCache:
    """transformers' cache with the attention mask and length of each row beside it."""

    def __init__(self, cache: Any, mask_BL: Tensor, lengths_B: Tensor) -> None:
        self.cache, self.mask_BL, self.lengths_B = cache, mask_BL, lengths_B

    def select(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask_BL, self.lengths_B = self.mask_BL[rows], self.lengths_B[rows]


class HFDecoder(nn.Module):
    """A wrapped transformers model: `hidden`, `logits`, `prefill`, `step`.

    It never drops units out: what was sampled would not be what is trained.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model.eval()
        self.config = model.config

    @staticmethod
    def load(folder: str, dtype: torch.dtype) -> HFDecoder:
        check_memory(Path(folder), 0, dtype)
        from transformers import AutoModelForCausalLM

        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, trust_remote_code=False, use_safetensors=True
            )
        except Exception as error:
            raise UserError(
                f"transformers cannot load {folder} as a causal language model: {type(error).__name__}: {one_line(error)}"
            ) from None
        kind = model.config.model_type
        print(
            f"note: {kind} runs through transformers (our own decoder does not know it), at its speed", file=sys.stderr
        )
        return HFDecoder(model).checked()

    def train(self, mode: bool = True) -> HFDecoder:
        super().train(mode)
        self.inner.eval()
        return self

    @property
    def width(self) -> int:
        return int(self.inner.get_output_embeddings().weight.shape[-1])

    @property
    def stop_ids(self) -> list[int]:
        ids = getattr(self.inner.generation_config, "eos_token_id", None)
        return list(ids) if isinstance(ids, (list, tuple)) else [] if ids is None else [ids]

    def hidden(
        self, tokens_BT: Tensor, positions_BT: Tensor | None = None, segments_BT: Tensor | None = None,
        seen: Mapping[str, Tensor] | None = None, embedded: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        _text_alone(seen)
        if segments_BT is not None:
            raise UserError("packed rows need our own decoder; this model runs with padded rows")
        read = {"input_ids": tokens_BT} if embedded is None else {"inputs_embeds": embedded}
        out = self.inner.base_model(**read, position_ids=positions_BT, use_cache=False)
        h_BTD: Tensor = out.last_hidden_state
        return h_BTD

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """What the model makes of tokens before its first layer, as it takes it back (`embedded`)."""
        x_BTD: Tensor = self.inner.get_input_embeddings()(tokens_BT)
        return x_BTD

    def logits(self, h: Tensor) -> Tensor:
        """The head, and what some families do after it: Cohere multiplies, Granite divides, Gemma caps by tanh."""
        c = self.config.get_text_config()
        logits: Tensor = self.inner.get_output_embeddings()(h) * (getattr(c, "logit_scale", None) or 1.0)
        logits = logits / (getattr(c, "logits_scaling", None) or 1.0)
        cap = getattr(c, "final_logit_softcapping", None)
        return cap * torch.tanh(logits / cap) if cap else logits

    @property
    def head_matrix(self) -> Tensor | None:
        """The matrix of which the logits are h W^T, a factor included; None where they are capped or shifted."""
        c, head = self.config.get_text_config(), self.inner.get_output_embeddings()
        if getattr(c, "final_logit_softcapping", None) or getattr(head, "bias", None) is not None:
            return None
        factor = (getattr(c, "logit_scale", None) or 1.0) / (getattr(c, "logits_scaling", None) or 1.0)
        weight: Tensor = head.weight
        return weight if factor == 1.0 else weight * factor

    def prefill(
        self, tokens_BT: Tensor, lengths_B: Tensor, slots: int, seen: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, HFCache]:
        """Prompts come right-padded and are read left-padded: distances in the cache are distances in the text."""
        _text_alone(seen)
        T = tokens_BT.shape[1]
        place_BT = torch.arange(T, device=tokens_BT.device) - (T - lengths_B.unsqueeze(-1))
        positions_BT = place_BT.clamp_min(0)
        mask_BT = (place_BT >= 0).long()
        out = self.inner.base_model(
            input_ids=tokens_BT.gather(1, positions_BT),
            attention_mask=mask_BT,
            position_ids=positions_BT,
            use_cache=True,
        )
        return out.last_hidden_state[:, -1], HFCache(out.past_key_values, mask_BT, lengths_B.clone())

    def step(self, tokens_B: Tensor, cache: HFCache) -> Tensor:
        cache.mask_BL = torch.cat((cache.mask_BL, torch.ones_like(cache.mask_BL[:, :1])), -1)
        out = self.inner.base_model(
            input_ids=tokens_B.unsqueeze(-1), attention_mask=cache.mask_BL, past_key_values=cache.cache,
            position_ids=cache.lengths_B.unsqueeze(-1), use_cache=True,
        )  # fmt: skip
        cache.lengths_B = cache.lengths_B + 1
        h_BTD: Tensor = out.last_hidden_state
        return h_BTD[:, 0]

    @torch.no_grad()
    def checked(self) -> HFDecoder:
        """Refuses a model that does not come apart this way: whole, and step by step, must give its own logits."""
        tokens_BT = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]], device=self.inner.device)
        lengths_B, swap = torch.tensor([3, 1], device=tokens_BT.device), torch.tensor([1, 0], device=tokens_BT.device)
        kind = self.config.model_type
        try:
            want_BTV = self.inner(input_ids=tokens_BT).logits
            whole_BTV = self.logits(self.hidden(tokens_BT))
            h_BD, cache = self.prefill(tokens_BT[:, :3], lengths_B, 4)
            cache.select(swap)
            next_BV = self.logits(self.step(torch.tensor([3, 4], device=tokens_BT.device), cache))
        except Exception as error:
            told = f"{kind} models cannot be sampled token by token here ({type(error).__name__}: {one_line(error)})"
            raise UserError(told) from None
        first_BV, second_BV = want_BTV[[0, 1], [2, 0]], want_BTV[[1, 0], [1, 3]]
        pairs = ((whole_BTV, want_BTV), (self.logits(h_BD), first_BV), (next_BV, second_BV))
        gap = max(float((got - want).abs().max()) for got, want in pairs)
        if not gap <= (1e-3 if want_BTV.dtype == torch.float32 else 0.1) * float(want_BTV.abs().max()):
            raise UserError(f"{kind} models do something to their logits that is not known here (difference {gap:.2g})")
        return self

    def save(self, folder: Path) -> None:
        self.inner.save_pretrained(folder, state_dict=merged_state(self.inner))


def _text_alone(seen: Mapping[str, Tensor] | None) -> None:
    if seen:
        raise UserError(f"this model reads text alone, but its prompts also carry {', '.join(sorted(seen))}")
