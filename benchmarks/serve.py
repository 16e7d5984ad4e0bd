"""Many clients of `posttrain serve` at once: latency of whole requests in a closed loop, each client asking again as it is answered.

The server is a process of its own, started as a user would; the clients are tasks of this one. A request is a chat completion of
exactly so many tokens (`temperature 1`, the end token is drawn past: answers that end early are counted, and shorter).

python -m benchmarks.serve --out benchmarks/results/serve.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any]) -> dict[str, Any]:
    """One request on a connection that stays open."""
    raw = json.dumps(body).encode()
    writer.write(HEAD.format(len(raw)).encode() + raw)
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert found is not None, head
    answer: dict[str, Any] = json.loads(await reader.readexactly(int(found[1])))
    return answer | {"status": int(head.split()[1])}


async def client(number: int, args: argparse.Namespace, port: int, rows: list[dict[str, Any]]) -> None:
    """Asks, waits for the answer, asks again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for i in range(args.requests):
        question = f"What is {10 + number}+{10 + i}? Think first."
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": args.tokens, "temperature": 8.0,
                "seed": number * args.requests + i}  # fmt: skip
        began = time.perf_counter()
        answer = await ask(reader, writer, body)
        seconds = time.perf_counter() - began
        tokens = answer["usage"]["completion_tokens"] if answer["status"] == 200 else 0
        rows.append({"seconds": seconds, "status": answer["status"], "tokens": tokens})
    writer.close()


async def load(args: argparse.Namespace, port: int) -> tuple[list[dict[str, Any]], float]:
    warm: list[dict[str, Any]] = []
    await client(10_000, argparse.Namespace(requests=3, tokens=args.tokens), port, warm)
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    await asyncio.gather(*(client(k, args, port, rows) for k in range(args.clients)))
    return rows, time.perf_counter() - began


def measure(args: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "posttrain", "serve", "--port", "0", "--quiet", "--model", args.model]
    command += ["--slots", str(args.slots)] if args.slots else []
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said = server.stderr.readline()
        found = re.search(r"http://127.0.0.1:(\d+)/v1", said)
        assert found is not None, said
        rows, seconds = asyncio.run(load(args, int(found[1])))
    finally:
        server.terminate()
        server.wait()
    latency = sorted(r["seconds"] for r in rows)
    p50, p99 = statistics.median(latency), latency[int(0.99 * len(latency))]
    errors = sum(r["status"] != 200 for r in rows)
    return {
        "name": f"{args.clients} closed-loop clients x {args.requests} requests of {args.tokens} tokens, {args.model}",
        "value": p99 / p50, "unit": "p99 / p50", "peer": None, "peer_value": None, "ratio": None,
        "bar": "no errors, p99 <= 3 x p50", "met": errors == 0 and p99 <= 3 * p50, "errors": errors, "p50_s": p50, "p90_s":
        latency[int(0.9 * len(latency))], "p99_s": p99, "longest_s": latency[-1], "requests_per_s": len(rows) / seconds,
        "tokens_per_s": sum(r["tokens"] for r in rows) / seconds, "tokens_per_request": sum(r["tokens"] for r in rows) / len(rows),
        "load_average_before": args.before, "hardware": hardware(),
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        "command": f"python -m benchmarks.serve --clients {args.clients} --requests {args.requests} --tokens {args.tokens}",
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def hardware() -> str:
    return (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} cores, {platform.machine()}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--slots", type=int, default=0, help="of the server [its default]")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.before = os.getloadavg()[0]
    row = measure(args)
    print(json.dumps(row, indent=1))
    if args.out:
        args.out.write_text(json.dumps([row], indent=1) + "\n")


if __name__ == "__main__":
    main()
