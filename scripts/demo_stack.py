#!/usr/bin/env python3
"""The running part of scripts/demo: starts the whole stack, holds two conversations with a common beginning through it, and
shows which pair of engines served each turn, what was cached, and how soon the first token came."""

import argparse
import http.client
import json
import os
import signal
import sys
import time

from envoy_binary import install_envoy
from full_stack import FullStack
from handoff_stack import StackError, shell

PATH = "/v1/chat/completions"
SYSTEM = "You answer questions about routing requests to inference engines. " * 40
TALKS = {
    "alice": ["How does a prefix cache help?", "And when the cache is full?", "Who tells the router?"],
    "bob": ["What is a handoff?", "Which engine keeps the blocks?", "For how long?"],
}


def say(label, text=""):
    print(f"  {label:<12} {text}".rstrip(), flush=True)


class Conversation:
    def __init__(self, name):
        self.name = name
        self.messages = [{"role": "system", "content": SYSTEM}]


class Tour:
    def __init__(self, stack):
        self.stack = stack
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def states(self):
        engines = {f"prefill-{i}": engine for i, engine in enumerate(self.stack.prefills)}
        engines.update({f"decode-{i}": engine for i, engine in enumerate(self.stack.decodes)})
        return {name: engine.settled() for name, engine in engines.items()}

    def turn(self, talk, question):
        talk.messages.append({"role": "user", "content": question})
        before = self.states()
        first_ms, text, tokens = self.send(talk.messages)
        after = self.states()
        talk.messages.append({"role": "assistant", "content": text})
        grown = {name: after[name]["requests"]["finished"] - before[name]["requests"]["finished"] for name in after}
        served = [name for name in after if grown[name] > 0]
        prefill = [name for name in served if name.startswith("prefill")]
        computing = prefill[0] if prefill else served[0]
        hits = (after[computing]["tokens"]["local_cache_hit"] - before[computing]["tokens"]["local_cache_hit"])
        self.prompt_tokens += tokens
        self.cached_tokens += hits
        print(f"  {talk.name:<6} {' -> '.join(served):<22} {tokens:>6} {hits:>7} {100 * hits / max(tokens, 1):>5.0f}%"
              f" {first_ms:>9.0f} ms   \"{text.strip()[:34]}…\"", flush=True)

    def send(self, messages):
        """Milliseconds to the first token, the text, the prompt's tokens."""
        body = {"model": "mock-model", "messages": messages, "max_tokens": 8, "stream": True,
                "stream_options": {"include_usage": True}}
        connection = self.stack.connect()
        try:
            began = time.monotonic()
            connection.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise StackError(f"the answer is {response.status}: {response.read().decode(errors='replace')[:300]}")
            first, text, tokens = None, "", 0
            for line in response:
                line = line.decode().strip()
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[6:])
                tokens = (event.get("usage") or {}).get("prompt_tokens", tokens)
                for choice in event["choices"]:
                    piece = choice["delta"].get("content") or ""
                    if piece and first is None:
                        first = time.monotonic()
                    text += piece
            return 1000 * ((first or time.monotonic()) - began), text, tokens
        finally:
            connection.close()

    def run(self):
        print("\nTwo conversations with the same long system prompt, a turn of each after the other:\n")
        print(f"  {'who':<6} {'served by':<22} {'prompt':>6} {'cached':>7} {'':>6} {'first token':>12}")
        talks = {name: Conversation(name) for name in TALKS}
        for questions in zip(*TALKS.values()):
            for name, question in zip(TALKS, questions):
                self.turn(talks[name], question)
        print()
        say("cached", f"{self.cached_tokens} of {self.prompt_tokens} prompt tokens"
                      f" ({100 * self.cached_tokens / self.prompt_tokens:.0f}%), on the prefill engines")
        held = [state["blocks"]["total"] - state["blocks"]["free"] for state in self.states().values()]
        say("KV blocks", f"held now: {sum(held)}")


def show_parts(stack):
    print(f"\nEnvoy            {stack.url} (admin port {stack.admin_port})")
    print(f"Endpoint Picker  127.0.0.1:{stack.picker.port}, health {stack.picker.health_port}")
    print(f"renderer         http://127.0.0.1:{stack.renderer.port}")
    for i, engine in enumerate(stack.prefills):
        print(f"prefill-{i}        http://127.0.0.1:{engine.port}, KV events {engine.kv_event_port}")
    for i, (sidecar, engine) in enumerate(zip(stack.sidecars, stack.decodes)):
        print(f"decode-{i}         sidecar http://127.0.0.1:{sidecar.port} -> engine http://127.0.0.1:{engine.port}")


def show_curl(stack):
    body = '{"model":"mock-model","messages":[{"role":"user","content":"Hello"}],"max_tokens":12}'
    json_type = ["-H", "content-type: application/json"]
    print("\nStill running. In another terminal:")
    for command in (
        ["curl", "-s", stack.url + PATH, *json_type, "-d", body],
        ["curl", "-sN", stack.url + PATH, *json_type, "-d", body[:-1] + ',"stream":true}'],
        ["curl", "-s", "--http2-prior-knowledge", stack.url + "/v1/models"],
        ["curl", "-s", f"http://127.0.0.1:{stack.prefills[0].port}/mock/state"],
        ["curl", "-s", f"http://127.0.0.1:{stack.admin_port}/stats?filter=ext_proc"],
    ):
        print("  " + shell(command))
    print(f"The endpoints file is {os.path.join(stack.folder, 'endpoints.yaml')}; the Endpoint Picker follows it.")
    print("Ctrl-C stops everything. The Endpoint Picker's log follows.", flush=True)


def follow_log(picker):
    shown = len(picker.lines)
    while picker.process.poll() is None:
        time.sleep(0.2)
        for line in picker.lines[shown:]:
            print("  " + line.text, flush=True)
            shown += 1
    raise StackError("the Endpoint Picker ended by itself")


def stop_on_signal(number, _frame):
    # Once is enough: what follows is the clean-up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(143)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="folder of the built programs")
    parser.add_argument("--engine", default="vllm", help="protocol of the engines")
    parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, stop_on_signal)
    signal.signal(signal.SIGTERM, stop_on_signal)
    try:
        with FullStack(arguments.bin, install_envoy(), engine=arguments.engine) as stack:
            show_parts(stack)
            Tour(stack).run()
            if arguments.keep:
                show_curl(stack)
                follow_log(stack.picker)
        print("\nStopped.")
    except KeyboardInterrupt:
        print("\nStopped.")
        return 0 if arguments.keep else 130
    except BrokenPipeError:
        return 1
    except (StackError, RuntimeError, OSError, http.client.HTTPException, ValueError, KeyError) as error:
        print(f"demo: {error}" if isinstance(error, RuntimeError) else f"demo: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
