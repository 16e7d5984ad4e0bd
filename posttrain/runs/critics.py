"""Where a critic begins: a copy of the policy, a head on it, or a reward model, as the settings and the method say."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from posttrain.core.config import Config
from posttrain.core.critic import SHARED, CriticSettings, has_critic
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.models.decoder import Decoder, DecoderConfig
from posttrain.models.folder import read_json, read_weights
from posttrain.models.heads import Critic, ScalarHead
from posttrain.models.lora import adapters_of, add_lora
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import check_state, load_tokenizer
from posttrain.policies.window import vocabulary
from posttrain.runs.saved import load_reward_model


def critic_for(config: Config, method: Method, policy: Any) -> CriticSettings:
    """The settings of the critic; one that begins as a reward model is put beside the policy here."""
    how = method.critic.asked(config)
    named = how.start and how.start != SHARED
    if named and has_critic(method.reads) and getattr(policy, "critic", None) is None:
        policy.critic = from_reward_model(how.start, policy, config)
    return how


def from_reward_model(name: str, policy: Any, config: Config) -> Critic:
    """A critic whose network and head are those of a reward model; where the policy has adapters, so has it."""
    scored = read_reward_model(name, config)
    same_tokens(scored, policy, f"--critic {name}")
    scored.requires_grad_(True)
    if adapted := adapters_of(policy.model):
        rank = next(iter(adapted.values())).lora_a.shape[0]  # type: ignore[union-attr]
        add_lora(scored, rank, seed=config.seed, targets=config.lora_targets)
    head = copy.deepcopy(scored.score).requires_grad_(True)
    return Critic(scored.model, head).to(policy.device)


def same_tokens(scored: Any, policy: Any, what: str) -> None:
    """A model that reads the policy's answers as they were sampled must have its tokens."""
    if vocabulary(scored.model) != vocabulary(policy.model) or _ids(scored) != _ids(policy):
        raise UserError(
            f"{what}: its tokens are not those of the policy, so it cannot read the policy's answers; give a reward model "
            "that was trained from the same model"
        )


def read_reward_model(name: str, config: Config, what: str = "--critic") -> Any:
    """A policy with a score head: of a run, or of a Hugging Face folder for sequence classification."""
    folder = Path(name)
    if not folder.is_dir():
        raise UserError(f"{what} {name}: there is no such folder; a reward model is a run (runs/NAME) or a folder")
    if (folder / "run.sqlite").exists():
        return load_reward_model(folder, config.device)
    if not (folder / "config.json").exists():
        raise UserError(f"{what} {name}: neither a run nor a model folder; there is no config.json in it")
    return scored_folder(folder, config)


def scored_folder(folder: Path, config: Config) -> Any:
    """A sequence classifier with one label, through our own decoder; the head of the language model is not needed."""
    told = read_json(folder / "config.json")
    shape, state = DecoderConfig.of(told), read_weights(folder)
    score = state.pop("score.weight", None)
    if shape is None or score is None or score.shape[0] != 1:
        raise UserError(f"--critic {folder}: not a reward model (one label, score.weight) of a family that runs here")
    model = Decoder(replace(shape, tied=True))
    state = {k: v for k, v in state.items() if not k.endswith("inv_freq") and not k.startswith("lm_head.")}
    check_state(state, model, str(folder))
    model.load_state_dict(state, strict=False)
    device = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = config.dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    policy = LanguagePolicy(model.to(device, getattr(torch, dtype)), load_tokenizer(str(folder)), str(folder))
    policy.score = ScalarHead(policy.width).to(device)
    with torch.no_grad():
        policy.score.out.weight.copy_(score)
        policy.score.out.bias.fill_(float(told.get("score_bias") or 0.0))
    return policy


def _ids(policy: Any) -> list[int]:
    ids: list[int] = policy.tokenizer("A text of 12 words?", add_special_tokens=False)["input_ids"]
    return ids
