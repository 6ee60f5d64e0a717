"""Starts handoff-mock-engine processes for tests. Standard library only."""

import http.client
import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "processes"))

import child_processes  # noqa: E402
from reserved_ports import ReservedPort  # noqa: E402

FIRST_LINE = re.compile(
    r"handoff-mock-engine listening http=(\S+):(\d+) side_channel=(\S+):(\d+) role=(\S+) engine_id=(\S+) control=(\S+):(\d+)"
    r"(?: engine=\S+)?(?: kv_events=(\d+))?(?: kv_replay=(\d+))?(?: bootstrap=(\d+))?"
)
# Must never expire in a healthy run, however slow the machine.
PATIENCE = 60


class Reply:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    def events(self):
        """The data of each server-sent event, [DONE] left out."""
        out = []
        for block in self.body.decode().split("\n\n"):
            for line in block.split("\n"):
                if line.startswith("data: ") and line != "data: [DONE]":
                    out.append(json.loads(line[6:]))
        return out


class MockEngine:
    """Its port stays its own until nobody needs this object any more: for an engine that takes its place, and so that clients
    of one that has died meet nobody else."""

    options = {}  # of the process, as subprocess.Popen has them

    def __init__(self, *flags, binary=None):
        binary = binary or os.environ.get("HANDOFF_MOCK_ENGINE", "build/release/bin/handoff-mock-engine")
        if "--port" not in flags:
            host = flags[flags.index("--bind") + 1] if "--bind" in flags else "127.0.0.1"
            self._own_port = ReservedPort(host)
            flags = (*flags, "--port", str(self._own_port))
        self.process = child_processes.start([binary, *flags], stdout=subprocess.PIPE, text=True, **self.options)
        with child_processes.ended_on_failure(self.process):
            if not self._read_first_line():
                raise RuntimeError(f"{binary} did not start (exit code {self.process.wait(PATIENCE)})")

    def _read_first_line(self):
        """Where the started process listens; False if its first line is another one."""
        match = FIRST_LINE.match(self.process.stdout.readline())
        if not match:
            return False
        self.host = match[1].strip("[]")
        self.port = int(match[2])
        self.side_channel_port = int(match[4])
        self.engine_id = match[6]
        self.control_port = int(match[8])
        self.kv_event_port = int(match[9]) if match[9] else None
        self.kv_replay_port = int(match[10]) if match[10] else None
        self.bootstrap_port = int(match[11]) if match[11] else None
        return True

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        return code

    def connect(self, port=None):
        return http.client.HTTPConnection(self.host, port or self.port, timeout=PATIENCE)

    def call(self, method, path, body=None, headers=None, port=None):
        connection = self.connect(port)
        try:
            headers = dict(headers or {})
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
                headers.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def post(self, path, body, headers=None):
        return self.call("POST", path, body, headers)

    def control(self, method, path, body=None):
        return self.call(method, path, body, port=self.control_port)

    def state(self):
        return self.control("GET", "/mock/state").json

    def wait(self, **conditions):
        """Conditions as in /mock/wait; a double underscore stands for the dot."""
        query = "&".join(f"{name.replace('__', '.')}={value}" for name, value in conditions.items())
        reply = self.control("GET", f"/mock/wait?{query}&timeout_ms={PATIENCE * 1000}")
        assert reply.status == 200, reply.body
        return reply.json

    def times_up(self, waits=True, leases=True):
        """Ends what only the engine's time-outs would end, until it is called with False: its waits for a peer, and its leases."""
        reply = self.control("POST", "/mock/times_up", {"waits": waits, "leases": leases})
        assert reply.status == 200, reply.body

    def fault(self, **rule):
        reply = self.control("POST", "/mock/faults", rule)
        assert reply.status == 200, reply.body

    def expect(self, path, body):
        return self.control("POST", "/mock/expect", {"path": path, "body": body}).json
