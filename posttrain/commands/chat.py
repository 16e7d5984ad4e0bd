"""examples:
  posttrain chat --say "What is 12+7? Think first."
  posttrain chat --model grpo-arithmetic
An empty line or /quit ends the conversation; /new starts another.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import TYPE_CHECKING, Any

from posttrain.commands.parser import Parser, number, whole
from posttrain.commands.policy import load, policy_options
from posttrain.core.terminal import printable

if TYPE_CHECKING:
    from posttrain.core.protocols import Policy


def options(parser: Parser) -> None:
    policy_options(parser)
    parser.add_argument("--say", metavar="TEXT", help="ask one question, print the answer and exit")
    parser.add_argument("--system", default="", metavar="TEXT", help="a system message before the conversation")
    parser.add_argument(
        "--temperature", type=number, default=0.0, metavar="X", help="sampling temperature; 0 is greedy [0]"
    )
    parser.add_argument("--max-tokens", type=whole, default=256, metavar="N", help="longest answer, in tokens [256]")
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="seed for temperatures above 0 [0]")
    parser.add_argument(
        "--memory", type=whole, metavar="N",
        help="earlier question-answer pairs in the context [0 for pocket, trained on single questions; else 20]",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="with --say: print the answer as JSON")


def main(args: argparse.Namespace) -> int:
    from posttrain.core.sampling import Sampling

    how = Sampling(max_tokens=args.max_tokens, temperature=args.temperature)
    policy, config = load(args)
    memory = args.memory if args.memory is not None else (0 if config.model == "pocket" else 20)
    talk = Conversation(policy, how, args.system, memory, args.seed)
    if args.say is None:
        return converse(talk, args.run or config.model)
    answer = talk.ask(args.say)
    if args.json:
        print(
            json.dumps(
                {"question": args.say, "answer": answer.text, "tokens": len(answer), "ended": (not answer.truncated)}
            )
        )
        return 0
    print(printable(answer.text) + ("" if (not answer.truncated) else " (cut off; a larger --max-tokens lets it end)"))
    words = [w for w in args.argv if w not in ("--say", args.say)]
    print(f"\nnext: {shlex.join(['posttrain', *words])}   for a conversation", file=sys.stderr)
    return 0


class Conversation:
    """The messages so far and the model. Each answer has its own random key: (seed, turn)."""

    def __init__(self, policy: Policy, how: Any, system: str = "", memory: int = 20, seed: int = 0) -> None:
        self.policy, self.how, self.system, self.memory, self.seed = policy, how, system, memory, seed
        self.said: list[dict[str, str]] = []
        self.turn = 0

    def ask(self, text: str) -> Any:
        from posttrain.core.types import Prompt

        head = [{"role": "system", "content": self.system}] if self.system else []
        recent = self.said[-2 * self.memory :] if self.memory else []
        question = {"role": "user", "content": text}
        prompt = Prompt(f"chat-{self.turn}", tuple([*head, *recent, question]))
        answer = self.policy.sample([prompt], 1, self.how, self.seed, self.turn)[0][0]
        self.said += [question, {"role": "assistant", "content": answer.text}]
        self.turn += 1
        return answer


def converse(talk: Conversation, name: str) -> int:
    """Read a line, answer it, until there is none."""
    print(f"chatting with {printable(name)}; an empty line quits, /new starts over")
    while True:
        try:
            text = input("you: ").strip()
        except EOFError:
            text = ""
        if text in ("", "/quit", "/exit"):
            break
        if text == "/new":
            talk.said.clear()
            continue
        answer = talk.ask(text)
        print(f"{printable(name)}: {printable(answer.text)}{'' if (not answer.truncated) else ' (cut off)'}")
    print("\nnext: posttrain run grpo --task arithmetic   train it further")
    return 0
