"""`torchrun -m posttrain run ...` reaches us whole: no option of ours is taken by torchrun's own parser."""

from __future__ import annotations

import pytest
from torch.distributed.run import get_args_parser

from posttrain.cli import COMMANDS, command_parser


def options(name: str) -> list[str]:
    return sorted({o for action in command_parser(name)._actions for o in action.option_strings if o.startswith("--")})


@pytest.mark.parametrize("name", COMMANDS)
def test_torchrun_leaves_every_option_alone(name: str) -> None:
    for option in options(name):
        if option in ("--help", "--version"):
            continue
        taken = get_args_parser().parse_args(["-m", "posttrain", name, option, "x"])
        assert taken.training_script == "posttrain" and taken.training_script_args == [name, option, "x"], option
