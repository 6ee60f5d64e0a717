"""What is sent through a router and through the sidecar, and what a right answer is."""

import json
from dataclasses import dataclass

CHAT, COMPLETIONS, GENERATE, TOKENS = "/v1/chat/completions", "/v1/completions", "/generate", "/inference/v1/generate"
PROMPT = "Tell me of sheep, of goats and of what else there is on the hill"


@dataclass
class Case:
    name: str
    path: str
    body: dict
    prefills: int = 1  # how many requests the prefill engine must have computed; 0: the decode engine may do without


def _chat(**more):
    return {"model": "mock-model", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, **more}


def _completion(**more):
    return {"model": "mock-model", "prompt": PROMPT, "max_tokens": 8, **more}


def _generate(**more):
    return {"text": PROMPT, "sampling_params": {"max_new_tokens": 8}, **more}


COMMON = [
    Case("chat", CHAT, _chat()),
    Case("chat, streamed", CHAT, _chat(stream=True)),
    Case("chat, streamed with usage", CHAT, _chat(stream=True, stream_options={"include_usage": True})),
    Case("completion", COMPLETIONS, _completion()),
    Case("completion, streamed", COMPLETIONS, _completion(stream=True)),
]
# Last: it ends a decode engine that is given one handoff for both.
TWO_PROMPTS = Case("completion, two prompts", COMPLETIONS, _completion(prompt=[PROMPT, "And of wolves"]), prefills=0)
OF_ENGINE = {
    "vllm": [
        Case("completion, tokens", COMPLETIONS, _completion(prompt=[11, 12, 13, 14, 15])),
        Case("tokens in, tokens out", TOKENS, {"token_ids": [11, 12, 13, 14], "sampling_params": {"max_tokens": 6}}),
    ],
    "sglang": [
        Case("generate", GENERATE, _generate()),
        Case("generate, streamed", GENERATE, _generate(stream=True)),
        Case("generate, tokens", GENERATE, {"input_ids": [11, 12, 13, 14], "sampling_params": {"max_new_tokens": 6}}),
        Case("generate, two prompts", GENERATE, _generate(text=[PROMPT, "And of wolves"]), prefills=0),
        Case("generate, log-probabilities", GENERATE, _generate(return_logprob=True, logprob_start_len=0)),
    ],
}


def cases_of(engine):
    return [*COMMON, *OF_ENGINE[engine], TWO_PROMPTS]


def _choice_text(choice):
    if "token_ids" in choice and "text" not in choice and "message" not in choice:
        return choice["token_ids"]
    if "message" in choice:
        return choice["message"]["content"]
    return choice["text"] if "text" in choice else choice.get("delta", {}).get("content") or ""


def texts_of(case, content_type, body):
    """The text, or tokens, of each choice."""
    if not content_type.startswith("text/event-stream"):
        reply = json.loads(body)
        if case.path == GENERATE:
            return [item["text"] for item in (reply if isinstance(reply, list) else [reply])]
        return [_choice_text(choice) for choice in sorted(reply["choices"], key=lambda choice: choice["index"])]
    text, done = "", False
    for block in body.decode().split("\n\n"):
        if not block.startswith("data: "):
            continue
        if block == "data: [DONE]":
            done = True
            continue
        event = json.loads(block[len("data: "):])
        if "error" in event:
            raise ValueError(f"error in the stream: {event['error']}")
        if case.path == GENERATE:
            text = event["text"]  # each event has the whole text so far
        else:
            text += "".join(_choice_text(choice) for choice in event["choices"])
    if not done:
        raise ValueError("the stream has no [DONE]")
    return [text]


def expected_texts(case, engine):
    """What the engine says that it answers."""
    choices = engine.expect(case.path, case.body)["choices"]
    return [choice["token_ids"] if case.path == TOKENS else choice["text"] for choice in choices]


def defect_of(case, reply, engine):
    """None if the answer is right, else what is wrong with it."""
    if reply.status != 200:
        return f"status {reply.status}: {' '.join(reply.body.decode(errors='replace').split())[:160]}"
    try:
        said = texts_of(case, reply.headers.get("content-type", ""), reply.body)
    except (ValueError, KeyError, TypeError) as error:
        return f"unreadable: {error!r}"
    wanted = expected_texts(case, engine)
    if said != wanted:
        return f"answers {said!r}, not {wanted!r}"
    if case.body.get("return_logprob"):
        meta = json.loads(reply.body)["meta_info"]
        if len(meta.get("input_token_logprobs") or []) != meta["prompt_tokens"]:
            return "the prompt's log-probabilities are missing"
    return None
