"""What is measured for the Endpoint Picker: itself in each topology, the bare echo, and Envoy in front of either."""

import json
import os
import re
import sys
import time
import urllib.request

from . import RigError
from .envoy_config import envoy_configuration
from .machine import free_port
from .products import Running
from .program import require_tools

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(_ROOT, "scripts"))

from envoy_binary import find_envoy  # noqa: E402  pylint: disable=wrong-import-position

_TOOL_PORT = re.compile(r"listening port=(\d+)")
_EPP_PORT = re.compile(r"listening .*?\bport=(\d+)")
_MOCK_PORT = re.compile(r"listening http=127\.0\.0\.1:(\d+)")
_WORKERS_PER_ROLE = 4
_START_SECONDS = 20
_TOOLS = ("bench-ext-proc-load", "bench-ext-proc-echo", "bench-fake-engine", "bench-load", "bench-start")


class EppOptions:
    """Where everything is."""

    def __init__(self, bin_dir, epp=None, envoy=None, epp_env=None):
        self.bin_dir = os.path.abspath(bin_dir)
        self.epp = os.path.abspath(epp) if epp else self.tool("handoff-epp")
        self.mock_engine = self.tool("handoff-mock-engine")
        self.envoy = envoy or find_envoy()
        self.epp_env = dict(epp_env or {})
        require_tools(self.tool(tool) for tool in _TOOLS)

    def tool(self, name):
        return os.path.join(self.bin_dir, name)

    def missing(self):
        notes = {}
        if not os.access(self.epp, os.X_OK):
            notes["epp"] = f"no Endpoint Picker at {self.epp}"
        if not os.access(self.mock_engine, os.X_OK):
            notes["epp-tokens"] = f"no mock engine at {self.mock_engine}"
        if self.envoy is None:
            notes["envoy"] = "no envoy on PATH; `python3 scripts/envoy_binary.py` installs one"
        return notes


class Echo:
    def __init__(self, children, options, engines):
        self.children = children
        self.options = options
        self.engines = engines

    def command(self, port=0):
        return [self.options.tool("bench-ext-proc-echo"), "--port", str(port), "--destination",
                f"127.0.0.1:{self.engines[-1]}"]

    def env(self, port=0):  # pylint: disable=unused-argument
        return None

    def start(self, core):
        child = self.children.start("echo", self.command(), core=core)
        return Running(child, int(child.wait_for(_TOOL_PORT, _START_SECONDS).group(1)))


class Epp:
    """As in production but for TLS, which the bare echo has not either: two selectors (or one), info log, health probes.
    It is given one core, so it has one queue."""

    def __init__(self, children, options, engines, aggregated=False, tokenizer_port=None):
        self.children = children
        self.options = options
        self.engines = engines
        self.aggregated = aggregated
        self.tokenizer_port = tokenizer_port

    def command(self, port=0):  # pylint: disable=unused-argument
        return [self.options.epp]

    def env(self, port=0):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
        kept.update({
            "DYN_EPP_BIND": "127.0.0.1",
            "DYN_EPP_GRPC_PORT": str(port),
            "DYN_EPP_GRPC_HEALTH_PORT": "0",
            "DYN_SECURE_SERVING": "false",
            "DYN_EPP_TOPOLOGY_MODE": "aggregated" if self.aggregated else "disaggregated",
            "DYN_MODEL_NAME": "m",
            "DYN_KV_CACHE_BLOCK_SIZE": "16",
            "DYN_USE_KV_EVENTS": "false",
            "DYN_EPP_ENDPOINTS_FILE": self._endpoints_file(),
            "DYN_EPP_DRAIN_DELAY_MS": "0",
        })
        if self.tokenizer_port:
            kept["DYN_EPP_TOKENIZER_PROTOCOL"] = "vllm-render"
            kept["DYN_EPP_TOKENIZER_SERVICE_URL"] = f"http://127.0.0.1:{self.tokenizer_port}"
        kept.update(self.options.epp_env)
        return kept

    def _endpoints_file(self):
        lines = ["endpoints:"]
        for i, port in enumerate(self.engines):
            role = "prefill" if i < _WORKERS_PER_ROLE else "decode"
            given = "" if self.aggregated else f", role: {role}"
            lines.append(f"  - {{name: worker-{i}, address: 127.0.0.1, port: {port}{given}}}")
        name = "endpoints-aggregated.yaml" if self.aggregated else "endpoints.yaml"
        path = os.path.join(self.children.work_dir, name)
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
        return path

    def start(self, core):
        child = self.children.start("epp", self.command(), core=core, env=self.env())
        port = int(child.wait_for(_EPP_PORT, _START_SECONDS).group(1))
        # Its health probes found every worker.
        child.wait_for(re.compile(r"(?s)(state=schedulable.*?){%d}" % len(self.engines)), _START_SECONDS)
        return Running(child, port)


class Envoy:
    """One worker thread, on the same core as the ext_proc server behind it."""

    def __init__(self, children, options, engine_port):
        self.children = children
        self.options = options
        self.engine_port = engine_port

    def start(self, core, ext_proc_port=None):
        base = os.path.join(self.children.work_dir, f"envoy-{free_port()}")
        with open(base + ".json", "w") as file:
            json.dump(envoy_configuration(ext_proc_port, self.engine_port), file)
        child = self.children.start("envoy", [
            self.options.envoy, "-c", base + ".json", "--admin-address-path", base + ".admin", "--use-dynamic-base-id",
            "--concurrency", "1", "--log-level", "warning", "--disable-hot-restart"], core=core)
        return Running(child, self._front_port(child, base + ".admin"))

    @staticmethod
    def _front_port(child, admin_path):
        limit = time.monotonic() + _START_SECONDS
        while time.monotonic() < limit:
            if child.process.poll() is not None:
                raise RigError("envoy ended while it was starting")
            try:
                with open(admin_path) as file:
                    admin = file.read().strip()
                with urllib.request.urlopen(f"http://{admin}/ready", timeout=2) as reply:
                    if reply.read() != b"LIVE\n":
                        continue
                with urllib.request.urlopen(f"http://{admin}/listeners?format=json", timeout=2) as reply:
                    status = json.load(reply)["listener_statuses"][0]
                return status["local_address"]["socket_address"]["port_value"]
            except (OSError, ValueError, LookupError):
                time.sleep(0.02)
        raise RigError(f"envoy was not ready within {_START_SECONDS} s")


def start_tokenizer(children, options, core):
    child = children.start("tokenizer", [options.mock_engine, "--port", "0"], core=core)
    return int(child.wait_for(_MOCK_PORT, _START_SECONDS).group(1))


def start_engines(children, options, core):
    """Prefill workers first. The ports."""
    started = [children.start("engine", [options.tool("bench-fake-engine")], core=core)
               for _ in range(2 * _WORKERS_PER_ROLE)]
    return [int(child.wait_for(_TOOL_PORT, _START_SECONDS).group(1)) for child in started]
