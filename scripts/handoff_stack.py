"""Two mock engines and a sidecar on loopback, for the demo and for client tests. Standard library only."""

import http.client
import os
import re
import shlex
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "mock_engine"))

from mock_engine_client import PATIENCE, MockEngine  # noqa: E402  (which knows where the next one is)

import child_processes  # noqa: E402

# Flags of a prefill and of a decode engine, by the sidecar's backend.
ENGINE_ROLES = {
    "vllm": (("--role", "producer"), ("--role", "consumer")),
    "trtllm": tuple(("--engine", "trtllm", "--role", role) for role in ("producer", "consumer")),
    "sglang": tuple(("--engine", "sglang", "--disaggregation-mode", mode) for mode in ("prefill", "decode")),
}
LOG_FIELD = re.compile(r'(\S+?)=("(?:[^"\\]|\\.)*"|\S*)')


class StackError(RuntimeError):
    """One line for the user."""


def start(command, **streams):
    """A child that Ctrl-C does not reach (we end it ourselves) and that ends when this process does."""
    try:
        return child_processes.start(command, start_new_session=True, text=True, **streams)
    except OSError as error:
        raise StackError(f"cannot start {command[0]}: {error.strerror}") from error


class Engine(MockEngine):
    options = {"start_new_session": True}

    def __init__(self, *flags, binary):
        self.flags = flags
        try:
            super().__init__(*flags, binary=binary)
        except (OSError, RuntimeError) as error:
            raise StackError(str(error)) from error

    def settled(self):
        """Its state once nothing is held any more; fails when that does not come about."""
        reply = self.control("GET", "/mock/wait?blocks_free=all&requests=0&leases=0&timeout_ms=10000")
        if reply.status != 200:
            raise StackError(f"engine on port {self.port} still holds something: {reply.body.decode()}")
        return reply.json


class LogLine:
    """time LEVEL event key=value …"""

    def __init__(self, text):
        self.text = text.rstrip("\n")
        parts = self.text.split(" ", 3)
        self.level = parts[1] if len(parts) > 1 else ""
        self.event = parts[2] if len(parts) > 2 else ""
        rest = parts[3] if len(parts) > 3 else ""
        self.fields = {key: value.strip('"') for key, value in LOG_FIELD.findall(rest)}


class Sidecar:
    """handoff-sidecar in front of `engine`, on ports that the system chooses."""

    def __init__(self, engine, *flags, binary, backend="vllm"):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DYN_")}
        self.flags = flags
        command = [binary, "--bind", "127.0.0.1", "--port", "0", "--admin-port", "auto", "--backend", backend,
                   "--decode-engine-port", str(engine.port), "--drain-delay-ms", "0", *flags]
        self.process = start(command, stderr=subprocess.PIPE, env=environment)
        self.lines = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        with child_processes.ended_on_failure(self.process):
            first = self.wait_for_line(lambda line: line.event == "listening", ends_with_process=True)
            if first is None:
                said = " ".join(line.text.strip() for line in self.lines)
                raise StackError(f"handoff-sidecar did not start: {said or 'no output'}")
        self.host = "127.0.0.1"
        self.port = int(first.fields["port"])
        self.admin_port = int(first.fields["admin_port"])

    def _read(self):
        for text in self.process.stderr:
            with self._changed:
                self.lines.append(LogLine(text))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for_line(self, wanted, ends_with_process=False):
        """The first line that `wanted` accepts, waited for; None if there will be none."""
        end = time.monotonic() + PATIENCE
        with self._changed:
            while True:
                for line in self.lines:
                    if wanted(line):
                        return line
                if time.monotonic() > end or (ends_with_process and self.process.poll() is not None):
                    return None
                self._changed.wait(0.05)

    def exchange(self, request_id):
        """The log line of one request."""
        line = self.wait_for_line(lambda x: x.event == "exchange" and x.fields.get("request_id") == request_id)
        if line is None:
            raise StackError(f"no log line of request {request_id}")
        return line

    def wait_until_ready(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
            try:
                connection.request("GET", "/ready")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.05)
        raise StackError("the sidecar did not become ready")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self.process.stderr.close()
        return code


class Stack:
    """with Stack(bin) as stack: stack.prefill, stack.decode, stack.sidecar"""

    def __init__(self, bin_dir, prefill_flags=(), decode_flags=(), sidecar_flags=(), engine="vllm"):
        self._bin = bin_dir
        self.engine = engine
        self._flags = (prefill_flags, decode_flags, sidecar_flags)
        self._started = []
        self.prefill = self.decode = self.sidecar = None

    def __enter__(self):
        prefill_flags, decode_flags, sidecar_flags = self._flags
        prefill_role, decode_role = ENGINE_ROLES[self.engine]
        mock = os.path.join(self._bin, "handoff-mock-engine")
        try:
            self.prefill = self._keep(Engine(*prefill_role, *prefill_flags, binary=mock))
            self.decode = self._keep(Engine(*decode_role, *decode_flags, binary=mock))
            sidecar = os.path.join(self._bin, "handoff-sidecar")
            self.sidecar = self._keep(Sidecar(self.decode, *sidecar_flags, binary=sidecar, backend=self.engine))
            self.sidecar.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc):
        self.stop()

    def _keep(self, part):
        self._started.append(part)
        return part

    @property
    def prefill_address(self):
        return f"{self.prefill.host}:{self.prefill.port}"

    @property
    def url(self):
        return f"http://{self.sidecar.host}:{self.sidecar.port}"

    def stop(self):
        while self._started:
            part = self._started.pop()
            part.stop()


def shell(command):
    return " ".join(shlex.quote(word) for word in command)
