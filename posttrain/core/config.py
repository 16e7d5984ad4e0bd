"""The settings of a run: frozen, few, each default written once, unknown keys refused with the nearest match."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.core.sampling import Sampling


@dataclass(frozen=True)
class Config:
    """What a training run is made of besides its method."""

    method: str = "grpo"  # name, with changes if wanted: "grpo(epochs=2)"
    task: str = "arithmetic"  # a school task, reasoning-gym/<name>, a preset of the data folder, or a file
    model: str = "pocket"  # pocket, smollm2, a folder, or a hub id
    name: str = ""  # the run's folder under runs/; made from method and task when empty
    seed: int = 0
    steps: int = 40
    prompts: int = 16  # prompts a step
    num_generations: int | None = None  # answers per prompt; None: the method's own
    level: int | None = None  # difficulty of a school task; None: its own default
    think: bool = True  # ask for a written chain of thought
    lr: float | None = None  # None: a value that suits the size of the model
    warmup: int = 5  # updates over which the learning rate rises
    schedule: str = "linear"  # the learning rate falls to 0 over the run; or "constant"
    max_norm: float = 1.0  # gradients are clipped to this norm
    micro_tokens: int = 16384  # padded tokens of one forward pass; changes memory, never the gradient
    layout: str = "shared"  # shared prompts, packed or padded rows; changes speed, never the gradient
    device: str = ""  # cuda where there is one, else cpu
    dtype: str = ""  # bfloat16 (with float32 masters) on a GPU, else float32
    lora: int = 0  # rank of adapters to train instead of the weights; 0: the weights
    bits: int = 0  # 4: the weights packed into four bits beside the adapters (QLoRA); 0: as they are
    reward: str = (
        ""  # a name, mine.py:function, runs/NAME, or a sum "numeric + 0.2*format"; empty: the task's own grade
    )
    reward_timeout: float = 10.0
    eval_every: int = 0  # steps between evaluations; 0: before and after only
    eval_problems: int = 200
    save_every: int = 10
    keep_checkpoints: int = 2
    log_rollouts: int = 8  # rollouts a step written to the run's database; -1 all
    data: str = ""  # folder of data sets, for presets
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        for key in ("steps", "prompts", "micro_tokens", "save_every", "eval_problems", "keep_checkpoints"):
            if getattr(self, key) < (0 if key in ("steps", "eval_problems") else 1):
                raise UserError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if self.num_generations is not None and self.num_generations < 1:
            raise UserError(f"num_generations is {self.num_generations}; a prompt needs at least 1 answer")
        if self.lora < 0:
            raise UserError(f"lora is {self.lora}; a rank is at least 1, and 0 trains the weights themselves")
        if self.bits not in (0, 4):
            raise UserError(f"bits is {self.bits}; use 4, or 0 for the weights as they are")
        if self.bits and not self.lora:
            raise UserError("weights of four bits do not learn; say what does with --lora 16")
        if self.schedule not in ("constant", "linear"):
            raise UserError(f"schedule is {self.schedule!r}; use 'constant' or 'linear'")
        if self.layout not in ("shared", "packed", "padded"):
            raise UserError(f"layout is {self.layout!r}; use 'shared', 'packed' or 'padded'")
        if self.lr is not None and not self.lr > 0:
            raise UserError(f"lr is {self.lr}; a learning rate is more than 0")


def to_dict(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config)


def from_dict(kind: type, values: dict[str, Any], where: str = "") -> Any:
    """A config from plain values; a key that is not there fails at once with the nearest one."""
    known = {f.name: f for f in dataclasses.fields(kind)}
    out: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            close = nearest(key, known)
            hint = f"did you mean {where}{close}?" if close else f"known: {', '.join(known)}"
            raise UserError(f"no setting named {where}{key}; {hint}")
        inner = Sampling if key == "sampling" else None
        out[key] = from_dict(inner, value, f"{key}.") if inner and isinstance(value, dict) else value
    try:
        return kind(**out)
    except TypeError as error:
        raise UserError(f"a setting has the wrong type: {error}") from None


def count_keys(kind: type = Config) -> int:
    """How many settings there are in all: a budget of the project (under 100)."""
    return sum(count_keys(Sampling) if f.name == "sampling" else 1 for f in dataclasses.fields(kind))
