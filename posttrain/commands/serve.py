"""examples:
  posttrain serve
  posttrain serve --model grpo-arithmetic --port 8001
  POSTTRAIN_API_KEY=secret posttrain serve --host 0.0.0.0
  curl -s localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "What is 12+7? Think first."}], "temperature": 0}'
Any client of OpenAI's API works with the base URL http://127.0.0.1:8000/v1. Ctrl-C stops the server.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from contextlib import suppress
from typing import Any

from posttrain.commands.parser import Parser, whole
from posttrain.commands.policy import load, policy_options
from posttrain.core.errors import UserError
from posttrain.core.terminal import printable

VARIABLE = "POSTTRAIN_API_KEY"


def options(parser: Parser) -> None:
    policy_options(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="TEXT", help="address to listen on [127.0.0.1: this machine only]"
    )
    parser.add_argument(
        "--port", type=whole, default=8000, metavar="N", help="port to listen on; 0 takes any free one [8000]"
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"key that clients must send; required with other hosts [{VARIABLE}]"
    )
    parser.add_argument(
        "--allow-origin", action="append", default=[], metavar="URL",
        help="a web page's origin that may use the server, as https://example.com; may be repeated [none]",
    )  # fmt: skip
    parser.add_argument("--name", metavar="TEXT", help="model name in the API [the name of the run or model]")
    parser.add_argument(
        "--slots",
        type=whole,
        default=0,
        metavar="N",
        help="answers generated at the same time [64; on a CPU 8 to 32, as memory allows]",
    )
    parser.add_argument(
        "--queue", type=whole, default=256, metavar="N", help="most requests in progress or waiting [256]"
    )
    parser.add_argument(
        "--max-tokens",
        type=whole,
        default=512,
        metavar="N",
        help="longest answer where the request sets no limit [512]",
    )
    parser.add_argument("--quiet", action="store_true", help="do not print a line per request")


def main(args: argparse.Namespace) -> int:
    for name, least in (("port", 0), ("slots", 0), ("queue", 1), ("max_tokens", 1)):
        if getattr(args, name) < least:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be at least {least}")
    from posttrain.serving.server import Server, require_key
    from posttrain.serving.service import Service

    key = args.api_key if args.api_key is not None else os.environ.get(VARIABLE, "")
    origins = [check_origin(origin) for origin in args.allow_origin]
    require_key(args.host, key, origins)  # before the model is loaded
    policy, config = load(args)
    name = args.name or args.run or config.model
    service = Service(policy, name, args.slots, args.queue, args.max_tokens)
    log = None if args.quiet else lambda line: print(line, file=sys.stderr)
    try:
        return serve(Server(service, args.host, args.port, key, log, origins))
    finally:
        service.close()


def check_origin(text: str) -> str:
    """An origin as browsers send it: scheme and host, no path."""
    origin = text.rstrip("/")
    if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
        raise UserError(
            f"--allow-origin is {text!r}; give a scheme and a host, as https://example.com, or '*' for any page"
        )
    return origin


def serve(server: Any) -> int:
    """Serve until SIGINT or SIGTERM; requests in progress then have some seconds to end."""
    queue = server.service.queue
    where = f"{queue.backend.name} engine on {server.service.policy.device.type}"
    said = f"{server.service.name} ({where}) at {server.url}/v1; Ctrl-C stops it"
    print(printable(said), file=sys.stderr, flush=True)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):  # not raised where a shell has told its background jobs to ignore SIGINT
            server.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    print("\nstopped", file=sys.stderr)
    return 0
