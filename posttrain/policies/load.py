"""`load_model("pocket")`, `("pocket-2")`, `("smollm2")`, or any Hugging Face causal language model by folder or hub id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from posttrain.core.errors import UserError, nearest
from posttrain.core.hub_access import bounded, hint
from posttrain.models.decoder import Decoder, DecoderConfig
from posttrain.models.folder import check_memory, one_line
from posttrain.models.folder import read_json as read_json
from posttrain.models.folder import read_weights as read_weights
from posttrain.models.folder import weight_files as weight_files
from posttrain.models.four_bit import quantize
from posttrain.models.lora import TARGETS, merged_state
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.template import try_template

POCKET = Path(__file__).parent.parent / "models" / "pocket"
EMBEDDED = {"pocket": POCKET, "pocket-2": POCKET.with_name("pocket2")}  # come with the package
NAMED = (*EMBEDDED, "smollm2")


def load_model(spec: str = "pocket", device: str | None = None, dtype: str = "", bits: int = 0) -> LanguagePolicy:
    """A policy from a name, a folder or a hub id; for missing weights one sentence says what to install or pass.

    bits=4 quantizes every projection (models/four_bit.py) before the model goes to the device. The folder of a PEFT adapter is
    the model that it belongs to, with the adapter beside its weights.
    """
    from posttrain.policies.peft_folder import attach, base_of, is_adapter, read_adapter

    adapter = read_adapter(spec) if is_adapter(spec) else None
    folder = find_folder(base_of(spec))
    device = usable(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    if dtype not in ("float32", "bfloat16", "float16", "float64"):
        raise UserError(f"dtype is {dtype!r}; use float32 or bfloat16")
    model = load_decoder(folder, getattr(torch, dtype))
    if bits and not quantize(model, TARGETS, device):
        raise UserError(
            f"{spec} has no layer named {', '.join(TARGETS[:3])}... to pack into {bits} bits; leave --bits away"
        )
    tokenizer = load_tokenizer(folder)
    policy = LanguagePolicy(model.to(device), tokenizer, spec, stop_ids(Path(folder)))
    return attach(policy, adapter) if adapter else policy


def usable(device: str) -> str:
    """The device, if torch can use it."""
    try:
        torch.zeros(1, device=device).item()  # one of "meta" holds nothing
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:120]
        raise UserError(f"torch cannot use the device {device!r} ({reason}); use --device cpu") from None
    return device


def find_folder(spec: str) -> str:
    """The folder of a named model, the path itself, or the downloaded snapshot of a hub id."""
    if not spec.strip():
        raise UserError(
            "the name of the model is empty; pass pocket, pocket-2, smollm2, a model folder, a run, or a hub id like org/name"
        )
    if spec in EMBEDDED:
        return str(embedded(spec))
    if spec == "smollm2":
        from posttrain.models.smollm2 import smollm2_folder

        return str(smollm2_folder())
    if Path(spec).is_dir():
        if not (Path(spec) / "config.json").exists():
            raise UserError(
                f"{spec} has no config.json; a model folder is what save_pretrained or posttrain export writes"
            )
        return spec
    if spec.count("/") == 1 and not spec.startswith((".", "/")) and not Path(spec).exists():
        return _download(spec)
    close = nearest(spec, NAMED)
    hint = (
        f"did you mean {close!r}?"
        if close
        else "pass pocket, pocket-2, smollm2, a model folder, or a hub id like org/name"
    )
    raise UserError(f"no model named {spec!r}; {hint}")


def embedded(name: str) -> Path:
    """The folder of a model that comes with the package; one whose weights are not there yet says how they are made."""
    folder = EMBEDDED[name]
    if not (folder / "model.safetensors").exists():
        raise UserError(
            f"{name} has no weights here yet; train them from a checkout with `python -m examples.{folder.name} --out FOLDER` (about "
            "8 minutes on an H200) and pass --model FOLDER, or use --model pocket"
        )
    return folder


def _download(spec: str) -> str:
    from huggingface_hub import snapshot_download

    bounded()
    try:
        kinds = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
        return snapshot_download(spec, allow_patterns=kinds, ignore_patterns=["consolidated*", "original/*"])
    except Exception as error:  # all network and hub failures mean the same to the user
        told = f"cannot get {spec!r} from the hub ({type(error).__name__})"
        raise UserError(f"{told}; {hint(error)}, or pass a local folder, or use --model pocket") from None


def load_decoder(folder: str, dtype: torch.dtype) -> torch.nn.Module:
    """Our decoder where it supports the architecture, the wrapped transformers model where it does not."""
    shape = DecoderConfig.of(read_json(Path(folder) / "config.json"))
    if shape is None:
        from posttrain.models.hf import HFDecoder

        return HFDecoder.load(folder, dtype)
    check_memory(Path(folder), shape.parameters, dtype)
    with torch.device("meta"):
        model = Decoder(shape)
    state = {k: v for k, v in read_weights(Path(folder)).items() if not k.endswith("rotary_emb.inv_freq")}
    if shape.tied:
        state.pop("lm_head.weight", None)
        model.lm_head.weight = model.model.embed_tokens.weight
    check_state(state, model, folder)  # before anything is allocated
    model = model.to_empty(device="cpu")
    if shape.tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.load_state_dict(state, strict=False)
    return model.to(dtype)


def check_state(state: dict[str, torch.Tensor], model: Decoder, folder: str) -> None:
    """Raises unless every parameter is present, none is left over, and all shapes agree."""
    want = {k: tuple(p.shape) for k, p in model.named_parameters()}  # a tied head is named once, as the embedding
    missing, unexpected = sorted(want.keys() - state.keys()), sorted(state.keys() - want.keys())
    if missing or unexpected:
        raise UserError(f"{folder} does not fit its config.json: missing {missing[:3]}, unexpected {unexpected[:3]}")
    for name, x in state.items():
        if tuple(x.shape) != want[name]:
            raise UserError(f"{name} of {folder} has shape {tuple(x.shape)}, but its config.json says {want[name]}")


def stop_ids(folder: Path) -> list[int]:
    """Stop tokens besides the tokenizer's own: eos_token_id of generation_config.json, or of config.json where that file is
    missing (as in transformers)."""
    file = folder / "generation_config.json"
    file = file if file.exists() else folder / "config.json"
    given = read_json(file).get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise UserError(f"eos_token_id in {file} is {given!r}; expected a token id, or a list of them")
    return ids


def load_tokenizer(folder: str) -> Any:
    """The tokenizer of a folder; it must have an end-of-text token."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer("Hello", add_special_tokens=False)  # settings of the wrong type are only read here
    except (KeyboardInterrupt, SystemExit):
        raise
    except (
        BaseException
    ) as error:  # transformers raises a dozen types, and the library below it panics, which is no Exception
        raise UserError(f"transformers cannot load a tokenizer from {folder}: {one_line(error)}") from None
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {folder} has no end-of-text token, so answers could not end")
    # long texts are counted and left out here (policies/window.py); transformers would warn of each
    getattr(tokenizer, "deprecation_warnings", {})["sequence-length-is-longer-than-the-specified-maximum"] = True
    if getattr(tokenizer, "chat_template", None):
        try_template(tokenizer, folder)
    return tokenizer


def named_weights(policy: LanguagePolicy) -> dict[str, torch.Tensor]:
    """Every tensor by its name in a Hugging Face folder, adapters added to their matrices."""
    model: Any = policy.model
    if not isinstance(model, Decoder):
        return merged_state(model.inner)
    state = merged_state(model)
    if model.config.tied:
        state.pop("lm_head.weight")
    return state


def save_weights(policy: LanguagePolicy, folder: Path) -> None:
    """The weights alone, as a Hugging Face folder has them."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    model = policy.model
    if not isinstance(model, Decoder):
        model.save(folder)  # type: ignore[operator]
        return
    state = {k: v.detach().cpu().contiguous() for k, v in named_weights(policy).items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def save_model(policy: LanguagePolicy, folder: Path) -> None:
    """A Hugging Face folder that `transformers` loads with equal logits."""
    save_weights(policy, folder)
    model = policy.model
    if isinstance(model, Decoder):
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        t = policy.tokenizer
        ids = {"eos_token_id": t.eos_token_id, "pad_token_id": t.pad_token_id, "bos_token_id": t.bos_token_id}
        (folder / "config.json").write_text(json.dumps(model.config.to_hf() | ids | {"dtype": dtype}, indent=2) + "\n")
        stops = {"eos_token_id": policy.stop_ids} | {k: ids[k] for k in ("pad_token_id", "bos_token_id")}
        (folder / "generation_config.json").write_text(json.dumps(stops, indent=2) + "\n")
    policy.tokenizer.save_pretrained(folder)
