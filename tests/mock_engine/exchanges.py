"""What the self-tests say to the mock: bodies, legs, raw bytes."""

import concurrent.futures
import json
import socket

from mock_engine_client import PATIENCE

PROMPT = "The quick brown fox jumps over the lazy dog, and then some more words to fill a block or two."
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
ALL_APIS = {
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": 5},
    CHAT: {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 5},
    "/v1/messages": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5},
    "/inference/v1/generate": {"token_ids": [50331649, 50331650], "sampling_params": {"max_tokens": 5}},
}


def prefill_body(body, path=COMPLETIONS):
    out = json.loads(json.dumps(body))
    out.update(stream=False, kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False})
    if path == "/inference/v1/generate":
        out["sampling_params"]["max_tokens"] = 1
    else:
        out["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 1
    return out


def prefill(engine, path=COMPLETIONS, body=None):
    reply = engine.post(path, prefill_body(body or ALL_APIS[path], path))
    assert reply.status == 200, reply.body
    return reply.json["kv_transfer_params"]


def decode(engine, params, path=COMPLETIONS, **more):
    return engine.post(path, {**ALL_APIS[path], "kv_transfer_params": params, **more})


def text_of(reply):
    return reply.json["choices"][0]["text"]


def raw_exchange(engine, data, shutdown=False):
    """Sends bytes, returns everything until the peer closes; a reset ends it too."""
    with socket.create_connection((engine.host, engine.port), timeout=PATIENCE) as s:
        s.sendall(data)
        if shutdown:
            s.shutdown(socket.SHUT_WR)
        out = b""
        try:
            while chunk := s.recv(65536):
                out += chunk
        except ConnectionResetError:
            return out, "reset"
        return out, "closed"


def raw_request(path, body, *headers):
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: mock", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


def open_request(engine, path, body, *headers):
    """A request whose reply nobody reads yet."""
    s = socket.create_connection((engine.host, engine.port), timeout=PATIENCE)
    s.sendall(raw_request(path, body, *headers))
    return s


def at_once(*calls):
    """What the calls return, each made on a thread of its own."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
