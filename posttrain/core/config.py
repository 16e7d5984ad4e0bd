"""The settings of a run: few, frozen, each default written once; an unknown key is an error with the nearest match."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.core.sampling import Sampling
from posttrain.core.typed import check_fields


@dataclass(frozen=True)
class Config:
    """The settings of a training run. The docstring under each is its help on the command line (`posttrain run --help`)."""

    method: str = "grpo"
    """method by name, with changed parameters if wanted: "grpo(epochs=2)\""""
    task: str = "arithmetic"
    """a school task, reasoning-gym/<name>, a preset from the data folder, or a file"""
    model: str = "pocket"
    """pocket, pocket-2, smollm2, a model folder, a Hugging Face hub id, or a run (runs/NAME, runs/NAME@best): a new run from its weights"""
    name: str = ""
    """name of the run's folder under runs/; if empty, made from the method and the task"""
    seed: int = 0
    """seed of every random draw; the same seed and settings give the same run, bit for bit"""
    steps: int = 40
    """training steps; each samples, scores and learns from one batch of prompts"""
    prompts: int = 16
    """prompts per step"""
    num_generations: int | None = None
    """answers per prompt; None: the method's own number"""
    level: int | None = None
    """difficulty of a school task, 1 (easy) to 6; None: the task's own default"""
    think: bool | None = None
    """ask for a written chain of thought before the answer; None: where the task itself does (never for a file of yours). A chat
    template that has the choice (Qwen3's enable_thinking) is told so too"""
    system: str = ""
    """a system message for every prompt, in place of its own"""
    prefill: str = ""
    """text that every answer begins with, in place of the rows' own (column prefill): the policy reads it and goes on from there"""
    question: str = ""
    """column of a data file that holds the question; if empty, found by its name (question, prompt, problem ...)"""
    answer: str = ""
    """column that holds the answer; if empty, found by its name (answer, solution, output ...)"""
    chosen: str = ""
    """column of the preferred answer, for pairs; if empty, found by its name"""
    rejected: str = ""
    """column of the other answer, for pairs; if empty, found by its name"""
    stream: bool = False
    """read rows from the disk as they are needed, for files larger than memory (JSONL, Parquet, hub ids)"""
    lr: float | None = None
    """peak learning rate; None: chosen from the number of parameters"""
    warmup: int = 5
    """updates over which the learning rate rises from 0 to its peak"""
    schedule: str = "linear"
    """learning rate over the run: "linear", "cosine" or "wsd" (stable, and a fall in the last fifth) to min_lr, or "constant\""""
    min_lr: float = 0.0
    """learning rate that a schedule falls to"""
    max_norm: float = 1.0
    """gradients are clipped to this global norm"""
    critic: str = ""
    """where a critic begins: "shared" (a head on the policy's own network), or a reward model (runs/NAME, a folder); if empty,
    as the method says, mostly a copy of the policy"""
    critic_lr: float | None = None
    """peak learning rate of the critic; None: the policy's, times the method's own factor"""
    critic_warmup: int | None = None
    """steps at the start in which the critic alone learns; None: the method's own number"""
    critic_max_norm: float | None = None
    """the critic's gradients are clipped to this norm; None: as the method says, mostly max_norm"""
    micro_tokens: int = 16384
    """padded tokens per forward pass; changes memory, never the gradient"""
    layout: str = "shared"
    """rows of a forward pass: "shared" (each prompt once for all its answers), "packed" or "padded"; changes speed, never
    the gradient"""
    device: str = ""
    """cuda, cuda:N or cpu; if empty, cuda where there is a GPU, else cpu"""
    threads: int = 0
    """threads of torch on a CPU; 0: measured at the first start and kept in the run's folder. Sums depend on it in their last bits"""
    dtype: str = ""
    """bfloat16 or float32; if empty, bfloat16 with float32 master weights on a GPU, else float32"""
    lora: int = 0
    """rank of LoRA adapters to train instead of all weights; 0: train all weights"""
    lora_targets: str = ""
    """layers that get adapters: names like "q_proj,v_proj", or "all-linear"; if empty, all projections of attention and MLP"""
    adapter: str = ""
    """folder of a PEFT adapter of the model: it is trained further, with its own rank and layers"""
    merge_adapter: bool = False
    """add the adapter to the weights first, and train those (or new adapters, with lora)"""
    bits: int = 0
    """4: keep the frozen weights in 4 bits beside the adapters (QLoRA); 0: do not quantise"""
    tools: str = ""
    """functions that the model may call before it answers: a Python file, calculator or python (the sandbox), a sum of them, with
    options if wanted: "mine.py(format='xml', max_turns=4)\""""
    reward: str = ""
    """a reward by name, mine.py:function, runs/NAME (a trained reward model), or a sum "numeric + 0.2*format"; if empty, the
    task's own grade"""
    reward_timeout: float = 10.0
    """seconds per call of a reward, after which the answer is masked and counted as failed"""
    user: str = ""
    """a model that plays the user in a task with that role (a name, a folder, a run); it is frozen, and only the policy's tokens are trained"""
    max_turns: int | None = None
    """turns of an episode before it is ended, of all who speak; None: as the environment says, mostly 64"""
    episode_seconds: float | None = None
    """seconds that the environment may take for an episode, all its replies together; None: as it says, mostly 600"""
    overlap: float | None = None
    """share of the episodes that may wait for tools or environments while others are sampled; beyond it sampling waits for those that
    have waited longest. 1: only when nothing is left to sample. None: as the environment says, mostly 0.5. The last bits of a run depend on it"""
    free_running: bool = False
    """let episodes go on as soon as their reply is there: faster where replies take very different times; such a run cannot be
    repeated to the bit"""
    sampler: str = "local"
    """who samples: "local" (this process), "process" (workers on this machine), "ray" (actors of a Ray cluster); changes speed, never
    the answers"""
    engine: str = ""
    """what samples there: vllm in the same process, "vllm(gpu_memory_utilization=0.5)", or the address of a vLLM server
    (http://host:8000); if empty, posttrain's own engine"""
    rollout_workers: int = 1
    """workers that sample, with --sampler process or ray; any number gives the same run"""
    reward_workers: int = 0
    """processes that compute rewards of single answers; 0: the training process does. Any number gives the same rewards"""
    shards: int = 0
    """pieces that the prompts of a step are cut into, each made by one worker or process in one call; 0: 8 where there are several, else
    1. The last bits of a run depend on it, never on how many workers or processes there are"""
    lag: int = 0
    """steps that sampling is ahead of training: step k is made by the weights after step k - lag, exactly"""
    max_staleness: int = 0
    """opportunistic sampling, in place of a lag: a step takes whatever shards are ready, of weights at most so many steps old. Such
    a run cannot be repeated to the bit; 0: off"""
    rollout_timeout: float = 1800.0
    """seconds that a worker may take for a shard before it is killed and replaced"""
    weights_over: str = "files"
    """how weights get to workers: "files" (in the run's folder; Ray's object store), "ipc" (from GPU memory to workers of this machine),
    "nccl" (from card to card) or "gloo" (over TCP, on CPUs); changes speed, never the answers"""
    ray_address: str = ""
    """address of a running Ray cluster (host:port, or auto), for --sampler ray; if empty, Ray is started here"""
    eval_every: int = 0
    """steps between evaluations on held-out problems; 0: only before and after training"""
    eval_problems: int = 200
    """held-out problems per evaluation"""
    save_every: int = 10
    """steps between checkpoints"""
    keep_checkpoints: int = 2
    """newest checkpoints that are kept; older ones are deleted"""
    keep_best: bool = True
    """keep the weights with the best held-out score too, where --eval-every measures it: NAME@best"""
    log_rollouts: int = -1
    """rollouts per step whose text and tokens are written to the run's database; -1: all"""
    context_parallel: int = 1
    """processes that share the tokens of each row, for rows that are too long for one card; it divides the number of processes. Changes
    memory and speed, never the gradient"""
    exact_sums: bool = False
    """add gradients without rounding: the same bits on any number of processes; each holds the whole model"""
    store_gb: float = 2.0
    """gigabytes of texts and tokens that the database keeps; beyond it those of the oldest steps go first, the best and the
    worst answer of each step last; figures always stay"""
    data: str = ""
    """folder of data sets, for presets; if empty, $POSTTRAIN_DATA"""
    sampling: Sampling = field(default_factory=Sampling)
    """how answers are sampled"""

    def __post_init__(self) -> None:
        check_fields(self)
        for key, (least, most) in _RANGES.items():
            value = getattr(self, key)
            if value is not None and not least <= value <= most:
                bound = f"at least {least}" if value < least else f"at most {most:,}"
                raise UserError(f"{key} is {value}; {_SUBJECT.get(key, 'it must be')} {bound}{_AFTER.get(key, '')}")
        for key, known in _CHOICES.items():
            if (value := getattr(self, key)) not in known:
                raise UserError(f"{key} is {value!r}; use {_one_of(known)}")
        for key, what in _POSITIVE:
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise UserError(f"{key} is {value}; {what} is more than 0")
        for key in ("lr", "critic_lr"):
            if (value := getattr(self, key)) is not None and value > 1e3:
                raise UserError(f"{key} is {value}; a learning rate is far below 1, such as 1e-5")
        if not 0 <= self.store_gb <= 1e9:
            raise UserError(f"store_gb is {self.store_gb}; it must be 0 (no texts are kept) or more gigabytes")
        if self.lora_targets and not self.lora:
            raise UserError("lora_targets says where adapters go; say how large they are with --lora 16")
        if not self.min_lr >= 0:
            raise UserError(f"min_lr is {self.min_lr}; it must be 0 or more, and less than the learning rate")
        if self.lr is not None and self.min_lr > self.lr:
            raise UserError(
                f"min_lr is {self.min_lr:g}, more than the learning rate {self.lr:g} that it is the least of"
            )
        if self.min_lr and self.schedule == "constant":
            raise UserError(
                "min_lr is where a schedule falls to, and a constant one does not fall; add --schedule cosine"
            )
        if self.bits and not self.lora and not self.adapter:
            raise UserError("4-bit weights cannot be trained; add --lora 16 to train adapters")
        if len(self.name.encode()) > _LONGEST_NAME:
            raise UserError(
                f"name has {len(self.name.encode())} bytes ({self.name[:40]}...); a folder's name has at most {_LONGEST_NAME}"
            )


_LONGEST_NAME = 200  # bytes: file systems allow 255, and a run's files add to it
_POSITIVE = (
    ("lr", "a learning rate"), ("critic_lr", "a learning rate"), ("max_norm", "a norm"), ("critic_max_norm", "a norm"),
    ("reward_timeout", "a time"), ("rollout_timeout", "a time"), ("episode_seconds", "a time"),
)  # fmt: skip
_RANGES: dict[str, tuple[int, int]] = {
    "steps": (0, 10**9),
    "prompts": (1, 10**6),
    "num_generations": (1, 10**6),
    "level": (0, 10**6),
    "warmup": (0, 10**9),
    "critic_warmup": (0, 10**9),
    "micro_tokens": (1, 10**12),
    "lora": (0, 2**16),
    "eval_every": (0, 10**9),
    "eval_problems": (0, 10**9),
    "save_every": (1, 10**9),
    "keep_checkpoints": (1, 10**9),
    "log_rollouts": (-1, 10**9),
    "threads": (0, 4096),
    "rollout_workers": (1, 10**5),
    "reward_workers": (0, 10**5),
    "shards": (0, 10**6),
    "context_parallel": (1, 4096),
    "max_turns": (1, 10**6),
    "overlap": (0, 1),
    "lag": (0, 1000),
    "max_staleness": (0, 1000),
}
_SUBJECT = {"num_generations": "a prompt needs", "lora": "a rank is"}
_AFTER = {"num_generations": " answer", "lora": ", and 0 trains the weights themselves"}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "bits": (4, 0),
    "schedule": ("linear", "cosine", "wsd", "constant"),
    "layout": ("shared", "packed", "padded"),
    "dtype": ("", "float32", "bfloat16"),
    "sampler": ("local", "process", "ray"),
    "weights_over": ("files", "ipc", "nccl", "gloo"),
}


# who samples and scores where: of a single method, trained by `posttrain run`
ELSEWHERE = (
    "sampler", "engine", "rollout_workers", "reward_workers", "shards", "lag", "max_staleness", "rollout_timeout",
    "weights_over", "ray_address",
)  # fmt: skip


def _one_of(known: tuple[Any, ...]) -> str:
    told = [repr(x) for x in known if x != ""]
    return f"{', '.join(told[:-1])} or {told[-1]}"


def to_dict(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config)


def from_dict(kind: type, values: dict[str, Any], where: str = "") -> Any:
    """A config from plain values; an unknown key is an error with the nearest one."""
    known = {f.name: f for f in dataclasses.fields(kind)}
    out: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            close = nearest(key, known)
            hint = f"did you mean {where}{close}?" if close else f"known: {', '.join(known)}"
            raise UserError(f"no setting named {where}{key}; {hint}")
        inner = Sampling if key == "sampling" else None
        out[key] = from_dict(inner, value, f"{key}.") if inner and isinstance(value, dict) else value
    return kind(**out)


def followed(config: Config) -> dict[str, Any]:
    """The settings that a part's parameter may follow (`follows=` of its card), as numbers of this run."""
    return {"max_tokens": config.sampling.max_tokens, "steps": config.steps}


def count_keys(kind: type = Config) -> int:
    """How many settings there are in all: a budget of the project (under 100)."""
    return sum(count_keys(Sampling) if f.name == "sampling" else 1 for f in dataclasses.fields(kind))


def differences(old: Any, new: Any, where: str = "") -> list[tuple[str, str, str]]:
    """(dotted key, old value, new value) for every setting that is not the same."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(dict.fromkeys([*old, *new]))
        missing = object()
        pairs = [(k, old.get(k, missing), new.get(k, missing)) for k in keys]
        return [
            d for k, a, b in pairs
            for d in differences("not set" if a is missing else a, "not set" if b is missing else b, f"{where}{k}.")
        ]  # fmt: skip
    return [] if old == new else [(where.rstrip("."), _shown(old), _shown(new))]


def _shown(value: Any) -> str:
    text = value if value == "not set" else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
