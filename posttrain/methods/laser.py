"""LASER: GRPO with a bonus for right answers within a target length; LASER-D sets the targets by difficulty as it goes,
LASER-DE lets what is still wrong think on."""

from typing import Any

from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.rewards.shaping.laser import laser as bonus
from posttrain.rewards.shaping.laser_d import laser_d as by_difficulty

adaptive: Any = by_difficulty  # a class that a decorator made a Part

laser = method(
    grpo.but(
        name="laser", title="LASER", paper="arXiv:2505.15612", doc=__doc__,
        shaping=bonus, terms=(), aggregate=token_mean,
    ),
    __file__,
)  # fmt: skip
laser_d = method(laser.but(name="laser-d", title="LASER-D", shaping=adaptive), __file__)
laser_de = method(laser.but(name="laser-de", title="LASER-DE", shaping=adaptive.but(explore=True)), __file__)
