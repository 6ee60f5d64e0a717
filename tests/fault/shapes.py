"""Requests of many shapes, each with the answer that it must get when nothing goes wrong."""

import json
from dataclasses import dataclass, field

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau".split()


@dataclass
class Shape:
    method: str
    path: str
    body: bytes
    status: int = 200
    stream: bool = False
    text: str = ""  # what the model says; empty: the body is compared by `check`
    token_ids: list = field(default_factory=list)
    disaggregated: bool = True  # a prefill header makes a difference
    local: bool = False  # no engine is asked


def _prompt(rng):
    size = rng.choice((1, 5, 40, 40, 300, 3000, 20000))
    return f"{rng.getrandbits(64):x} " + " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, size)))


def _generation(rng):
    path = rng.choice(("/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/v1/responses",
                       "/inference/v1/generate"))
    stream = rng.random() < 0.5
    limit = rng.choice((1, 2, 16, 16, 200))
    body = {"model": "mock-model"}
    if path == "/v1/chat/completions":
        body["messages"] = [{"role": "user", "content": _prompt(rng)}]
        body[rng.choice(("max_tokens", "max_completion_tokens"))] = limit
    elif path == "/v1/completions":
        body.update(prompt=_prompt(rng), max_tokens=limit)
    elif path == "/v1/responses":
        body.update(input=_prompt(rng), max_output_tokens=limit)
    else:
        tokens = [rng.randrange(1, 100000) for _ in range(rng.choice((1, 20, 500, 5000)))]
        body.update(token_ids=tokens, sampling_params={"max_tokens": limit})
    if stream:
        body["stream"] = True
        if path in ("/v1/chat/completions", "/v1/completions") and rng.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
    return Shape("POST", path, json.dumps(body).encode(), stream=stream)


def _sglang_generation(rng):
    path = rng.choice(("/v1/chat/completions", "/v1/completions", "/generate", "/generate"))
    stream = rng.random() < 0.5
    limit = rng.choice((1, 2, 16, 16, 200))
    if path == "/v1/chat/completions":
        body = {"messages": [{"role": "user", "content": _prompt(rng)}], "max_tokens": limit}
    elif path == "/v1/completions":
        body = {"prompt": _prompt(rng), "max_tokens": limit}
    else:
        body = {"text": _prompt(rng), "sampling_params": {"max_new_tokens": limit}}
        if rng.random() < 0.4:
            # Every event repeats the prompt's log-probabilities: more of them would keep the test itself busy for so long
            # that its slow readers look silent.
            body["sampling_params"]["max_new_tokens"] = min(limit, 16)
            body.update(return_logprob=True, logprob_start_len=0)
    body["stream"] = stream
    return Shape("POST", path, json.dumps(body).encode(), stream=stream)


def _trtllm_generation(rng):
    path = rng.choice(("/v1/chat/completions", "/v1/completions"))
    stream = rng.random() < 0.5
    body = {"max_tokens": rng.choice((1, 2, 16, 16, 200)), "stream": stream}
    if path == "/v1/chat/completions":
        body["messages"] = [{"role": "user", "content": _prompt(rng)}]
    else:
        body["prompt"] = _prompt(rng)
    if stream and rng.random() < 0.5:
        body["stream_options"] = {"include_usage": True}
    return Shape("POST", path, json.dumps(body).encode(), stream=stream)


GENERATIONS = {"vllm": _generation, "sglang": _sglang_generation, "trtllm": _trtllm_generation,
               "trtllm-generation-first": _trtllm_generation}


def make_palette(rng, engine, count, kind="vllm"):
    """Shapes with distinct prompts, and so distinct answers, which the engine is asked for beforehand."""
    palette = []
    for _ in range(count):
        shape = GENERATIONS[kind](rng)
        expected = engine.expect(shape.path, json.loads(shape.body))
        shape.text = expected["text"]
        shape.token_ids = expected["choices"][0]["token_ids"]
        palette.append(shape)
    return palette


def others(kind="vllm"):
    """Requests beside the P/D paths, and such as are refused."""
    tokenize = json.dumps({"model": "mock-model", "prompt": "count me"}).encode()
    forged = json.dumps({"prompt": "x", "max_tokens": 1, "kv_transfer_params": {"do_remote_prefill": True}}).encode()
    if kind == "sglang":
        forged = json.dumps({"prompt": "x", "max_tokens": 1, "bootstrap_room": 7}).encode()
    if kind.startswith("trtllm"):
        forged = json.dumps({"prompt": "x", "max_tokens": 1, "disaggregated_params": {"request_type": "generation_only"}}).encode()
    # This engine has no tokenizer to ask.
    tokenize_status = 404 if kind.startswith("trtllm") else 200
    return [
        Shape("GET", "/v1/models", b"", disaggregated=False),
        Shape("HEAD", "/health", b"", disaggregated=False, local=True),
        Shape("GET", "/health", b"", disaggregated=False, local=True),
        Shape("POST", "/tokenize", tokenize, status=tokenize_status, disaggregated=False),
        Shape("POST", "/v1/completions", b'{"prompt": "cut off', status=400, local=True),
        Shape("POST", "/v1/chat/completions", forged, status=400, local=True),
        Shape("POST", "/no/such/path", b"x" * 3000, status=404, disaggregated=False),
    ]


def check_body(shape, answer):
    """None if a complete 200 says what it must, else what is wrong. `in-band error` if the engine says that it failed."""
    body = answer.body
    if b"<<WRONG-KV>>" in body:
        return "wrong KV"
    if not shape.text:
        return None
    try:
        said, ended, failed = _stream(shape, body) if shape.stream else _whole(shape, body)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return f"unreadable ({error!r}): {body[:120]!r}"
    if failed:
        return "in-band error"
    if not ended:
        return "the stream has no end mark"
    wanted = shape.token_ids if shape.path == "/inference/v1/generate" else shape.text
    if said != wanted:
        return f"another answer: {said[:80]!r} instead of {wanted[:80]!r}"
    return None


def _has_prompt_logprobs(shape, item):
    meta = item["meta_info"]
    return b"return_logprob" not in shape.body or len(meta["input_token_logprobs"]) == meta["prompt_tokens"]


def _whole(shape, body):
    reply = json.loads(body)
    if shape.path == "/generate":
        return reply["text"], _has_prompt_logprobs(shape, reply), reply["meta_info"]["finish_reason"]["type"] == "abort"
    if shape.path == "/v1/responses":
        return reply["output"][0]["content"][0]["text"], True, reply.get("error") is not None
    choice = reply["choices"][0]
    failed = choice.get("finish_reason") == "error"
    if shape.path == "/inference/v1/generate":
        return choice["token_ids"], True, failed
    if shape.path == "/v1/completions":
        return choice["text"], True, failed
    return choice["message"]["content"], True, failed


def _stream(shape, body):
    text, tokens, ended, failed = "", [], False, False
    for line in body.decode().split("\n"):
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            ended = True
            continue
        event = json.loads(line[6:])
        if shape.path == "/generate" and "error" not in event:
            text = event["text"]
            failed = failed or (event["meta_info"]["finish_reason"] or {}).get("type") == "abort"
            if not _has_prompt_logprobs(shape, event):
                raise ValueError("prefill's log-probabilities are missing")
            continue
        if "error" in event and event["error"] is not None or event.get("type") in ("error", "response.failed"):
            failed = True
            continue
        if shape.path == "/v1/responses":
            if event["type"] == "response.output_text.delta":
                text += event["delta"]
            if event["type"] in ("response.completed", "response.incomplete"):
                ended = True
            continue
        for choice in event["choices"]:
            if choice.get("finish_reason") == "error":
                failed = True
            if shape.path == "/inference/v1/generate":
                tokens += choice["token_ids"]
            elif shape.path == "/v1/completions":
                text += choice["text"]
            else:
                text += choice["delta"].get("content") or ""
    return (tokens if shape.path == "/inference/v1/generate" else text), ended, failed
