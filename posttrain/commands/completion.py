"""examples:
source <(posttrain completion bash)                    for this shell
posttrain completion bash >> ~/.bashrc                 for every shell
posttrain completion fish > ~/.config/fish/completions/posttrain.fish
"""

from __future__ import annotations

import argparse

from posttrain.commands.parser import Parser
from posttrain.core import index
from posttrain.core.errors import unknown

SHELLS = ("bash", "zsh", "fish")


def options(parser: Parser) -> None:
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def main(args: argparse.Namespace) -> int:
    if args.shell not in SHELLS:
        raise unknown("shell", args.shell, SHELLS)
    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](), end="")
    return 0


def words() -> dict[str, list[str]]:
    """command -> its options, and the names that may follow it; written into the script, so completion is fast."""
    from posttrain.cli import COMMANDS, command_parser

    methods = [r["name"] for r in index.rows("method", "plan")]
    names = {
        "run": methods, "show": sorted({r["name"] for r in index.rows()}), "check": list(index.index()["claims"]),
        "audit": [r["name"] for r in index.rows("reward")], "compare": methods, "completion": list(SHELLS),
    }  # fmt: skip
    return {c: [*names.get(c, []), *command_parser(c).names()] for c in COMMANDS}


def values() -> dict[str, list[str]]:
    """option -> what may follow it."""
    from posttrain.core.registry import STAGES

    tasks = [t["name"] for t in index.index()["tasks"]]
    models = index.index()["models"]
    return {"--task": tasks, "--model": models, "--stage": [*STAGES, "claim"], "--dtype": ["float32", "bfloat16"]}


def bash() -> str:
    cases = "\n".join(f'    {c}) words="{" ".join(w)}" ;;' for c, w in words().items())
    after = "\n".join(f'    {o}) words="{" ".join(w)}" ;;' for o, w in values().items())
    return f"""_posttrain() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{" ".join(words())} --help --version"
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "$before" in
{after}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _posttrain posttrain
"""


def zsh() -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + bash()


def fish() -> str:
    from posttrain.cli import COMMANDS

    lines = ["complete -c posttrain -f"]
    for command, what in COMMANDS.items():
        lines.append(f"complete -c posttrain -n __fish_use_subcommand -a {command} -d {quoted(what)}")
    for command, some in words().items():
        inside = f"-n '__fish_seen_subcommand_from {command}'"
        plain = [w for w in some if not w.startswith("--")]
        if plain:
            lines.append(f"complete -c posttrain {inside} -a {quoted(' '.join(plain))}")
        for option in (w for w in some if w.startswith("--")):
            listed = values().get(option)
            more = f" -x -a {quoted(' '.join(listed))}" if listed else ""
            lines.append(f"complete -c posttrain {inside} -l {option.removeprefix('--')}{more}")
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
