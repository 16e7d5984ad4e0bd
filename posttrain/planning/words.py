"""The command that starts a planned run. The options for many processes are listed here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable

from posttrain.planning.hardware import Cluster
from posttrain.planning.layouts import Plan
from posttrain.planning.work import Work

# options of `posttrain run` for more than one process
OPTIONS = (
    "--gpus", "--sampler", "--ray-address", "--rollout-workers", "--shards", "--rollout-timeout", "--reward-workers", "--lag", "--max-staleness",
    "--context-parallel",
)  # fmt: skip
TIMEOUT = 1800  # seconds that a worker has for a shard unless told otherwise
PORT = 29500


def not_yet(command: str, known: Iterable[str]) -> list[str]:
    """Options of OPTIONS in a command that the parser does not know."""
    have = set(known)
    return [word for word in command.split() if word in OPTIONS and word not in have]


def launch(trainers: int, cluster: Cluster, split: bool) -> str:
    """torchrun over nodes, or `--gpus` on one."""
    if trainers <= cluster.per_node and (split or cluster.nodes == 1):
        return "posttrain"
    nodes = -(-trainers // cluster.per_node)
    meet = f"--rdzv-backend c10d --rdzv-endpoint $HEAD_NODE:{PORT}"
    return f"torchrun --nnodes {nodes} --nproc-per-node {-(-trainers // nodes)} {meet} -m posttrain"


def patience(plan: Plan) -> list[str]:
    """More time for a shard, where the longest one takes half of what it has."""
    longest = max((max(step) for step in plan.stages.make), default=0.0) if plan.stages else 0.0
    return ["--rollout-timeout", str(round(4 * longest))] if longest > TIMEOUT / 2 else []


def command(plan: Plan, work: Work, cluster: Cluster, model: str, method: str = "grpo") -> str:
    """What to type for a plan, with a task to fill in."""
    lay = plan.layout
    start = launch(lay.trainers, cluster, lay.kind == "split")
    words = [start, "run", method, "--task", "TASK", "--model", model]
    words += [
        "--prompts",
        str(work.prompts),
        "--num-generations",
        str(work.n),
        "--sampling.max-tokens",
        str(work.lengths.most),
    ]
    words += ["--micro-tokens", str(work.micro_tokens)]
    words += ["--lora", str(work.lora)] if work.lora else []
    words += ["--critic", "shared"] if work.critic == "shared" else []
    words += ["--gpus", str(lay.trainers)] if start == "posttrain" and lay.trainers > 1 else []
    words += ["--context-parallel", str(work.divided)] if work.divided > 1 else []
    if lay.kind == "split":
        words += ["--sampler", "ray", "--ray-address", "auto"] if cluster.nodes > 1 else ["--sampler", "process"]
        words += ["--rollout-workers", str(lay.workers), "--shards", str(lay.shards)]
        words += patience(plan)
    words += ["--reward-workers", str(lay.reward_workers)] if lay.reward_workers else []
    if lay.staleness is not None:
        words += ["--max-staleness", str(lay.staleness)]
    words += ["--lag", str(lay.lag)] if lay.lag else []
    return " ".join(words)
