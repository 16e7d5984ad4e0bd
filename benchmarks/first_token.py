"""Seconds from starting Python to the first token of a run, with empty compile caches and with full ones: of kernels, and of
Python's bytecode, which some containers lack.

python -m benchmarks.first_token --out benchmarks/results/first_token.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

CODE = """
import time
began = time.perf_counter()
import torch
imported = time.perf_counter() - began
from benchmarks.rollout import built, prompts
from posttrain.core import rng
from posttrain.inference.engine import Engine
from posttrain.models.sampling import Sampling
engine = Engine(built("SmolLM2-135M"))
contexts = prompts("SmolLM2-135M", 32)
engine.prepare(256, 384, 256, [])
engine.generate(contexts, [[rng.key(p, i) for i in range(8)] for p in range(32)], Sampling(1), [])
print(time.time(), imported)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for name, bar in (("cold", 20.0), ("warm", 5.0)):
            kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
            began, env = time.time(), kept | {"TRITON_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": f"{cache}/bytecode"}
            told = subprocess.run(
                [sys.executable, "-c", CODE], check=True, env=env, stdout=subprocess.PIPE, text=True
            ).stdout
            ended, imported = map(float, told.split())
            seconds = ended - began
            rows.append({
                "name": f"first token, {name} compile cache", "value": seconds, "unit": "s", "peer": None, "peer_value": None,
                "ratio": None, "bar": bar, "met": seconds <= bar, "import_torch": imported, "hardware": torch.cuda.get_device_name(),
                "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
                "command": "python -m benchmarks.first_token", "date": time.strftime("%Y-%m-%d"),
            })  # fmt: skip
            print(rows[-1], flush=True)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
