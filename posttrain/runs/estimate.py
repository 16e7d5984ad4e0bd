"""What a run will need and how fast it should be, from the shape of the model and the machine, before anything is loaded.

Memory is counted; time is two lower bounds (bytes that must be read, arithmetic that must be done) over the share of them that is
reached, plus a cost per operation launched. The shares were fitted to the measurements in benchmarks/results.
"""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.inference.engine import SHARE
from posttrain.inference.pages import PAGE
from posttrain.models.likelihood import CHUNK, CHUNK_GPU
from posttrain.models.shape import DecoderConfig

MAX_SLOTS_GPU, MAX_SLOTS_CPU = 1024, 512  # answers generated at a time
NF4_BITS = 4.5  # per weight: four, and a float32 scale per block of 64


@dataclass(frozen=True)
class Machine:
    """What a device can do."""

    flops: float  # per second, in matrix products
    bytes_s: float  # memory traffic per second
    free: float  # bytes of memory that are free
    gpu: bool = False
    start_decode: float = 3e-6  # seconds to launch one operation of a decode step
    start_train: float = 1e-5  # seconds to launch one operation of training


@dataclass(frozen=True)
class Work:
    """One step of a run."""

    prompts: int = 16  # per step
    n: int = 8  # answers per prompt
    max_tokens: int = 64  # tokens per answer: every answer is taken to be this long
    prompt_tokens: int = 128  # tokens per prompt
    micro_tokens: int = 16384  # answer tokens per forward pass in training
    size: int = 4  # bytes per weight
    lora: int = 0  # rank of the adapters; 0: the weights themselves are trained
    reference: bool = True  # a reference policy is kept and evaluated
    critic: str = ""  # a value network is trained too: "own", of the policy's size, or "shared", a head on the policy's
    updates: int = 1  # passes over the answers
    bits: int = 0  # 4: the projections are quantized, beside adapters

    @property
    def trunks(self) -> int:
        """Networks that a training step goes through and back: the policy's, and a critic's own."""
        return 2 if self.critic == "own" else 1

    @property
    def answers(self) -> int:
        return self.prompts * self.n

    @property
    def piece(self) -> int:
        """Tokens per forward pass in training: answers up to micro_tokens, each prompt once for its n answers."""
        actions = min(self.answers * self.max_tokens, max(self.micro_tokens, self.max_tokens))
        return actions + -(-actions // (self.max_tokens * self.n)) * self.prompt_tokens

    @property
    def tokens(self) -> int:
        """Tokens of all answers and prompts."""
        return self.answers * self.max_tokens + self.prompts * self.prompt_tokens


@dataclass(frozen=True)
class Estimate:
    """Memory and time of one step."""

    parameters: int
    memory: dict[str, float]  # bytes by purpose
    free: float  # bytes of memory that are free
    slots: int  # answers generated at a time
    recomputed: int  # layers that compute their activations again in backward
    rollout_tokens_s: float  # generated tokens per second
    rollout_s: float  # seconds per step for rollouts
    train_s: float  # seconds per step for training

    @property
    def total(self) -> float:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.free

    @property
    def step_s(self) -> float:
        return self.rollout_s + self.train_s


def parameters(c: DecoderConfig) -> int:
    """The number of parameters: embeddings (and an untied head), projections, MLPs, norms, biases."""
    wide, narrow, D, inner = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.hidden_size, c.intermediate_size
    layer = 2 * D * wide + 2 * D * narrow + 3 * D * inner + 2 * D
    layer += (
        c.qkv_bias * (wide + 2 * narrow) + c.out_bias * D + c.mlp_bias * (2 * inner + D) + c.qk_norm * 2 * c.head_dim
    )
    return c.vocab_size * D * (1 if c.tied else 2) + c.num_layers * layer + D


def adapters(c: DecoderConfig, rank: int) -> int:
    """Parameters of all adapters: rank (in + out) for each of the seven projections of a layer."""
    wide, narrow, D, inner = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.hidden_size, c.intermediate_size
    return c.num_layers * rank * (2 * (D + wide) + 2 * (D + narrow) + 3 * (D + inner))


def position_bytes(c: DecoderConfig, size: int) -> int:
    """Keys and values of one token in every layer."""
    return 2 * c.num_layers * c.num_kv_heads * c.head_dim * size


def activation_bytes(c: DecoderConfig, packed_layout: bool, size: int) -> int:
    """What one layer saves per token for the backward pass; least in the packed layout of a GPU in half precision, where it was measured."""
    if packed_layout:
        return size * (6 * c.hidden_size + 2 * (c.num_heads + c.num_kv_heads) * c.head_dim + 3 * c.intermediate_size)
    return size * (14 * c.hidden_size + 4 * c.intermediate_size)


def layers_recomputed(c: DecoderConfig, tokens: int, free: float) -> int:
    """As models.packed.layers_to_recompute on a GPU with this much free memory: layers that save only their input."""
    kept = activation_bytes(c, True, 2)
    over = tokens * kept * c.num_layers - (0.8 * free - 6 * (1 << 29))
    return max(0, min(c.num_layers, -int(-over // (tokens * (kept - 6 * c.hidden_size)))))


def estimate(c: DecoderConfig, work: Work, machine: Machine) -> Estimate:
    """Bytes and seconds of one step of training."""
    N = parameters(c)
    memory = resident_memory(c, work, machine.gpu)
    slots, memory["keys and values"] = cache(c, work, machine, machine.free - memory["weights"] - memory["reference"])
    left = machine.free - sum(memory.values())
    packed_layout = machine.gpu and work.size == 2
    recomputed = layers_recomputed(c, work.piece * work.trunks, left) if packed_layout else 0
    kept = activation_bytes(c, packed_layout, work.size)
    inputs = recomputed * 3 * work.size * c.hidden_size  # the stream in fp32, and what is still to be added to it
    each = work.piece * ((c.num_layers - recomputed + (recomputed > 0)) * kept + inputs)  # one at a time in full
    memory["activations"] = float(work.trunks * each)  # values and log-probabilities are read before either goes back
    memory["logits"] = logit_bytes(c, work, machine.gpu)
    seconds = decode_seconds(c, work, machine, slots)
    num_generated = work.answers * work.max_tokens
    return Estimate(
        N, memory, machine.free, slots, recomputed, num_generated / seconds, seconds, train_seconds(c, work, machine)
    )


def resident_memory(c: DecoderConfig, work: Work, gpu: bool) -> dict[str, float]:
    """Memory in use all the time: weights, and for trained ones fp32 masters (of bf16), gradients and two moments."""
    N = parameters(c)
    learning = (adapters(c, work.lora) if work.lora else N) * work.trunks
    wide, narrow = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    fused_copies = c.num_layers * c.hidden_size * (wide + 2 * narrow + 2 * c.intermediate_size)
    projections = fused_copies + c.num_layers * c.hidden_size * (wide + c.intermediate_size)
    fused_copies = projections if work.lora else fused_copies  # with adapters the engine copies every projection
    quantized_delta = projections * (NF4_BITS / 8 - work.size) if work.bits else 0.0
    return {
        "weights": (N * work.size + quantized_delta) * (1 if work.lora else work.trunks),  # adapters share frozen ones
        "masters": 4.0 * learning if work.size == 2 else 0.0,
        "gradients": 4.0 * learning,
        "moments": 8.0 * learning,
        "reference": N * work.size + quantized_delta if work.reference else 0.0,
        "fused copies": float(fused_copies * work.size) if gpu else 0.0,  # of the rollout engine
    }


def cache(c: DecoderConfig, work: Work, machine: Machine, free: float) -> tuple[int, float]:
    """(answers at a time, bytes of keys and values): on a GPU as many pages as half of the free memory holds."""
    each = position_bytes(c, work.size)
    if not machine.gpu:
        slots = min(work.answers, max(1, MAX_SLOTS_CPU // work.n) * work.n)
        return slots, float(slots * (work.prompt_tokens + work.max_tokens) * each)
    own, shared = (-(-x // PAGE) * PAGE * each for x in (work.max_tokens, work.prompt_tokens))
    wanted = min(work.answers, MAX_SLOTS_GPU)
    room = max(0.0, SHARE * free)
    slots = max(1, min(wanted, int(room / (own + shared / work.n))))
    return slots, min(room, slots * own + -(-slots // work.n) * shared)


def logit_bytes(c: DecoderConfig, work: Work, gpu: bool) -> float:
    """One chunk of logits (bf16 on a GPU; three tensors in fp32 without) and the head's gradient in fp32."""
    logits = min(work.piece * c.vocab_size, CHUNK_GPU if gpu else CHUNK)
    return logits * (work.size if gpu else 12) + 4.0 * c.vocab_size * c.hidden_size


# ---- speed: (share of the lower bound reached in decoding, in training), operations launched per layer in each
GPU, CPU = (0.64, 0.58, 6.8, 200), (0.35, 0.35, 220, 300)


def decode_seconds(c: DecoderConfig, work: Work, machine: Machine, slots: int) -> float:
    """steps x (floor / share + operations x launch), and one prefill of the prompts.

    floor = max(bytes / bandwidth, FLOPs / peak), on a CPU, which does one after the other, their sum;
    bytes = weights that are read + slots x keys and values of prompt and half an answer; FLOPs = 2 N slots
    """
    share, _, ops, _ = GPU if machine.gpu else CPU
    N = parameters(c) - (0 if c.tied else c.vocab_size * c.hidden_size)  # an untied embedding is looked up, not read
    seen = work.prompt_tokens + work.max_tokens / 2
    both = (
        (N * work.size + slots * seen * position_bytes(c, work.size)) / machine.bytes_s,
        2 * N * slots / machine.flops,
    )
    floor = max(both) if machine.gpu else sum(both)
    steps = work.max_tokens * -(-work.answers // slots)
    reading = 2 * N * work.prompts * work.prompt_tokens / machine.flops / share
    return reading + steps * (floor / share + ops * c.num_layers * machine.start_decode)


def train_seconds(c: DecoderConfig, work: Work, machine: Machine) -> float:
    """(6 N + 12 L H d (S + T) / 2) tokens / (peak x share) per update, a third of it for the reference, and launches.

    The second term is attention; frozen weights (LoRA) need no gradient of their own: 4 N.
    """
    _, share, _, ops = GPU if machine.gpu else CPU
    N, half = parameters(c), (work.prompt_tokens + work.max_tokens) / 2
    attention = 12 * c.num_layers * c.num_heads * c.head_dim * half
    passes = work.updates * work.trunks * ((4 if work.lora else 6) * N + attention)
    passes += (2 * N + attention / 3) * work.reference
    pieces = -(-work.tokens // work.piece) * work.updates
    return passes * work.tokens / (machine.flops * share) + pieces * c.num_layers * ops * machine.start_train
