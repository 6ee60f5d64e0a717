#!/usr/bin/env python3
"""The running part of scripts/demo: starts the stack, sends four requests, shows what became of each."""

import argparse
import http.client
import json
import signal
import sys
import time

from handoff_stack import ENGINE_ROLES, PATIENCE, Stack, StackError, shell

ENGINE_SPEED = ["--prefill-us-per-token", "300", "--decode-us-per-token", "20000"]
PATH = "/v1/chat/completions"


def say(label, text=""):
    print(f"  {label:<12} {text}".rstrip(), flush=True)


class Tour:
    def __init__(self, stack):
        self.stack = stack
        self.count = 0

    def request(self, title, prompt, stream=False, prefill=True):
        self.count += 1
        request_id = f"demo-{self.count}"
        body = {"model": "mock-model", "messages": [{"role": "user", "content": prompt}], "max_tokens": 12}
        if stream:
            body["stream"] = True
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        if prefill:
            headers["x-prefiller-host-port"] = self.stack.prefill_address
        print(f"\n{self.count}. {title}")
        say("request", f"POST {PATH}" + (f"   x-prefiller-host-port: {self.stack.prefill_address}" if prefill else ""))
        before = self.states()
        self.send(body, headers, stream)
        self.show_exchange(self.stack.sidecar.exchange(request_id).fields)
        self.show_engines(before, self.states())

    def states(self):
        return self.stack.prefill.settled(), self.stack.decode.settled()

    def send(self, body, headers, stream):
        connection = http.client.HTTPConnection(self.stack.sidecar.host, self.stack.sidecar.port, timeout=PATIENCE)
        try:
            connection.request("POST", PATH, json.dumps(body), headers)
            response = connection.getresponse()
            if stream and response.status == 200:
                self.show_stream(response)
                return
            answer = json.loads(response.read())
            if response.status == 200:
                say("client got", f'200, "{answer["choices"][0]["message"]["content"].strip()}"')
                say("", f'usage: {answer["usage"]["prompt_tokens"]} prompt tokens, '
                        f'{answer["usage"]["completion_tokens"]} generated')
            else:
                error = answer.get("error", answer)  # SGLang's own are flat
                say("client got", f'{response.status}, code {error["code"]}: {error["message"]}')
                if response.headers.get("Retry-After"):
                    say("", f'Retry-After: {response.headers["Retry-After"]}')
        finally:
            connection.close()

    def show_stream(self, response):
        started = time.monotonic()
        print("  client got   200, as it comes: ", end="", flush=True)
        events = 0
        done = False
        for line in response:
            line = line.decode().strip()
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                done = True
                continue
            events += 1
            for choice in json.loads(line[6:])["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
        print()
        say("", f"{events} events{' and [DONE]' if done else ''} in {1000 * (time.monotonic() - started):.0f} ms")

    def show_exchange(self, fields):
        story = [fields["mode"].replace("_", "-")]
        if "reason" in fields:
            story.append(f'because of {fields["reason"]}')
        for leg in ("prefill", "decode"):
            if f"{leg}_status" in fields:
                story.append(f'{leg} said {fields[f"{leg}_status"]}'
                             + (f' after {float(fields[f"{leg}_head_ms"]):.0f} ms' if f"{leg}_head_ms" in fields else ""))
        if "error" in fields:
            story.append(f'error {fields["error"]}')
        story.append(f'{fields["outcome"]} in {float(fields["total_ms"]):.0f} ms')
        say("sidecar", ", ".join(story))

    def show_engines(self, before, after):
        def grown(engine, *path):
            values = []
            for state in (before[engine], after[engine]):
                for name in path:
                    state = state[name]
                values.append(state)
            return values[1] - values[0]

        computed = [grown(i, "tokens", "local_compute") for i in (0, 1)]
        pulled = grown(1, "tokens", "external_kv_transfer")
        generated = grown(1, "tokens", "generation")
        say("prefill", f"computed {computed[0]} prompt tokens")
        say("decode", f"computed {computed[1]} prompt tokens, pulled {pulled} from prefill, generated {generated}")
        held = [state["blocks"]["total"] - state["blocks"]["free"] for state in after]
        say("KV blocks", f"held now: prefill {held[0]}, decode {held[1]}")

    def run(self):
        self.request("Prefill and decode", "Tell me how a request finds its engine.")
        self.request("Prefill and decode, streamed", "Tell me the same once more, piece by piece.", stream=True)
        alone = "decode only" if self.stack.engine != "sglang" else "this decode engine can't prefill, and says so"
        self.request(f"No routing header: {alone}", "Tell me without any prefill engine.", prefill=False)
        self.stack.prefill.fault(match={"role": "prefill"}, times=1, action="status", status=503,
                                 headers=[["Retry-After", "7"]], body="overloaded")
        self.request("Prefill fails: the engine says 503 once", "Tell me what happens when prefill fails.")


def show_curl(stack):
    body = '{"model":"mock-model","messages":[{"role":"user","content":"Hello"}],"max_tokens":12}'
    streamed = body[:-1] + ',"stream":true}'
    header = f"x-prefiller-host-port: {stack.prefill_address}"
    json_type = ["-H", "content-type: application/json"]
    print("\nStill running. In another terminal:")
    for command in (
        ["curl", "-s", stack.url + PATH, *json_type, "-H", header, "-d", body],
        ["curl", "-sN", stack.url + PATH, *json_type, "-H", header, "-d", streamed],
        ["curl", "-s", stack.url + PATH, *json_type, "-d", body],
        ["curl", "-s", stack.url + "/ready"],
        ["curl", "-s", f"http://{stack.prefill_address}/mock/state"],
        ["curl", "-s", f"http://{stack.decode.host}:{stack.decode.port}/mock/state"],
    ):
        print("  " + shell(command))
    print("The sidecar's log follows. Ctrl-C stops it.", flush=True)


def follow_log(sidecar):
    shown = len(sidecar.lines)
    while sidecar.process.poll() is None:
        time.sleep(0.2)
        for line in sidecar.lines[shown:]:
            print("  " + line.text, flush=True)
            shown += 1
    raise StackError("the sidecar ended by itself")


def show_end(stack):
    stack.sidecar.stop()
    for line in stack.sidecar.lines:
        if line.event == "stopped":
            print("\nStopped. The sidecar counted: " + ", ".join(f"{k} {v}" for k, v in line.fields.items()))


def stop_on_signal(number, _frame):
    # Once is enough: what follows is the clean-up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(143)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="folder of the built programs")
    parser.add_argument("--engine", choices=list(ENGINE_ROLES), default="vllm", help="kind of engines")
    parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, stop_on_signal)
    signal.signal(signal.SIGTERM, stop_on_signal)
    try:
        with Stack(arguments.bin, ENGINE_SPEED, ENGINE_SPEED, engine=arguments.engine) as stack:
            print(f"prefill engine  http://{stack.prefill_address} ({arguments.engine})")
            print(f"decode engine   http://{stack.decode.host}:{stack.decode.port}")
            print(f"sidecar         {stack.url} -> decode engine, backend {arguments.engine}")
            Tour(stack).run()
            if arguments.keep:
                show_curl(stack)
                follow_log(stack.sidecar)
            show_end(stack)
    except KeyboardInterrupt:
        print("\nStopped.")
        return 0 if arguments.keep else 130
    except BrokenPipeError:
        return 1
    except (StackError, OSError, http.client.HTTPException, ValueError, KeyError) as error:
        print(f"demo: {type(error).__name__}: {error}" if not isinstance(error, StackError) else f"demo: {error}",
              file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
