"""The model card of an export: what it was trained from, by which method, on what, with what result, by which command."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.policies.load import EMBEDDED, NAMED

HOW = {
    "hf": """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("{here}"), AutoTokenizer.from_pretrained("{here}")
```""",
    "reward": """```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

model = AutoModelForSequenceClassification.from_pretrained("{here}")
tokenizer = AutoTokenizer.from_pretrained("{here}")
text = tokenizer.apply_chat_template(
    [{{"role": "user", "content": "..."}}, {{"role": "assistant", "content": "..."}}], tokenize=False
)
score = model(**tokenizer(text, add_special_tokens=False, return_tensors="pt")).logits[0, 0]
```
`posttrain run grpo --reward {here}` trains a policy with it.""",
    "peft": """```python
from peft import AutoPeftModelForCausalLM

model = AutoPeftModelForCausalLM.from_pretrained("{here}")
```
`posttrain run grpo --model {here}` trains it further, `posttrain export {here} --to merged` adds it to its base.""",
    "gguf": "`llama-cli -m model.gguf`, or any program built on llama.cpp.",
}


def model_card(config: dict[str, Any], summary: dict[str, Any] | None, kind: str, where: str, notes: list[str]) -> str:
    """README.md of an export: front matter for the hub, then sentences (`notes` among them) and the command."""
    base = str(config.get("base") or config.get("model", "pocket"))
    licence = licence_of(base)
    head = {"library_name": "gguf" if kind == "gguf" else "peft" if kind == "peft" else "transformers"}
    head["pipeline_tag"] = "text-classification" if kind == "reward" else "text-generation"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", base) and not Path(base).exists():
        head["base_model"] = base
    if licence:
        head["license"] = licence
    front = "".join(f"{k}: {v}\n" for k, v in head.items()) + "tags:\n- posttrain\n"
    told = [f"# {config.get('name') or Path(base).name}", "", *about(config, summary, base, licence)]
    told += [f"- {note}" for note in notes]
    told += ["", "## Use it", HOW[kind].format(here=where), ""]
    if "method" in config:
        told += ["## Trained with", "```bash", command_of(config), "```", ""]
    return f"---\n{front}---\n" + "\n".join(told)


def about(config: dict[str, Any], summary: dict[str, Any] | None, base: str, licence: str) -> list[str]:
    shown = f"{base} (comes with posttrain)" if base in NAMED else base
    lines = [f"- from: {shown}, licence of the base: {licence or 'not known here; see its own page'}"]
    if config.get("model", base) != base:
        lines.append(f"- by way of: {config['model']}")
    if config.get("adapter"):
        lines.append(f"- with the adapter {config['adapter']}")
    if "method" in config:
        lines.append(
            f"- method: {method_of(config)}; task: {config.get('task')}; reward: {config.get('reward') or 'of the task'}"
        )
    return [*lines, *(f"- {line}" for line in results(summary or {}))]


def method_of(config: dict[str, Any]) -> str:
    from posttrain.core.index import row
    from posttrain.core.registry import fold

    name = fold(str(config["method"]).partition("(")[0])
    found = row("method", name) or row("plan", name)
    paper = found.get("paper") if found else ""
    return f"{config['method']} ({paper})" if paper else str(config["method"])


def results(summary: dict[str, Any]) -> list[str]:
    """Held-out scores before and after, with the number of problems."""
    out = []
    for key in summary:
        name = key.removesuffix("_after")
        before, after = summary.get(f"{name}_before"), summary[key]
        if not key.endswith("_after") or name.startswith("ungraded") or not isinstance(after, float):
            continue
        was = f"{before:.3f} before, " if isinstance(before, float) else ""
        out.append(f"held-out {name}: {was}{after:.3f} after ({summary.get('eval_problems')} problems)")
    if summary.get("steps"):
        out.append(f"{summary['steps']} steps, {summary.get('tokens', 0)} tokens, {summary.get('seconds', 0)} s")
    return out


def command_of(config: dict[str, Any]) -> str:
    """The command that repeats the run: every setting that is not the default, and every part that is not the method's."""
    words = ["posttrain", "run", str(config["method"])]
    for field in dataclasses.fields(Config):
        value = config.get(field.name, field.default)
        if field.name not in ("method", "sampling", "device") and value != field.default:
            words += option(field.name, value)
    for field in dataclasses.fields(Sampling):
        value = config.get("sampling", {}).get(field.name, field.default)
        if value != field.default:
            words += option(f"sampling.{field.name}", value)
    return shlex.join(words + changed_parts(config))


def option(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else f"--no-{name.replace('_', '-')}"]
    return [flag, str(value)]


def changed_parts(config: dict[str, Any]) -> list[str]:
    """--loss "cispo(high=4)" where the run had another loss than its method has."""
    from posttrain.core.errors import UserError
    from posttrain.core.method import find_method

    given = config.get("parts") or {}
    try:
        own = json.loads(json.dumps(find_method(str(config["method"])).describe()))
    except UserError:  # a plan, or a method of the user's own
        return []
    if config.get("num_generations") is not None and own["rollout"] and "n" in own["rollout"][0]:
        own["rollout"][0]["n"] = config["num_generations"]
    out: list[str] = []
    for name, parts in ({"rounds": 1} | given).items():
        flag = "--curriculum" if name == "prompts" else f"--{name}"
        if name in ("name", "others") or parts == ({"rounds": 1} | own).get(name):
            continue
        out += [flag, " + ".join(map(spelled, parts)) or "none"] if isinstance(parts, list) else [flag, str(parts)]
    return out


def spelled(part: dict[str, Any]) -> str:
    given = ", ".join(f"{k}={v!r}" for k, v in part.items() if k != "part")
    return f"{part['part']}({given})" if given else str(part["part"])


def licence_of(base: str) -> str:
    """The licence that a model's own card states; "" where it is not known."""
    if base in NAMED or Path(base) in EMBEDDED.values():
        return "apache-2.0"
    card = Path(base) / "README.md"
    if not card.is_file():
        return ""
    front = re.match(r"---\n(.*?)\n---", card.read_text(errors="replace"), re.DOTALL)
    found = re.search(r"^license:\s*([\w.-]+)\s*$", front[1], re.MULTILINE) if front else None
    return found[1] if found else ""
