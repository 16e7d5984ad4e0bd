"""Run the examples and print what each should show: `python -m examples.run --seeds 3` (`make examples`).

With --small, the settings that the tests use.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial

from examples import control, denoise, guess, look, off_policy, two_roles

EXAMPLES: dict[str, Callable[..., dict[str, float]]] = {
    "guess": guess.main,
    "two_roles": two_roles.main,
    "control (PPO)": partial(control.main, name="ppo"),
    "control (GRPO)": partial(control.main, name="grpo"),
    "off_policy": off_policy.main,
    "denoise": denoise.main,
    "look": look.main,
}


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    ask.add_argument("names", nargs="*", help="only these")
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--small", action="store_true")
    asked = ask.parse_args()
    for name, example in EXAMPLES.items():
        if asked.names and name not in asked.names:
            continue
        for seed in range(asked.seeds):
            began = time.process_time()
            with tempfile.TemporaryDirectory() as runs:
                more = {"runs": runs} if name in ("off_policy", "guess") else {}
                found = example(seed, asked.small, **more)
            seconds = time.process_time() - began
            print(
                f"{name:16} seed {seed}: {found['before']:8.3f} -> {found['after']:8.3f}   {seconds:5.1f} core-seconds",
                flush=True,
            )


if __name__ == "__main__":
    main()
