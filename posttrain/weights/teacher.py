"""A teacher: another model in the place of the reference, loaded here or asked over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy
from posttrain.core.registry import reference
from posttrain.core.turn import Turn
from posttrain.models.divergence import likeliest
from posttrain.policies.load import find_folder, load_model
from posttrain.policies.peft_folder import base_of, is_adapter
from posttrain.policies.vllm.server import Server
from posttrain.policies.vllm.told import STREAMS, ToldByServer
from posttrain.weights.reference import Frozen

RUN_READERS: list[Callable[..., Any]] = []  # posttrain.runs.saved puts itself here: this layer knows no runs
LIKELIEST = ("topk_id_BTK", "topk_logp_BTK")


@reference(title="Teacher", provides=LIKELIEST)
class teacher(Frozen):
    """Teacher: another model that never moves; every `ref_...` stream is its word, and no checkpoint holds it.

    model: a folder, a hub id, a run (runs/NAME), or the address of a vLLM server (http://host:8000). Its tokenizer must be the policy's.
    k: how many of its likeliest tokens it tells, to formulas that read those. A server tells these and sampled tokens, at temperature 1,
    but no whole distribution.
    """

    saved = False
    served: ToldByServer | None = None

    def __init__(self, model: str = "", k: int = 64) -> None:
        self.model, self.k = model, k

    @staticmethod
    def check(reads: Iterable[str], model: str = "", k: int = 64) -> None:
        """What can be said before anything is loaded: that a teacher is named, and that it can tell what is read."""
        if k < 1:
            raise UserError(f"k is {k}; a teacher tells 1 of its likeliest tokens at least")
        named(model)
        large = sorted(n for n in reads if n.startswith("ref_") and n.removeprefix("ref_") not in STREAMS)
        if is_address(model) and large:
            raise UserError(
                f"a server tells no whole distribution, and {', '.join(large)} are read; use its likeliest tokens (--loss topk-divergence), "
                "or name a folder"
            )

    @property
    def networks(self) -> tuple[Policy, ...]:
        return () if self.served is not None else (self.policy,)

    def start(self, policy: Policy) -> None:
        if is_address(self.model):
            self.served = ToldByServer(Server(self.model), policy, self.k)
        elif self._policy is None:
            self._policy = load_teacher(self.model, policy)

    @torch.no_grad()
    def streams(self, rows: Sequence[Turn], names: Sequence[str]) -> dict[str, Tensor]:
        if self.served is not None:
            return self.served.forward(rows, names)
        plain = [name for name in names if name not in LIKELIEST]
        out = super().streams(rows, plain) if plain else {}
        return out | (told(self.policy, rows, self.k) if len(plain) < len(names) else {})

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """It is read from where it lies."""


@torch.no_grad()
def told(policy: Policy, rows: Sequence[Turn], k: int) -> dict[str, Tensor]:
    """A policy's k likeliest tokens before each action, and their log-probabilities: topk_id_BTK, topk_logp_BTK."""
    made = policy.forward(rows, ("hidden_BTD", "head_VD", "temperature_B"))
    h_BTD = made["hidden_BTD"]
    B, T, _ = h_BTD.shape
    found = likeliest(h_BTD.flatten(0, 1), made["head_VD"], k, made["temperature_B"].repeat_interleave(T))
    return dict(zip(LIKELIEST, (x.view(B, T, -1) for x in found), strict=True))


def load_teacher(model: str, policy: Any) -> Any:
    """The model of that name, frozen, where the policy is and read as the policy is; a sentence where its tokens are others."""
    named(model)
    half = next(policy.parameters()).dtype in (torch.bfloat16, torch.float16) or policy.device.type == "cuda"
    device, dtype = str(policy.device), "bfloat16" if half else "float32"
    made = RUN_READERS[0](model, device, dtype) if RUN_READERS else None
    made = load_model(model, device, dtype) if made is None else made
    ours, theirs = policy.tokenizer.get_vocab(), made.tokenizer.get_vocab()
    if ours != theirs:
        odd = next((w for w in sorted(ours.keys() | theirs.keys()) if ours.get(w) != theirs.get(w)), "")
        raise UserError(
            f"the teacher {model} has another tokenizer than {policy.name or 'the policy'} ({odd!r:.30} is token {theirs.get(odd)} there and "
            f"{ours.get(odd)} here), so their tokens cannot be compared; use a teacher of the same family"
        )
    made.temperature, made.layout, made.thinking = policy.temperature, policy.layout, policy.thinking
    return made.eval().requires_grad_(False)


def is_address(model: str) -> bool:
    return model.startswith(("http://", "https://"))


def named(model: str) -> None:
    """A teacher that is named, and is there as far as that can be seen without loading it."""
    if not model:
        raise UserError(
            "a teacher is needed, and none was named: --reference \"teacher(model='FOLDER')\" with a folder, a hub id, runs/NAME or the "
            "address of a vLLM server (a plan: --plan.teacher FOLDER)"
        )
    if is_address(model):
        Server(model)
        return
    hub = model.count("/") == 1 and not model.startswith((".", "/"))  # is downloaded when its turn comes
    if not hub and not any(reads(model, check=True) for reads in RUN_READERS):
        find_folder(base_of(model) if is_adapter(model) else model)
