"""`posttrain <command>`: parses the command line, calls a file of `posttrain.commands`, and prints a UserError as one line.

Help must be fast, so nothing here imports torch; a command imports what it needs when it runs.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from importlib import import_module

from posttrain import __version__
from posttrain.commands.parser import Parser, parse, take
from posttrain.core.errors import UserError, unknown
from posttrain.core.hub_access import hint, is_closed
from posttrain.core.terminal import printable
from posttrain.distributed.spokesman import first, heard, leave_word, one_of_several

COMMANDS = {
    "run": "train a model on a task with a method or plan",
    "runs": "list runs: method, task, model, state, score",
    "samples": "read the answers of a run, the worst or the best first",
    "view": "open a page of all runs: curves, warnings, answers down to the token, live",
    "report": "write the page of a run as one HTML file, or print what its monitors have found",
    "sweep": "train over a grid of settings and seeds, and print a table",
    "data": "show what a run would understand of a data set: columns, rows, lengths, duplicates",
    "eval": "measure a base model, a trained run, a reward model or a model behind an API on a task",
    "generate": "write a model's answers to a file, for training or for reading",
    "chat": "chat with a base model or a trained run",
    "serve": "serve a model or a trained run through an OpenAI-compatible API on localhost",
    "tools": "list the tools that a Python file gives a model, and call one",
    "list": "list every method and part, with the evidence for it",
    "find": "find a method by name, paper, link or any word",
    "show": "show a whole algorithm on one page: the loop, its parts, the paper",
    "check": "run the experiment behind a claim and record the result",
    "compare": "compare methods over several seeds, or runs that exist",
    "audit": "test a reward for answers that score well without solving the task",
    "doctor": "check the installation and suggest fixes",
    "export": "export a run as a Hugging Face folder, adapters or GGUF, or its metrics as a table",
    "completion": "print a script that completes commands and options in your shell",
}
QUICKSTART = """first steps:
  posttrain run grpo --task arithmetic     train the small built-in model for a minute
  posttrain chat --say "What is 12+7?"     ask it something
  posttrain show grpo                      read the algorithm on one page
  posttrain doctor                         check the installation
"""
INTERRUPTED = 130  # 128 + SIGINT, the convention of shells


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0 fine, 1 a finding (audit, check, sweep), 2 a mistake in the command, 75 stopped by SIGTERM or a time limit
    and to be continued (run, sweep), 130 interrupted."""
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        code = dispatch(argv)
        sys.stdout.flush()  # a full disk behind stdout is told here, not in a trace at the very end
        return code
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `posttrain list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        sentence = explain(error)
        if sentence is None or os.environ.get("POSTTRAIN_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EBADF):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what stdout still holds cannot be written either
        tell(sentence)
        return 2


def tell(sentence: str) -> None:
    """The one line of a mistake; where several processes of a run meet it, the first tells it."""
    where = ""
    if one_of_several() and not first():
        if heard(sentence):
            return
        where = f"process {os.environ['RANK']}: "
    print(f"error: {where}{printable(sentence)}", file=sys.stderr, flush=True)
    if one_of_several() and first():
        leave_word(sentence)


def dispatch(argv: list[str]) -> int:
    """Find the command and call it with its options."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"posttrain {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        raise UserError(f"{unknown('command', argv[0], COMMANDS)} See posttrain --help")
    command = import_module(f"posttrain.commands.{argv[0]}")
    parser = command_parser(argv[0])
    if any(a in ("-h", "--help") for a in argv[1:]):
        print(parser.format_help(), end="")
        return 0
    taken, words = take(argv[1:], "--plan.") if argv[0] in ("run", "sweep") else ({}, argv[1:])
    args = parse(parser, words)
    args.argv, args.plan = argv, taken
    return command.main(args) or 0


def command_parser(name: str) -> Parser:
    """The options of one command."""
    command = import_module(f"posttrain.commands.{name}")
    parser = Parser(f"posttrain {name}", COMMANDS[name], (command.__doc__ or "").strip())
    command.options(parser)
    return parser


def overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {what}" for name, what in COMMANDS.items()]
    head = "posttrain trains models from feedback: supervised fine-tuning, preferences, reinforcement learning.\n\nusage: posttrain COMMAND [options]\n\ncommands:"
    return "\n".join([head, *lines, "", QUICKSTART, "See posttrain COMMAND --help for its options and examples."])


def explain(error: Exception) -> str | None:
    """One sentence for an error that is not a bug of this program; None for a bug."""
    if isinstance(error, UserError):  # of a data set that the hub would not show, what to do about it
        return (
            f"{error}; {hint(error.__context__)}"
            if is_closed(error.__context__) and "token" not in str(error)
            else str(error)
        )
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return "out of memory; lower --micro-tokens, --prompts or --sampling.max-tokens, or use --dtype bfloat16"
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # torch's allocator on a CPU
        return "out of memory; use a smaller --model, or lower --micro-tokens, --prompts or --sampling.max-tokens"
    if isinstance(error, sqlite3.DatabaseError):
        return f"the database of a run cannot be read ({error}); name another run, or start over with --fresh"
    if isinstance(error, OSError) and error.errno is not None:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or 'the system refused'}{where}; check the path, the disk and its permissions"
    return None


if __name__ == "__main__":
    sys.exit(main())
