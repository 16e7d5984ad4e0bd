"""A server that speaks vLLM 0.24's HTTP API around a model of transformers: `python -m tests.policies.vllm_server FOLDER`.

vLLM itself is large, and starts in half a minute. Requests and replies here follow its source, tag v0.24.0 (`test_real_vllm.py` asks vLLM
itself, where it is installed); what was read where:

- /v1/models: `id`, `root`, `parent`, `max_model_len`             vllm/entrypoints/openai/models/serving.py, openai/engine/protocol.py
- /v1/completions: fields of the request and their defaults, `choices[].{index, text, logprobs, finish_reason, stop_reason, token_ids,
  prompt_token_ids}`; `logprobs=0` gives the sampled token's alone, clamped at -9999     openai/completion/{protocol,serving}.py
- a prompt and max_tokens that exceed max_model_len: 400, not cut                             vllm/renderers/params.py
- prompt_logprobs=k: choices[0].prompt_logprobs, a dict of ids for every token but the first, the token itself and the k likeliest;
  k at most max_logprobs, 20 by default                               openai/completion/protocol.py, vllm/config/model.py
- n answers with seeds seed + index                                                    vllm/v1/engine/parallel_sampling.py
- raw_logprobs before temperature and truncation, processed_logprobs after both; greedy at temperature 1     vllm/v1/sample/sampler.py
- the stop token is among token_ids; `ignore_eos`; stop_reason is its id unless it is the end token     vllm/v1/engine/detokenizer.py
- /collective_rpc {method, args, kwargs}, only with VLLM_SERVER_DEV_MODE: `reload_weights(weights_path=...)`
                                                     serve/dev/rpc/api_router.py, vllm/v1/worker/{gpu_worker,gpu_model_runner}.py
- /reset_prefix_cache; prefixes are cached by adapter name and cache_salt       serve/dev/cache/api_router.py, v1/core/kv_cache_utils.py
- /v1/load_lora_adapter, /v1/unload_lora_adapter, only with VLLM_ALLOW_RUNTIME_LORA_UPDATING: a plain sentence, or an error
                                                                               serve/lora/{api_router,protocol}.py, models/serving.py
- /tokenize {prompt, add_special_tokens} -> {count, max_model_len, tokens}                      serve/tokenize/protocol.py
- errors: {"error": {"message", "type", "param", "code"}}                                         serve/utils/error_response.py

Not vLLM's: batches (each request is computed alone), streaming, chat. One process has several servers, by the first part of the path,
with the flags that a user may forget.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

# first part of the path -> flags that differ
SERVERS: dict[str, dict[str, Any]] = {
    "processed": {},
    "raw": {"mode": "raw_logprobs"},
    "user": {"dev": False, "lora": False},  # as `vllm serve MODEL` starts it
    "short": {"max_model_len": 24},
    "silent": {"logprobs": False},
    "deaf": {"deaf": True},  # says that it has new weights, and does not: a proxy before several servers
    "locked": {"key": "secret"},
    "fresh": {},  # gets adapters alone
    "used": {"used": True},  # has the weights that an earlier run sent
    "other": {"shift": 1},  # another tokenizer
}


class Model:
    """One server: a model, its adapters, its cache of prefixes."""

    def __init__(self, folder: str, **flags: Any) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.flags = {"mode": "processed_logprobs", "dev": True, "lora": True, "max_model_len": 64} | flags
        self.folder, self.tokenizer = folder, AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for p in self.model.parameters() if flags.get("used") else ():
            p.data.add_(0.4 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
        self.adapters: dict[str, Any] = {}
        self.prefixes: dict[Any, torch.Tensor] = {}  # what follows a prompt, by (adapter, salt, prompt)
        self.asked: list[dict[str, Any]] = []
        self.loaded: list[str] = []
        self.resets = 0
        self.lock = Lock()

    # ---- answers

    def completions(self, body: dict[str, Any]) -> dict[str, Any]:
        with self.lock, torch.no_grad():
            self.asked.append(body)
            name = body.get("model") or self.folder
            if name != self.folder and name not in self.adapters:
                raise Error(404, f"The model `{name}` does not exist.", "NotFoundError")
            prompt, limit = body["prompt"], body.get("max_tokens") or 16
            if len(prompt) + limit > self.flags["max_model_len"]:
                raise Error(
                    400,
                    f"This model's maximum context length is {self.flags['max_model_len']} tokens. However, you requested "
                    f"{limit} output tokens and your prompt contains {len(prompt)} input tokens",
                )
            choices = [self.choice(body, name, i) for i in range(body.get("n", 1))]
            if (k := body.get("prompt_logprobs")) is not None:
                choices[0]["prompt_logprobs"] = self.prompt_logprobs(prompt, name, k)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": sum(len(c["token_ids"] or ()) for c in choices)}
        return {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": name, "choices": choices, "usage": usage}  # fmt: skip

    def choice(self, body: dict[str, Any], name: str, i: int) -> dict[str, Any]:
        seed = body.get("seed")
        draw = torch.Generator().manual_seed(seed + i) if seed is not None else None
        tokens, logps, why, reason = list[int](), list[float](), "length", None
        while len(tokens) < (body.get("max_tokens") or 16):
            token, logp = self.token(self.logits(body, name, tokens), body, draw)
            tokens.append(token)
            logps.append(max(logp, -9999.0))
            if token == self.tokenizer.eos_token_id and not body.get("ignore_eos"):
                why = "stop"
                break
            if token in (body.get("stop_token_ids") or ()):
                why, reason = "stop", token
                break
        said = {"tokens": [f"token_id:{t}" for t in tokens], "token_logprobs": logps, "top_logprobs": [], "text_offset": []}  # fmt: skip
        known = body.get("logprobs") is not None and self.flags.get("logprobs", True)
        ids = tokens if body.get("return_token_ids") else None
        return {
            "index": i, "text": self.tokenizer.decode(tokens), "logprobs": said if known else None, "finish_reason": why,
            "stop_reason": reason, "token_ids": ids, "prompt_token_ids": body["prompt"] if ids else None,
        }  # fmt: skip

    def prompt_logprobs(self, prompt: list[int], name: str, k: int) -> list[Any]:
        """None for the first token; of every other its own, and those of the k likeliest in its place, by id."""
        if k > 20:
            raise Error(400, f"Requested prompt logprobs of {k}, which is greater than max allowed: 20")
        logp_TV = (
            self.adapters.get(name, self.model)(input_ids=torch.tensor([prompt])).logits[0].float().log_softmax(-1)
        )
        out: list[Any] = [None]
        for t, token in enumerate(prompt[1:]):
            order = logp_TV[t].argsort(descending=True).tolist()
            told = dict.fromkeys([token, *order[:k]])
            out.append(
                {i: {"logprob": float(logp_TV[t, i]), "rank": order.index(i) + 1, "decoded_token": "?"} for i in told}
            )
        return out

    def logits(self, body: dict[str, Any], name: str, tokens: list[int]) -> torch.Tensor:
        key = (name if name in self.adapters else "", body.get("cache_salt"), tuple(body["prompt"]))
        if not tokens and key in self.prefixes:
            return self.prefixes[key]
        ids = torch.tensor([[*body["prompt"], *tokens]])
        found: torch.Tensor = self.adapters.get(name, self.model)(input_ids=ids).logits[0, -1].float()
        if not tokens:
            self.prefixes[key] = found
        return found

    def token(self, raw_V: torch.Tensor, body: dict[str, Any], draw: Any) -> tuple[int, float]:
        temperature = body["temperature"] if body.get("temperature") is not None else 1.0
        if temperature < 1e-5:
            token = int(raw_V.argmax())
            return token, float(torch.log_softmax(raw_V, -1)[token])
        logits_V = raw_V / temperature
        if (k := body.get("top_k") or 0) > 0:
            logits_V = logits_V.masked_fill(logits_V < logits_V.topk(min(k, len(logits_V))).values[-1], -torch.inf)
        if (p := body.get("top_p") if body.get("top_p") is not None else 1.0) < 1:
            ordered, place = logits_V.softmax(-1).sort(descending=True)
            logits_V = logits_V.index_fill(0, place[ordered.cumsum(-1) - ordered >= p], -torch.inf)
        noise_V = torch.empty_like(logits_V).exponential_(generator=draw)
        token = int((logits_V.softmax(-1) / noise_V).argmax())
        told = raw_V if self.flags["mode"] == "raw_logprobs" else logits_V
        return token, float(torch.log_softmax(told, -1)[token])

    # ---- weights

    def collective_rpc(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("method") != "reload_weights":
            raise Error(500, f"no method {body.get('method')}", "InternalServerError")
        path = Path(body["kwargs"]["weights_path"])
        self.loaded.append(str(path))
        if not list(path.glob("*.safetensors")):
            raise Error(500, f"Cannot find any model weights with `{path}`", "InternalServerError")
        with self.lock:
            for file in path.glob("*.safetensors") if not self.flags.get("deaf") else ():
                missing, unexpected = self.model.load_state_dict(load_file(file), strict=False)
                assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
                self.model.tie_weights()
        return {"results": [None]}

    def load_adapter(self, body: dict[str, Any]) -> str:
        from peft import PeftModel

        name, path = body["lora_name"], body["lora_path"]
        if name in self.adapters and not body.get("load_inplace"):
            raise Error(400, f"The lora adapter '{name}' has already been loaded.", "InvalidUserInput")
        try:  # on the weights that it has, which may be those of another run
            self.adapters[name] = PeftModel.from_pretrained(copy.deepcopy(self.model), path).eval()
        except ValueError as error:
            raise Error(404, str(error), "NotFoundError") from None
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload_adapter(self, body: dict[str, Any]) -> str:
        if body["lora_name"] not in self.adapters:
            raise Error(404, f"The lora adapter '{body['lora_name']}' cannot be found.", "NotFoundError")
        del self.adapters[body["lora_name"]]
        return f"Success: LoRA adapter '{body['lora_name']}' removed successfully."

    # ---- routes

    def routes(self) -> list[Route]:
        async def models(request: Request) -> dict[str, Any]:
            own = [
                {"id": self.folder, "root": self.folder, "parent": None, "max_model_len": self.flags["max_model_len"]}
            ]
            return {"object": "list", "data": own + [{"id": a, "parent": self.folder} for a in self.adapters]}

        async def tokenize(body: dict[str, Any]) -> dict[str, Any]:
            ids = self.tokenizer(body["prompt"], add_special_tokens=body["add_special_tokens"])["input_ids"]
            ids = [i + self.flags.get("shift", 0) for i in ids]
            return {"count": len(ids), "max_model_len": self.flags["max_model_len"], "tokens": ids}

        async def seen(request: Request) -> dict[str, Any]:  # for tests alone
            told = {"asked": self.asked, "loaded": self.loaded, "resets": self.resets}
            return told | {"adapters": list(self.adapters)}

        async def reset(body: dict[str, Any]) -> str:
            self.prefixes.clear()
            self.resets += 1
            return ""

        posts: dict[str, Any] = {"/v1/completions": self.completions, "/tokenize": tokenize}
        if self.flags["dev"]:
            posts |= {"/collective_rpc": self.collective_rpc, "/reset_prefix_cache": reset}
        if self.flags["lora"]:
            posts |= {"/v1/load_lora_adapter": self.load_adapter, "/v1/unload_lora_adapter": self.unload_adapter}
        gets = {"/v1/models": models, "/seen": seen}
        return [
            *(Route(path, self.answering(do, post=True), methods=["POST"]) for path, do in posts.items()),
            *(Route(path, self.answering(do, post=False), methods=["GET"]) for path, do in gets.items()),
        ]

    def answering(self, do: Any, post: bool) -> Any:
        async def answer(request: Request) -> Response:
            key = self.flags.get("key")
            if key and request.headers.get("authorization") != f"Bearer {key}":
                return JSONResponse({"error": "Unauthorized"}, 401)
            try:
                given = await request.json() if post else request
                made = await run_in_threadpool(do, given)
                made = await made if hasattr(made, "__await__") else made
            except Error as error:
                told = {"message": str(error), "type": error.kind, "param": None, "code": error.status}
                return JSONResponse({"error": told}, error.status)
            return PlainTextResponse(made) if isinstance(made, str) else JSONResponse(made)

        return answer


class Error(Exception):
    def __init__(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


def app(folder: str) -> Starlette:
    return Starlette(routes=[Mount(f"/{name}", routes=Model(folder, **flags).routes()) for name, flags in SERVERS.items()])  # fmt: skip


def main() -> None:
    """Prints its address, and serves until its standard input is closed."""
    import socket
    import threading

    import uvicorn

    torch.set_num_threads(1)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app(sys.argv[1]), log_level="error"))
    threading.Thread(target=lambda: (sys.stdin.read(), setattr(server, "should_exit", True)), daemon=True).start()
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
