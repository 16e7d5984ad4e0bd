"""GPUs by the node: what each can do, and what the links between them carry (alpha seconds per hop, beta bytes per second)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from posttrain.core.errors import UserError
from posttrain.runs.cards import SHARES, Card, card

# bytes/s that a card sends to its neighbours on the same node, one way, by the beginning of its name; PCIe for all others
NVLINK = {"v100": 150e9, "a100": 300e9, "h100-pcie": 25e9, "h100": 450e9, "h200": 450e9, "h20-": 450e9, "b200": 900e9}
PCIE = 25e9
NETWORK = 50e9  # bytes/s per card between nodes: one adapter of 400 Gb/s each
REACHED = 0.7  # of a link's data sheet in large collectives
SENT = 0.56  # of one adapter when rank 0 broadcasts weights: 65 GB in 2.3 s, 16 -> 16 H200 (trl#7104)
HOP_NODE, HOP_NETWORK = 3e-6, 6e-6  # seconds per hop of a ring, inside and between nodes
MOST = 100_000  # cards


@dataclass(frozen=True)
class Device:
    """What one accelerator reaches: FLOP/s of a large product, bytes/s of a copy, bytes of memory that can be used."""

    name: str
    flops: float
    traffic: float
    memory: float


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal cards."""

    device: Device
    per_node: int = 8
    nodes: int = 1
    link: float = 450e9  # bytes/s per card inside a node, one way
    network: float = NETWORK  # bytes/s per card between nodes

    @property
    def cards(self) -> int:
        return self.per_node * self.nodes

    def ring(self, count: float, ranks: int) -> float:
        """Seconds to give every one of `ranks` all of `count` bytes that they hold shards of, or to sum into shards.

        t = (ranks - 1) alpha + (ranks - 1) / ranks x bytes / beta;  beta: the slower of the links inside a node and all
        adapters of a node together, of which NCCL's rings use every one
        """
        if ranks < 2:
            return 0.0
        across = ranks > self.per_node
        beta = min(self.link, self.per_node * self.network) if across else self.link
        alpha = HOP_NETWORK if across else HOP_NODE
        return (ranks - 1) * alpha + (ranks - 1) / ranks * count / (REACHED * beta)

    def broadcast(self, count: float, ranks: int) -> float:
        """Seconds for one rank to send as many bytes to all others, in pipelined buckets."""
        beta = SENT * (self.network if self.nodes > 1 else self.link)
        return ranks.bit_length() * HOP_NETWORK + count / beta


def device_of(name: str, c: Card) -> Device:
    """A card as its data sheet says, less what an H200 was measured not to reach (`runs/cards.py`)."""
    flops, traffic, memory = SHARES
    return Device(name, c.tflops * 1e12 * flops, c.traffic * 1e12 * traffic, c.memory * 1e9 * memory)


def link_of(name: str) -> float:
    return next((speed for start, speed in NVLINK.items() if name.startswith(start)), PCIE)


def is_cluster(text: str, nodes: int | None) -> bool:
    """Whether `--hardware` asks for more than a card: `8xh100-80gb`, or one card with `--nodes`."""
    return nodes is not None or re.match(r"\s*-?\d+\s*[x*]", text.lower()) is not None


def cluster(text: str, nodes: int | None = None) -> Cluster:
    """`8xh100-80gb` and the number of nodes; a card alone is one per node."""
    found = re.fullmatch(r"\s*(?:(-?\d+)\s*[x*]\s*)?(.+?)\s*", text.lower())
    if not found:
        raise UserError(f"--hardware is {text!r}; say how many of which card a node has, such as 8xh100-80gb")
    count = int(found[1]) if found[1] else 1
    name, c = card(found[2])
    if count < 1:
        raise UserError(f"--hardware is {text}: {count} cards; a node has at least 1, such as 8x{name}")
    if nodes is not None and nodes < 1:
        raise UserError(f"--nodes is {nodes}; it must be at least 1")
    if count * (nodes or 1) > MOST:
        raise UserError(f"{count} x {nodes or 1} are {count * (nodes or 1):,} cards; at most {MOST:,} are planned for")
    if not c.half:
        raise UserError(f"{name} has no bfloat16, which sharded training needs; use a100-80gb or newer")
    return Cluster(device_of(name, c), count, nodes or 1, link_of(name))
