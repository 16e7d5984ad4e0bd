"""Shapes of well-known models, clusters by their names, links by alpha and beta."""

from __future__ import annotations

import pytest

from posttrain.core.errors import UserError
from posttrain.models.shape import DecoderConfig
from posttrain.planning.hardware import HOP_NETWORK, HOP_NODE, REACHED, SENT, Cluster, Device, cluster, is_cluster
from posttrain.planning.shapes import KNOWN, Shape, known_shape, shape_of
from posttrain.runs.estimate import activation_bytes, adapters, parameters, position_bytes

# parameters as the model cards state them, in billions
STATED = {
    "Qwen/Qwen2.5-0.5B": 0.49, "Qwen/Qwen2.5-1.5B": 1.54, "Qwen/Qwen2.5-3B": 3.09, "Qwen/Qwen2.5-7B": 7.61, "Qwen/Qwen2.5-14B": 14.7,
    "Qwen/Qwen2.5-32B": 32.5, "Qwen/Qwen2.5-72B": 72.7, "meta-llama/Llama-3.2-1B": 1.23, "meta-llama/Llama-3.2-3B": 3.21,
    "meta-llama/Llama-3.1-8B": 8.03, "meta-llama/Llama-3.1-70B": 70.6, "HuggingFaceTB/SmolLM2-135M": 0.135,
    "HuggingFaceTB/SmolLM2-360M": 0.362, "HuggingFaceTB/SmolLM2-1.7B": 1.71,
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_shape_is_the_decoder_that_would_be_built(name: str) -> None:
    shape = KNOWN[name]
    config = DecoderConfig.of(shape.as_config())
    assert config and parameters(config) == shape.parameters and config.max_positions == shape.positions
    assert adapters(config, 16) == shape.adapters(16) and position_bytes(config, 2) == shape.position_bytes()
    assert shape_of(shape.as_config()) == shape
    if name in STATED:
        assert shape.parameters / 1e9 == pytest.approx(STATED[name], rel=0.01)


def test_a_model_by_its_usual_names() -> None:
    for said in ("Qwen/Qwen2.5-7B", "qwen2.5-7b", "Qwen2.5-7B"):
        found = known_shape(said)
        assert found and found[0] == "Qwen/Qwen2.5-7B"
    tuned = known_shape("Qwen/Qwen2.5-7B-Instruct")
    assert tuned and tuned[0].endswith("-Instruct") and tuned[1].positions == 32768 and tuned[1].hidden == 3584
    assert known_shape("Qwen/Qwen2.5-9B") is None


def test_a_config_without_sizes_is_an_error() -> None:
    with pytest.raises(UserError, match="of gpt2 has vocab_size None"):
        shape_of({"model_type": "gpt2", "n_embd": 8}, "gpt2")
    with pytest.raises(UserError, match="hidden_size 0"):
        shape_of(KNOWN["Qwen/Qwen2.5-7B"].as_config() | {"hidden_size": 0})


def test_activations_are_counted_as_for_one_card() -> None:
    from posttrain.planning.memory import activation_bytes as ours

    shape = KNOWN["Qwen/Qwen2.5-7B"]
    config = DecoderConfig.of(shape.as_config())
    assert config and ours(shape) == activation_bytes(config, True, 2)


def test_a_cluster_by_its_name() -> None:
    found = cluster("8 x NVIDIA H100-80GB", 4)
    assert (found.per_node, found.nodes, found.cards, found.device.name, found.link) == (8, 4, 32, "h100-80gb", 450e9)
    assert found.device.memory == pytest.approx(76e9) and found.device.flops == pytest.approx(791.2e12)
    assert cluster("l4", 2).per_node == 1 and cluster("4xrtx4090").link == 25e9
    assert (
        is_cluster("8xh100", None)
        and is_cluster("h100", 2)
        and is_cluster("0xh100", None)
        and not is_cluster("h100-80gb", None)
    )


@pytest.mark.parametrize(
    ("said", "nodes", "sentence"),
    [
        ("8xh100-80g", None, "no card named 'h100-80g'; did you mean 'h100-80gb'"),
        ("0xh100-80gb", None, "0 cards; a node has at least 1"),
        ("-2xh100-80gb", None, "-2 cards"),
        ("8xh100-80gb", 0, "--nodes is 0; it must be at least 1"),
        ("8xh100-80gb", 10**6, "at most 100,000"),
        ("8xt4", 1, "t4-16gb has no bfloat16"),
        ("8xa100", 1, "several sizes: a100-40gb, a100-80gb"),
        ("", 1, "--hardware is ''"),
    ],
)
def test_a_cluster_that_cannot_be_is_one_sentence(said: str, nodes: int | None, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        cluster(said, nodes)
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_collectives_by_hand() -> None:
    """Two nodes of two cards, 100 B/s inside, 10 B/s per card between. Two ranks: 1 hop, half of 70 bytes at 70 B/s. Four ranks: three hops
    of the network, 3/4 of 70 bytes at 0.7 x min(100, 2 x 10) = 14 B/s. A broadcast over nodes: one adapter, 5.6 B/s."""
    c = Cluster(Device("d", 1, 1, 1), 2, 2, link=100.0, network=10.0)
    assert c.ring(70, 1) == 0.0
    assert c.ring(70, 2) == pytest.approx(HOP_NODE + 35 / (REACHED * 100))
    assert c.ring(70, 4) == pytest.approx(3 * HOP_NETWORK + 0.75 * 70 / (REACHED * 20))
    assert c.broadcast(56, 3) == pytest.approx(2 * HOP_NETWORK + 56 / (SENT * 10))


def test_tiny_shape_by_hand() -> None:
    """Layer: q and o 2*4*6, k and v 2*4*3, MLP 3*4*6: 144; norms 8. Ends: 10*4 + 4. Untied: 40 more. Qwen2 biases: 6 + 3 + 3."""
    tiny = Shape(10, 4, 6, 2, 2, 1, 3)
    assert (tiny.projections, tiny.layer, tiny.ends, tiny.parameters) == (144, 152, 44, 348)
    assert tiny.multiplied == 2 * 144 + 40
    assert Shape(10, 4, 6, 2, 2, 1, 3, tied=False, family="qwen2").parameters == 348 + 40 + 24
