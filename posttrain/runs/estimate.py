"""What a run will need and how fast it should be, from the shape of the model and the machine, before anything is loaded.

Memory is counted; speed is a share of two floors (bytes that must be read, arithmetic that must be done) plus a cost for each
operation that is started. The shares were fitted to the measurements in benchmarks/results.
"""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.inference.engine import SHARE
from posttrain.inference.pages import PAGE
from posttrain.models.likelihood import CHUNK, CHUNK_GPU
from posttrain.models.shape import DecoderConfig

MOST_GPU, MOST_CPU = 1024, 512  # answers made at a time


PACKED_BITS = 4.5  # of a weight in NF4: four, and a float32 scale for each block of 64


@dataclass(frozen=True)
class Machine:
    """What a device can do: products, memory traffic, and how long it takes to start one operation (decoding, training)."""

    flops: float
    bytes_s: float
    free: float
    gpu: bool = False
    start_decode: float = 3e-6
    start_train: float = 1e-5


@dataclass(frozen=True)
class Work:
    """One step of a run. `size`: bytes of a weight; `lora`: rank of adapters, 0 where the weights themselves learn; `bits`: 4
    where projections are packed beside them."""

    prompts: int = 16
    n: int = 8
    max_tokens: int = 64
    prompt_tokens: int = 128
    micro_tokens: int = 16384
    size: int = 4
    lora: int = 0
    reference: bool = True
    critic: bool = False
    updates: int = 1  # passes over the answers
    bits: int = 0

    @property
    def answers(self) -> int:
        return self.prompts * self.n

    @property
    def piece(self) -> int:
        """Tokens of one forward pass in training: answers up to micro_tokens, each prompt once for its n answers."""
        actions = min(self.answers * self.max_tokens, max(self.micro_tokens, self.max_tokens))
        return actions + -(-actions // (self.max_tokens * self.n)) * self.prompt_tokens

    @property
    def tokens(self) -> int:
        """Tokens of all answers and prompts."""
        return self.answers * self.max_tokens + self.prompts * self.prompt_tokens


@dataclass(frozen=True)
class Estimate:
    """bytes by what they are for; answers made at a time, layers that compute their activations twice, seconds of a step."""

    parameters: int
    memory: dict[str, float]
    free: float
    slots: int
    recomputed: int
    rollout_tokens_s: float
    rollout_s: float
    train_s: float

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
    """Every number of the model: embeddings (and a head of its own), projections, gates, norms, biases."""
    wide, narrow, D, inner = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.hidden_size, c.intermediate_size
    layer = 2 * D * wide + 2 * D * narrow + 3 * D * inner + 2 * D
    layer += (
        c.qkv_bias * (wide + 2 * narrow) + c.out_bias * D + c.mlp_bias * (2 * inner + D) + c.qk_norm * 2 * c.head_dim
    )
    return c.vocab_size * D * (1 if c.tied else 2) + c.num_layers * layer + D


def adapters(c: DecoderConfig, rank: int) -> int:
    """rank (in + out) for each of the seven projections of a layer."""
    wide, narrow, D, inner = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.hidden_size, c.intermediate_size
    return c.num_layers * rank * (2 * (D + wide) + 2 * (D + narrow) + 3 * (D + inner))


def place_bytes(c: DecoderConfig, size: int) -> int:
    """Keys and values of one token in every layer."""
    return 2 * c.num_layers * c.num_kv_heads * c.head_dim * size


def activation_bytes(c: DecoderConfig, streamed: bool, size: int) -> int:
    """What one layer keeps of one token for the backward pass; least in the stream of half precision on a GPU."""
    if streamed:
        return size * (6 * c.hidden_size + 3 * c.intermediate_size + 4 * c.num_kv_heads * c.head_dim)
    return size * (14 * c.hidden_size + 4 * c.intermediate_size)


def layers_again(c: DecoderConfig, tokens: int, free: float) -> int:
    """As models.stream.layers_to_recompute on a GPU with this much free: layers that keep their input only."""
    kept = activation_bytes(c, True, 2)
    over = tokens * kept * c.num_layers - (0.8 * free - 6 * (1 << 29))
    return max(0, min(c.num_layers, -int(-over // (tokens * (kept - 2 * c.hidden_size)))))


def estimate(c: DecoderConfig, work: Work, machine: Machine) -> Estimate:
    """Bytes and seconds of one step of training."""
    N = parameters(c)
    memory = standing(c, work, machine.gpu)
    slots, memory["keys and values"] = cache(c, work, machine, machine.free - memory["weights"] - memory["reference"])
    left = machine.free - sum(memory.values())
    streamed = machine.gpu and work.size == 2
    again = layers_again(c, work.piece, left) if streamed else 0
    kept = activation_bytes(c, streamed, work.size)
    memory["activations"] = work.piece * ((c.num_layers - again) * kept + again * work.size * c.hidden_size)
    memory["logits"] = logit_bytes(c, work, machine.gpu)
    seconds = decode_seconds(c, work, machine, slots)
    made = work.answers * work.max_tokens
    return Estimate(N, memory, machine.free, slots, again, made / seconds, seconds, train_seconds(c, work, machine))


def standing(c: DecoderConfig, work: Work, gpu: bool) -> dict[str, float]:
    """What is there all the time: weights, and for those that learn fp32 masters (of bf16), gradients, two moments."""
    N = parameters(c)
    learning = (adapters(c, work.lora) if work.lora else N) * (1 + work.critic)
    wide, narrow = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    joined = c.num_layers * c.hidden_size * (wide + 2 * narrow + 2 * c.intermediate_size)
    projections = joined + c.num_layers * c.hidden_size * (wide + c.intermediate_size)
    joined = projections if work.lora else joined  # with adapters every projection is copied
    packed = projections * (PACKED_BITS / 8 - work.size) if work.bits else 0.0
    return {
        "weights": (N * work.size + packed) * (1 + work.critic),
        "masters": 4.0 * learning if work.size == 2 else 0.0,
        "gradients": 4.0 * learning,
        "moments": 8.0 * learning,
        "reference": N * work.size + packed if work.reference else 0.0,
        "joined copies": float(joined * work.size) if gpu else 0.0,  # of the rollout engine
    }


def cache(c: DecoderConfig, work: Work, machine: Machine, free: float) -> tuple[int, float]:
    """(answers at a time, bytes of keys and values): on a GPU in pages, as many as half of the free memory holds."""
    each = place_bytes(c, work.size)
    if not machine.gpu:
        slots = min(work.answers, max(1, MOST_CPU // work.n) * work.n)
        return slots, float(slots * (work.prompt_tokens + work.max_tokens) * each)
    own, shared = (-(-x // PAGE) * PAGE * each for x in (work.max_tokens, work.prompt_tokens))
    wanted = min(work.answers, MOST_GPU)
    room = max(0.0, SHARE * free)
    slots = max(1, min(wanted, int(room / (own + shared / work.n))))
    return slots, min(room, slots * own + -(-slots // work.n) * shared)


def logit_bytes(c: DecoderConfig, work: Work, gpu: bool) -> float:
    """One chunk of logits (bf16 on a GPU; three tensors in fp32 without) and the head's gradient in fp32."""
    logits = min(work.piece * c.vocab_size, CHUNK_GPU if gpu else CHUNK)
    return logits * (work.size if gpu else 12) + 4.0 * c.vocab_size * c.hidden_size


# ---- speed: (share of the floor for decoding, for training), operations started a layer for each
GPU, CPU = (0.64, 0.58, 6.8, 200), (0.35, 0.35, 220, 300)


def decode_seconds(c: DecoderConfig, work: Work, machine: Machine, slots: int) -> float:
    """steps x (floor / share + operations x start), and the prompts read once.

    floor = max(bytes / bandwidth, FLOPs / peak), on a CPU, which does one after the other, their sum;
    bytes = weights that are read + slots x keys and values of prompt and half an answer; FLOPs = 2 N slots
    """
    share, _, ops, _ = GPU if machine.gpu else CPU
    N = parameters(c) - (0 if c.tied else c.vocab_size * c.hidden_size)  # a table that is only looked up is not read
    seen = work.prompt_tokens + work.max_tokens / 2
    both = (N * work.size + slots * seen * place_bytes(c, work.size)) / machine.bytes_s, 2 * N * slots / machine.flops
    floor = max(both) if machine.gpu else sum(both)
    steps = work.max_tokens * -(-work.answers // slots)
    reading = 2 * N * work.prompts * work.prompt_tokens / machine.flops / share
    return reading + steps * (floor / share + ops * c.num_layers * machine.start_decode)


def train_seconds(c: DecoderConfig, work: Work, machine: Machine) -> float:
    """(6 N + 12 L H d (S + T) / 2) tokens / (peak x share) an update, a third of it for the reference, and starts.

    The second term is attention; frozen weights (LoRA) need no gradient of their own: 4 N.
    """
    _, share, _, ops = GPU if machine.gpu else CPU
    N, half = parameters(c), (work.prompt_tokens + work.max_tokens) / 2
    attention = 12 * c.num_layers * c.num_heads * c.head_dim * half
    passes = work.updates * (1 + work.critic) * ((4 if work.lora else 6) * N + attention)
    passes += (2 * N + attention / 3) * work.reference
    pieces = -(-work.tokens // work.piece) * work.updates
    return passes * work.tokens / (machine.flops * share) + pieces * c.num_layers * ops * machine.start_train
