"""The proxies under test. Each one starts between clients and one fake engine, on one core."""

import os
import re
import resource
import shutil
import socket
import time

from . import RigError
from .children import tail
from .machine import free_port
from .program import require_tools

_TOOL_PORT = re.compile(r"listening port=(\d+)")
# The sidecar's first log line names its port; the wording and the format of the log may change.
_SIDECAR_PORT = re.compile(r"listening.*?\bport\"?\s*[=:]\s*\"?(\d+)", re.IGNORECASE)


class Running:
    """A started product: where to send, which processes to watch."""

    def __init__(self, child, port):
        self.child = child
        self.port = port

    @property
    def pids(self):
        return [self.child.pid] + [pid for pid, _ in self.child.descendants()]


def wait_until_answering(port, child, seconds=10):
    """One POST must come back with 200, so that a measurement never starts on a cold or broken path."""
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":1}'
    request = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
               f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body
    limit = time.monotonic() + seconds
    last = "no connection"
    while time.monotonic() < limit:
        if child.process.poll() is not None:
            raise RigError(f"{child.name} ended while it was starting:\n{tail(child.stderr_path)}")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
                connection.sendall(request)
                answer = connection.recv(4096)
            if answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
                return
            last = answer.split(b"\r\n", 1)[0].decode(errors="replace") or "an empty answer"
        except OSError as error:
            last = str(error)
        time.sleep(0.02)
    raise RigError(f"{child.name} on port {port} does not answer a POST with 200 within {seconds} s: {last}\n"
                   f"{tail(child.stderr_path)}")


class Product:
    """`command` and `env` describe a start on a given port; port 0 lets the product choose where it can."""

    def __init__(self, name, children, options):
        self.name = name
        self.children = children
        self.options = options

    chooses_port = False
    port_pattern = None
    # What proves a handoff: the decode engine's counter of them, and whether both legs have an id in common.
    taken_counter = "handoffs_taken"
    has_pairing_id = False
    pd_headers = ()

    def command(self, port, engine_port, single_process=False):
        raise NotImplementedError

    def env(self, port, engine_port):  # pylint: disable=unused-argument
        return None

    def start(self, engine_port, core, wrapper=(), start_seconds=10):
        port = 0 if self.chooses_port else free_port()
        child = self.children.start(self.name, list(wrapper) + self.command(port, engine_port, bool(wrapper)),
                                    core=core, env=self.env(port, engine_port))
        try:
            if self.chooses_port:
                port = int(child.wait_for(self.port_pattern, start_seconds).group(1))
            wait_until_answering(port, child, start_seconds)
        except RigError:
            self.children.stop(child)
            raise
        return Running(child, port)

    def write_config(self, name, text):
        path = os.path.join(self.children.work_dir, name)
        with open(path, "w") as file:
            file.write(text)
        return path


class Relay(Product):
    chooses_port = True
    port_pattern = _TOOL_PORT

    def command(self, port, engine_port, single_process=False):
        return [self.options.tool("bench-relay"), "--port", str(port), "--upstream-port", str(engine_port)]


class TwoLegRelay(Relay):
    """The floor of a P/D request: the same sends and receives, nothing else. `at_once`: of protocols whose legs
    start together."""

    def __init__(self, name, children, options, at_once=False):
        super().__init__(name, children, options)
        self.at_once = at_once

    def command(self, port, engine_port, single_process=False):
        return [self.options.tool("bench-two-leg-relay"), "--port", str(port), "--upstream-port", str(engine_port),
                "--at-once", str(int(self.at_once))]


class Nginx(Product):
    """`body_in_memory`: a client body buffer large enough for every body sent, instead of the default 16 KB with
    a temporary file behind it."""

    def __init__(self, name, children, options, body_in_memory):
        super().__init__(name, children, options)
        self.body_in_memory = body_in_memory

    def command(self, port, engine_port, single_process=False):
        prefix = self.children.work_dir
        user = "user root root;" if os.geteuid() == 0 else ""
        body = "client_body_buffer_size 512k;" if self.body_in_memory else ""
        master = "master_process off;" if single_process else ""
        folders = "\n".join(f"  {kind}_temp_path {prefix}/{self.name}-{kind};"
                            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        # keepalive_requests: the default would close every connection after 1,000 requests.
        config = self.write_config(f"{self.name}-{port}.conf", f"""daemon off;
{master}
{user}
worker_processes 1;
worker_rlimit_nofile {self.options.fd_limit};
pid {prefix}/{self.name}-{port}.pid;
error_log stderr error;
events {{
  worker_connections {min(8192, self.options.fd_limit - 64)};
}}
http {{
  access_log off;
{folders}
  {body}
  client_max_body_size 0;
  keepalive_timeout 600s;
  keepalive_requests 1000000000;
  tcp_nodelay on;
  upstream engine {{
    server 127.0.0.1:{engine_port};
    keepalive 1024;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
""")
        return [self.options.nginx, "-p", prefix, "-e", "stderr", "-c", config]


class GoStandIn(Product):
    """A proxy from Go's standard library that edits bodies as trees, for both legs."""
    chooses_port = True
    port_pattern = _TOOL_PORT

    def command(self, port, engine_port, single_process=False):
        return [self.options.tool("bench-go-stand-in"), "--port", str(port), "--upstream-port", str(engine_port)]

    def env(self, port, engine_port):
        return {**os.environ, "GOMAXPROCS": "1"}


class HAProxy(Product):
    def command(self, port, engine_port, single_process=False):
        # It refuses to start where maxconn needs more descriptors than allowed.
        connections = min(4096, int(self.options.fd_limit / 2.5))
        config = self.write_config(f"{self.name}-{port}.cfg", f"""global
  nbthread 1
  maxconn {connections}
defaults
  mode http
  maxconn {connections}
  timeout connect 10s
  timeout client 600s
  timeout server 600s
  timeout http-keep-alive 600s
  option http-no-delay
  http-reuse always
frontend front
  bind 127.0.0.1:{port} backlog 4096
  default_backend engine
backend engine
  server engine 127.0.0.1:{engine_port}
""")
        return [self.options.haproxy, "-db", "-q", "-f", config]


class Sidecar(Product):
    chooses_port = True
    port_pattern = _SIDECAR_PORT

    def __init__(self, name, children, options, settings=None, **proof):
        super().__init__(name, children, options)
        self.settings = settings or {}
        self.has_pairing_id = proof.get("has_pairing_id", False)
        self.taken_counter = proof.get("taken_counter", "handoffs_taken")
        self.pd_headers = proof.get("pd_headers", ())

    def command(self, port, engine_port, single_process=False):
        return [self.options.sidecar, "--threads", "1"] + self.options.sidecar_args

    def env(self, port, engine_port):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
        kept.update({
            "DYN_SIDECAR_BIND": "127.0.0.1",
            "DYN_SIDECAR_PORT": str(port),
            "DYN_SIDECAR_ADMIN_PORT": "0",
            "DYN_SIDECAR_BACKEND": "vllm",
            "DYN_SIDECAR_DRAIN_DELAY_MS": "0",
            "DYN_DECODE_ENGINE_PORT": str(engine_port),
        })
        kept.update(self.settings)
        kept.update(self.options.sidecar_env)
        return kept


def protocol_products(children, options, prefill_port):
    """The sidecar with the other P/D protocols: their names, and where which handoff shows."""
    vllm, trtllm = "DYN_SIDECAR_VLLM_CONNECTOR", "DYN_SIDECAR_TRTLLM_SCHEDULE"
    pushes = ("x-bench-transfer: push",)
    return [
        Sidecar("sidecar-sglang", children, options, {"DYN_SIDECAR_BACKEND": "sglang"}, has_pairing_id=True),
        Sidecar("sidecar-trtllm", children, options,
                {"DYN_SIDECAR_BACKEND": "trtllm", trtllm: "context-first"}, has_pairing_id=True),
        Sidecar("sidecar-trtllm-generation-first", children, options,
                {"DYN_SIDECAR_BACKEND": "trtllm", trtllm: "generation-first"}, has_pairing_id=True),
        Sidecar("sidecar-mooncake", children, options,
                {vllm: "mooncake", "DYN_SIDECAR_VLLM_MOONCAKE_BOOTSTRAP_PORT": str(prefill_port)}, has_pairing_id=True),
        # Its handoff is on a disk: decode's request is the client's.
        Sidecar("sidecar-shared-storage", children, options, {vllm: "shared-storage"}, taken_counter="plain_answers"),
        Sidecar("sidecar-offloading", children, options, {vllm: "offloading"}, has_pairing_id=True),
        Sidecar("sidecar-push", children, options, {vllm: "nixl-push"}, pd_headers=pushes),
        Sidecar("sidecar-push-at-once", children, options,
                {vllm: "nixl-push", "DYN_SIDECAR_VLLM_PUSH_ORDER": "concurrent"}, pd_headers=pushes),
    ]


class Options:
    """Where everything is. `products` lists what can be measured here; `missing` says why something cannot."""

    def __init__(self, bin_dir, sidecar=None, sidecar_args=(), sidecar_env=None):
        self.bin_dir = os.path.abspath(bin_dir)
        self.sidecar = os.path.abspath(sidecar) if sidecar else os.path.join(self.bin_dir, "handoff-sidecar")
        self.sidecar_args = list(sidecar_args)
        self.sidecar_env = dict(sidecar_env or {})
        self.nginx = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
        self.haproxy = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self.fd_limit = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.fd_limit, hard))
        require_tools(self.tool(tool) for tool in
                      ("bench-relay", "bench-two-leg-relay", "bench-fake-engine", "bench-load", "bench-sse", "bench-idle",
                       "bench-start"))

    def tool(self, name):
        return os.path.join(self.bin_dir, name)

    def missing(self):
        notes = {}
        if not os.access(self.sidecar, os.X_OK):
            notes["sidecar"] = f"no sidecar binary at {self.sidecar}"
        if not self.nginx:
            notes["nginx"] = "nginx is not installed"
        if not self.haproxy:
            notes["haproxy"] = "haproxy is not installed"
        if not os.access(self.tool("bench-go-stand-in"), os.X_OK):
            notes["go"] = "bench-go-stand-in is not built, so there is no S2 and no P2"
        return notes

    def products(self, children, prefill_port):
        every = [
            Relay("relay", children, self),
            TwoLegRelay("two-leg-relay", children, self),
            TwoLegRelay("two-leg-relay-at-once", children, self, at_once=True),
            Nginx("nginx", children, self, body_in_memory=True),
            Nginx("nginx-default", children, self, body_in_memory=False),
            HAProxy("haproxy", children, self),
            GoStandIn("go-stand-in", children, self),
            Sidecar("sidecar", children, self),
        ] + protocol_products(children, self, prefill_port)
        missing = self.missing()
        return {product.name: product for product in every if product.name.split("-")[0] not in missing}
