"""Adapters in the format of PEFT: adapter_config.json and adapter_model.safetensors, read and written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.core.config import Config
from posttrain.core.errors import UserError, nearest
from posttrain.models.four_bit import FourBit
from posttrain.models.lora import LoRALinear, adapt, adapters_of, add_lora, merge_adapters
from posttrain.policies.language import LanguagePolicy

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
# settings of PEFT that would change what an adapter computes, with the values that change nothing
_PLAIN: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None), "fan_in_fan_out": (False, None), "bias": ("none", None), "modules_to_save": (None, []),
    "lora_bias": (False, None), "alpha_pattern": (None, {}), "trainable_token_indices": (None, []), "use_qalora": (False, None),
    "target_parameters": (None, []), "megatron_config": (None,), "layer_replication": (None, []), "alora_invocation_tokens": (None,),
}  # fmt: skip


@dataclass(frozen=True)
class Adapter:
    """One adapter: A and B of each layer by path, and how its product is scaled."""

    folder: Path
    base: str  # the model it was trained for
    alpha: float
    root: bool  # rank-stabilised: alpha / sqrt(rank)
    layers: dict[str, tuple[Tensor, Tensor]]


def is_adapter(folder: str | Path) -> bool:
    """A folder with an adapter and no model of its own."""
    return (Path(folder) / CONFIG).is_file() and not (Path(folder) / "config.json").is_file()


def base_of(folder: str | Path) -> str:
    """The model that an adapter belongs to, as its config says; any other model is its own."""
    from posttrain.policies.load import read_json

    if not is_adapter(folder):
        return str(folder)
    base = read_json(Path(folder) / CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise UserError(f"{folder}/{CONFIG} names no base model; say which: --model BASE --adapter {folder}")
    beside = Path(folder) / base  # an adapter may lie beside its model
    return str(beside) if not Path(base).is_absolute() and (beside / "config.json").is_file() else base


def read_adapter(folder: str | Path) -> Adapter:
    """The adapter in a folder; a kind that is not plain LoRA is refused in a sentence. Nothing in it is run as code."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from posttrain.policies.load import read_json

    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise UserError(f"--adapter {folder}: there is no {CONFIG} in it; a PEFT adapter is a folder with one")
    told = read_json(folder / CONFIG)
    if told.get("peft_type") != "LORA":
        raise UserError(f"--adapter {folder}: it is a {told.get('peft_type')} adapter; LoRA ones can be used")
    for key, plain in _PLAIN.items():
        if told.get(key, plain[0]) not in plain:
            raise UserError(
                f"--adapter {folder}: {key} is {told[key]!r}, which is not supported; merge it with peft first"
            )
    if not (folder / WEIGHTS).is_file():
        raise UserError(
            f"--adapter {folder}: there is no {WEIGHTS}; pickled adapters are not read, save it with safetensors"
        )
    try:
        tensors = load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise UserError(f"{folder / WEIGHTS} is damaged or not a safetensors file: {error}") from None
    base, alpha = told.get("base_model_name_or_path"), told.get("lora_alpha", 8)
    if not isinstance(alpha, int | float):
        raise UserError(f"lora_alpha in {folder / CONFIG} is {alpha!r}; expected a number")
    return Adapter(folder, str(base or ""), float(alpha), bool(told.get("use_rslora")), layers_of(tensors, folder))


def layers_of(tensors: dict[str, Tensor], folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """path -> (A, B); every A has its B, and nothing else is there."""
    halves: dict[str, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        path, _, half = name.removeprefix(_PREFIX).removesuffix(".weight").removesuffix(".default").rpartition(".")
        if half not in ("lora_A", "lora_B") or x.dim() != 2:
            raise UserError(f"{folder / WEIGHTS} holds {name!r}, which is no matrix of a plain LoRA adapter")
        halves.setdefault(path, {})[half] = x
    alone = [path for path, pair in halves.items() if len(pair) < 2]
    if alone or not halves:
        raise UserError(
            f"{folder / WEIGHTS} lacks " + (f"one of the two matrices of {alone[0]}" if alone else "adapters")
        )
    return {path: (pair["lora_A"], pair["lora_B"]) for path, pair in halves.items()}


def attach(policy: LanguagePolicy, adapter: Adapter) -> LanguagePolicy:
    """The policy frozen, with the adapter beside its layers, to be trained further."""
    policy.requires_grad_(False)
    inner = "inner." if hasattr(policy.model, "inner") else ""
    known = {p.removeprefix(inner): m for p, m in policy.model.named_modules() if isinstance(m, nn.Linear | FourBit)}
    for path, (a, b) in adapter.layers.items():
        layer = known.get(path)
        if layer is None:
            close = nearest(path, known)
            hint = f"the nearest is {close}" if close else f"it was trained for {adapter.base or 'another model'}"
            raise UserError(f"--adapter {adapter.folder}: {policy.name} has no linear layer {path}; {hint}")
        if (b.shape[0], a.shape[1]) != (layer.out_features, layer.in_features) or b.shape[1] != len(a):
            raise UserError(
                f"--adapter {adapter.folder}: {path} is {tuple(b.shape)} by {tuple(a.shape)}, but that layer of {policy.name} "
                f"has {layer.out_features} rows and {layer.in_features} columns; it was trained for "
                f"{adapter.base or 'another model'}"
            )
        parent, _, name = (inner + path).rpartition(".")
        adapt(policy.model.get_submodule(parent), name, len(a), adapter.alpha, path)
        made = policy.model.get_submodule(inner + path)
        assert isinstance(made, LoRALinear | FourBit)
        if made.lora_a is None or made.lora_b is None:
            raise UserError(f"--adapter {adapter.folder}: {path} cannot carry an adapter")
        with torch.no_grad():
            made.lora_a.copy_(a)
            made.lora_b.copy_(b)
        made.scale = adapter.alpha / (len(a) ** 0.5 if adapter.root else len(a))
    return policy


def adapted(policy: LanguagePolicy, config: Config) -> LanguagePolicy:
    """The policy as the settings ask: with an adapter that exists, merged or beside the weights, or with new ones."""
    here = adapters_of(policy.model)  # where the model is itself the folder of an adapter
    if config.adapter and here:
        raise UserError(
            f"{config.model} is an adapter itself; merge it first: posttrain export {config.model} --to FOLDER"
        )
    if config.adapter:
        here = adapters_of(attach(policy, read_adapter(config.adapter)).model)
    if config.merge_adapter and not here:
        raise UserError("--merge-adapter merges an adapter; name its folder with --adapter FOLDER")
    if here and config.merge_adapter:
        merge_adapters(policy.model)
    elif here:
        ranks = {len(m.lora_a) for m in here.values() if m.lora_a is not None}
        if config.lora and ranks != {config.lora}:
            raise UserError(
                f"the adapter {config.adapter or config.model} has rank {', '.join(map(str, sorted(ranks)))}, and --lora is "
                f"{config.lora}; leave --lora away to train it further, or add --merge-adapter for new ones on top of it"
            )
        return policy
    return add_lora(policy, config.lora, seed=config.seed, targets=config.lora_targets) if config.lora else policy


def save_adapter(policy: LanguagePolicy, folder: Path, base: str) -> None:
    """A folder that `peft` loads onto the base model: the adapters alone, with the layers they belong to."""
    from safetensors.torch import save_file

    inner = "inner." if hasattr(policy.model, "inner") else ""
    layers = {path.removeprefix(inner): m for path, m in adapters_of(policy.model).items()}
    if not layers:
        raise UserError("this model has no adapters; train one with --lora 16, or export it whole with --format hf")
    first = next(iter(layers.values()))
    assert first.lora_a is not None
    rank = len(first.lora_a)
    state: dict[str, Tensor] = {}
    for path, m in layers.items():
        assert m.lora_a is not None and m.lora_b is not None
        if len(m.lora_a) != rank or m.scale != first.scale:
            raise UserError(
                "its adapters have several ranks or scales, which one PEFT folder cannot say; export it merged"
            )
        for half, x in (("lora_A", m.lora_a), ("lora_B", m.lora_b)):
            state[f"{_PREFIX}{path}.{half}.weight"] = x.detach().cpu().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    told = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": rank,
        "lora_alpha": int(alpha) if (alpha := round(first.scale * rank, 6)).is_integer() else alpha, "target_modules": named(policy, set(layers), inner), "lora_dropout": 0.0,
        "bias": "none", "fan_in_fan_out": False, "use_rslora": False, "inference_mode": True,
    }  # fmt: skip
    (folder / CONFIG).write_text(json.dumps(told, indent=2) + "\n")


def named(policy: LanguagePolicy, paths: set[str], inner: str) -> list[str]:
    """The layers by their last names, where all layers of those names have an adapter; else by their whole paths."""
    names = {path.rpartition(".")[2] for path in paths}
    linear = {p.removeprefix(inner) for p, m in policy.model.named_modules() if isinstance(m, nn.Linear | FourBit)}
    alike = {p for p in linear if p.rpartition(".")[2] in names}
    return sorted(names if alike == paths else paths)
