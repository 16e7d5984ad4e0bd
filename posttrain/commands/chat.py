"""examples:
  posttrain chat --say "What is 12+7? Think first."
  posttrain chat --model grpo-arithmetic
  posttrain chat --model path/to/model --tools mine.py    it calls your functions; calls and results are shown
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
    from posttrain.environments.tooled import Tooled


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
    parser.add_argument(
        "--tools", default="", metavar="FILE",
        help="functions that the model may call, as in posttrain run, with --tools.max-turns and the like",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="with --say: print the answer as JSON")


def main(args: argparse.Namespace) -> int:
    from posttrain.core.sampling import Sampling

    how = Sampling(max_tokens=args.max_tokens, temperature=args.temperature)
    tools = offered(args.tools, show=not args.json)
    policy, config = load(args)
    policy.temperature = how.temperature or 1.0 if tools else policy.temperature
    memory = args.memory if args.memory is not None else (0 if config.model == "pocket" else 20)
    talk = Conversation(policy, how, args.system, memory, args.seed, tools)
    if args.say is None:
        return converse(talk, args.run or config.model)
    answer = talk.ask(args.say)
    if args.json:
        told = {"question": args.say, "answer": answer.text, "tokens": len(answer), "ended": (not answer.truncated)}
        called = {"stop": answer.stop, "tools": answer.info["tools"]} if tools and "tools" in answer.info else {}
        print(json.dumps(told | called))
        return 0
    print(printable(answer.text) + why(answer, "; a larger --max-tokens lets it end"))
    words = [w for w in args.argv if w not in ("--say", args.say)]
    print(f"\nnext: {shlex.join(['posttrain', *words])}   for a conversation", file=sys.stderr)
    return 0


class Conversation:
    """The exchanges so far and the model. Each answer has its own random key: (seed, turn)."""

    def __init__(
        self, policy: Policy, how: Any, system: str = "", memory: int = 20, seed: int = 0, tools: Tooled | None = None
    ) -> None:
        self.policy, self.how, self.system, self.memory, self.seed = policy, how, system, memory, seed
        self.tools = tools
        self.said: list[list[dict[str, Any]]] = []  # a question, calls and results, the answer
        self.turn = 0

    def ask(self, text: str) -> Any:
        from posttrain.core.types import Prompt

        head = [{"role": "system", "content": self.system}] if self.system else []
        recent = [m for exchange in self.said[-self.memory :] for m in exchange] if self.memory else []
        question = {"role": "user", "content": text}
        info = self.tools.prompt(0).info if self.tools else {}
        prompt = Prompt(f"chat-{self.turn}", tuple([*head, *recent, question]), info=dict(info))
        answer = self.answer(prompt)
        told = heard(answer) if self.tools else [{"role": "assistant", "content": answer.text}]
        self.said.append([question, *told])
        self.turn += 1
        return answer

    def answer(self, prompt: Any) -> Any:
        if self.tools is None:
            return self.policy.sample([prompt], 1, self.how, self.seed, self.turn)[0][0]
        from posttrain.core.protocols import RolloutRequest
        from posttrain.rollouts.sample import sample

        asked = RolloutRequest({"policy": self.policy}, [prompt], self.how, self.seed, self.turn, self.tools)
        return sample(asked, n=1)[0].rollouts[0]


def heard(answer: Any) -> list[dict[str, Any]]:
    """What was said after a question: every turn of the model, and between them what tools returned."""
    out: list[dict[str, Any]] = []
    records = answer.info.get("tools") or []
    for i, turn in enumerate(answer.turns):
        out.append({"role": "assistant", "content": turn.text})
        if i + 1 < len(answer.turns):
            out += [{"role": "tool", "name": c["name"], "content": c["result"]} for c in records[i]["calls"]]
            out += [{"role": "tool", "name": "error", "content": f"error: {fault}"} for fault in records[i]["faults"]]
    return out


def why(answer: Any, hint: str = "") -> str:
    """Why an answer is no whole one, in brackets; empty where it is."""
    stop = getattr(answer, "stop", "length" if answer.truncated else "stop")
    if stop == "length":
        return f" (cut off{hint})"
    return "" if stop in ("stop", "answered", "tool_end") else f" ({STOPPED.get(stop, stop)})"


STOPPED = {
    "max_turns": "no answer: it has called tools in all its turns; --tools.max-turns allows more",
    "max_calls": "no answer: it has made all its calls; --tools.max-calls allows more",
    "max_context": "no answer: the model's window is full",
    "structural": "no answer: its call has no end",
    "content": "no answer: its calls cannot be read",
    "timeout": "no answer: its tools took too long; --tools.seconds allows more",
}


def offered(spec: str, show: bool) -> Tooled | None:
    """The tools of --tools; show: print each call and its result as they come."""
    if not spec:
        return None
    from posttrain.core.protocols import Environment, Step
    from posttrain.core.types import Prompt
    from posttrain.environments.tooled import Tooled, ToolEpisode
    from posttrain.runs.tool_files import with_named_tools

    class Chat(Environment):
        name = "chat"

        def prompt(self, index: int, split: str = "train") -> Prompt:
            return Prompt.text("chat", "")

    class Shown(ToolEpisode):
        async def step(self, turn: Any) -> Step:
            said = await super().step(turn)
            for line in lines(said.info["tools"][-1], turn.text if said.messages is not None else "") if show else ():
                print(printable(line), flush=True)
            return said

    class ShownTools(Tooled):
        def open(self, prompt: Prompt, key: int) -> ToolEpisode:
            return Shown(prompt, self.use)

    made = with_named_tools(Chat(), spec)
    return ShownTools(made.env, made.use)


def lines(record: dict[str, Any], text: str) -> list[str]:
    """The calls of a turn with their results, for people."""
    out = []
    for call in record["calls"]:
        given = ", ".join(f"{k}={v!r:.60}" for k, v in call["arguments"].items())
        out += [f"  > {call['name']}({given})", *(f"    {line}" for line in call["result"].splitlines()[:12])]
    if not record["calls"] and text:
        out.append(f"  > {text.strip()[:200]}")
    return out + [f"    error: {fault}" for fault in record["faults"]]


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
        print(f"{printable(name)}: {printable(answer.text)}{why(answer)}")
    print("\nnext: posttrain run grpo --task arithmetic   train it further")
    return 0
