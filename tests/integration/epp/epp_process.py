"""The Endpoint Picker as a process, with endpoints and tokens from the test."""

import json
import subprocess
import threading

import child_processes
import grpc
from reserved_ports import ReservedPort
from harness.limits import PATIENCE, wait_until
from harness.sidecar import BIN, LogLine, environment
from messages import health, introspection

DEFAULTS = {
    "DYN_EPP_BIND": "127.0.0.1",
    "DYN_EPP_GRPC_HEALTH_PORT": "0",
    "DYN_SECURE_SERVING": "false",
    "DYN_EPP_THREADS": "2",
    "DYN_EPP_TOPOLOGY_MODE": "disaggregated",
    "DYN_MODEL_NAME": "m",
    "DYN_KV_CACHE_BLOCK_SIZE": "16",
    "DYN_USE_KV_EVENTS": "false",
    "DYN_EPP_ENDPOINTS_FILE": "none",
    "DYN_EPP_TOKENIZER_PROTOCOL": "vllm-render",
    "DYN_EPP_TOKENIZER_SERVICE_URL": "http://127.0.0.1:1",
    "DYN_EPP_DRAIN_DELAY_MS": "0",
    "DYN_EPP_DRAIN_TIMEOUT_MS": "20000",
    "DYN_EPP_LOG_LEVEL": "debug",
    "DYN_EPP_DEBUG_REPORT": "true",
}


def unary(channel, method, request, reply):
    call = channel.unary_unary(method, request_serializer=type(request).SerializeToString,
                               response_deserializer=reply.FromString)
    return call(request, timeout=PATIENCE)


class Epp:
    """Its port of the streams stays its own until nobody needs this object any more, for one that takes its place."""

    def __init__(self, settings=None, program="scripted-epp"):
        self._own_port = ReservedPort()
        merged = {**DEFAULTS, "DYN_EPP_GRPC_PORT": str(self._own_port), **(settings or {})}
        self.process = child_processes.start([str(BIN / program)], env=environment(merged), stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        self.lines = []
        self._news = threading.Condition()
        threading.Thread(target=self._collect, daemon=True).start()
        with child_processes.ended_on_failure(self.process):
            listening = self.wait_log("listening")
        self.port = int(listening.fields["port"])
        self.health_port = int(listening.fields["health_port"])
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        self.health_channel = grpc.insecure_channel(f"127.0.0.1:{self.health_port}")

    def _collect(self):
        for text in self.process.stderr:
            with self._news:
                self.lines.append(LogLine(text.rstrip("\n")))
                self._news.notify_all()
        self.process.wait()  # its output ends before it does: who waits for that would not be told again
        with self._news:
            self._news.notify_all()

    def wait_log(self, name, **fields):
        def found():
            return next((line for line in self.lines if line.matches(name, fields)), None)
        with self._news:
            assert self._news.wait_for(lambda: found() or self.process.poll() is not None, PATIENCE)
            line = found()
        assert line, f"it ended with {self.process.returncode}: {self.lines}"
        return line

    def tell(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n"

    def endpoint(self, name, port, role, ready=True, address="127.0.0.1"):
        self.tell("endpoint", name, address, port, role, int(ready))

    def report(self):
        reply = unary(self.health_channel, "/handoff.epp.v1.Introspection/Report", introspection.ReportRequest(),
                      introspection.ReportReply)
        return json.loads(reply.json)

    def health(self, service, channel=None):
        reply = unary(channel or self.health_channel, "/grpc.health.v1.Health/Check",
                      health.HealthCheckRequest(service=service), health.HealthCheckResponse)
        return health.HealthCheckResponse.ServingStatus.Name(reply.status)

    def watch_health(self, service, channel):
        """Yields what it is told, as long as it is."""
        call = channel.unary_stream("/grpc.health.v1.Health/Watch", health.HealthCheckRequest.SerializeToString,
                                    health.HealthCheckResponse.FromString)
        for reply in call(health.HealthCheckRequest(service=service), timeout=PATIENCE):
            yield health.HealthCheckResponse.ServingStatus.Name(reply.status)

    def load(self, role):
        """Sums over the workers of a selector."""
        selector = next(each for each in self.report()["selectors"] if each["role"] == role)
        return {field: sum(worker[field] for worker in selector["workers"])
                for field in ("active_prefill_tokens", "active_decode_blocks", "active_requests")}

    def is_tidy(self):
        report = self.report()
        return (report["open_plans"] == 0 and report["planning"] == 0 and report["buffered_bytes"] == 0 and
                all(each["live_reservations"] == 0 and each["waiting"] == 0 and each["tracked_blocks"] == 0
                    for each in report["selectors"]))

    def wait_tidy(self):
        wait_until(self.is_tidy)

    def stop(self):
        # First: a client that nobody drives does not answer the ping of a stopping server, which then waits for it.
        self.channel.close()
        self.health_channel.close()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.stdin.close()
        return self.process.returncode
