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
from posttrain.rewards.runtime.score import say_once
from posttrain.runs.run import Run
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


def read_reward_model(name: str, config: Config, what: str = "--critic", steps: bool = False) -> Any:
    """A policy with a score head: of a run, or of a Hugging Face folder for sequence classification. steps: its scores are those of
    steps, so a classifier of tokens with two labels is one too, and a run that compared whole answers is none."""
    folder = Path(name)
    if not folder.is_dir():
        raise UserError(f"{what} {name}: there is no such folder; a reward model is a run (runs/NAME) or a folder")
    if (folder / "run.sqlite").exists():
        if steps and (learned := compared(folder)):
            raise UserError(
                f"{what} {name}: this run trained {learned}, whose scores are of whole answers and not of steps; name a run of "
                "process-reward-model"
            )
        return load_reward_model(folder, config.device)
    if not (folder / "config.json").exists():
        raise UserError(f"{what} {name}: neither a run nor a model folder; there is no config.json in it")
    return scored_folder(folder, config, what, steps)


def compared(folder: Path) -> str:
    """What a run trained by comparing whole answers; "" where it learned what steps are worth."""
    with Run.open(folder) as run:
        loss = (run.config.get("parts") or {}).get("loss") or [{}]
        named = str(run.config.get("plan") or run.config.get("method") or "a reward model")
    return "" if loss[0].get("part") == "step-value" or named == "pure" else named


def head_of(state: dict[str, Any], told: dict[str, Any], steps: bool) -> tuple[Any, float] | None:
    """Weight and bias of the score. Of one label it is the score; of two labels of tokens, wrong and right, the log-odds s = logit_1 -
    logit_0, so that sigma(s) is the softmax's chance of right."""
    score, bias = state.pop("score.weight", None), state.pop("score.bias", None)
    tokens = any("TokenClassification" in name for name in told.get("architectures") or ())
    if score is not None and score.shape[0] == 2 and steps and tokens:
        return score[1:] - score[:1], 0.0 if bias is None else float(bias[1] - bias[0])
    if score is None or score.shape[0] != 1 or (tokens and not steps):
        return None
    return score, float(told.get("score_bias") or 0.0) if bias is None else float(bias[0])


def scored_folder(folder: Path, config: Config, what: str = "--critic", steps: bool = False) -> Any:
    """A classifier through our own decoder: of sequences with one label, or where steps are scored of tokens with two; the head of the
    language model is not needed."""
    told = read_json(folder / "config.json")
    shape, state = DecoderConfig.of(told), read_weights(folder)
    head = head_of(state, told, steps)
    if shape is None or head is None:
        labels = "one label, or two of tokens" if steps else "one label"
        raise UserError(f"{what} {folder}: not a reward model ({labels}, score.weight) of a family that runs here")
    score, bias = head
    if steps and not any("TokenClassification" in name for name in told.get("architectures") or ()):
        say_once(
            f"{what} {folder}: its one label is read as the log-odds that the answer so far will end right; a model that learned by comparing "
            "whole answers says something else, and its folder does not tell"
        )
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
        policy.score.out.bias.fill_(bias)
    return policy


def _ids(policy: Any) -> list[int]:
    ids: list[int] = policy.tokenizer("A text of 12 words?", add_special_tokens=False)["input_ids"]
    return ids
