"""Envoy, the Endpoint Picker, prefill and decode engines with sidecars, and a renderer on loopback: for the demo and for
tests. Settings come from compose/settings; only addresses and ports are this run's own. Standard library only."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from handoff_stack import ENGINE_ROLES, PATIENCE, ROOT, Engine, LogLine, Sidecar, StackError, start

from child_processes import ended_on_failure
from reserved_ports import ReservedPort

SETTINGS = os.path.join(ROOT, "compose", "settings")
LOOPBACK = "127.0.0.1"


def settings_file(name):
    with open(os.path.join(SETTINGS, name), encoding="utf-8") as file:
        return file.read()


def env_settings(name):
    """NAME=value lines of a settings file."""
    lines = (line.strip() for line in settings_file(name).splitlines())
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def own_environment(settings):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "POD_"))}
    environment.update(settings)
    return environment


def envoy_config(places):
    """The settings' envoy.yaml with other values in the lines marked `# place: …`."""
    wanted = dict(places)

    def replaced(match):
        return f"{match[1]}{wanted.pop(match[2])}"

    text = re.sub(r"(?m)^(\s*(?:address|port_value): )\S+  # place: (.+)$", replaced, settings_file("envoy.yaml"))
    if wanted:
        raise StackError(f"envoy.yaml has no line for {', '.join(wanted)}")
    return text


def endpoints_text(places, engine):
    """The settings' endpoints.yaml with the addresses and ports of this run. `places`: name -> port, event ports."""
    blocks = re.split(r"(?m)^(?=  - name: )", settings_file("endpoints.yaml"))
    out = [blocks[0]]
    for block in blocks[1:]:
        name = re.match(r"  - name: (\S+)", block)[1]
        if name not in places:
            continue
        port, events, replay = places[name]
        block = re.sub(r"(?m)^(    address: ).*$", rf"\g<1>{LOOPBACK}", block)
        block = re.sub(r"(?m)^(    port: ).*$", rf"\g<1>{port}", block)
        if events:
            block += f"    kv_event_port: {events}\n    kv_replay_port: {replay}\n"
        else:
            block += "    kv_events: false\n"
        out.append(block)
    return "".join(out)


class Program:
    """A child whose standard error is lines of our log."""

    def __init__(self, command, environment, first_event):
        self.process = start(command, stderr=subprocess.PIPE, env=environment)
        self.lines = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        with ended_on_failure(self.process):
            self.first = self.wait_for_line(lambda line: line.event == first_event)
        if self.first is None:
            self.stop()
            said = " | ".join(line.text for line in self.lines[-5:])
            raise StackError(f"{os.path.basename(command[0])} did not start: {said or 'no output'}")

    def _read(self):
        for text in self.process.stderr:
            with self._changed:
                self.lines.append(LogLine(text))
                self._changed.notify_all()
        with self._changed:
            self.process.wait()
            self._changed.notify_all()

    def wait_for_line(self, wanted, since=0):
        """The first line, from number `since` on, that `wanted` accepts; None if there will be none."""
        end = time.monotonic() + PATIENCE
        with self._changed:
            while True:
                found = next((line for line in self.lines[since:] if wanted(line)), None)
                if found or time.monotonic() > end or self.process.poll() is not None:
                    return found
                self._changed.wait(0.2)

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)


class EndpointPicker(Program):
    def __init__(self, binary, settings):
        super().__init__([binary], own_environment(settings), "listening")
        self.port = int(self.first.fields["port"])
        self.health_port = int(self.first.fields["health_port"])

    def wait_until_workers_are_ready(self, names):
        for name in names:
            # Not endpoint_ready: discovery says that before the selectors know.
            if self.wait_for_line(lambda line, n=name: line.event == "endpoint" and line.fields.get("endpoint") == n and
                                  line.fields.get("state") == "schedulable") is None:
                raise StackError(f"the Endpoint Picker never saw {name} ready")


class Envoy:
    def __init__(self, binary, config, folder):
        self.log_path = os.path.join(folder, "envoy.log")
        config_path = os.path.join(folder, "envoy.yaml")
        with open(config_path, "w", encoding="utf-8") as file:
            file.write(config)
        self._log = open(self.log_path, "w", encoding="utf-8")
        command = [binary, "-c", config_path, "--use-dynamic-base-id", "--log-level", "warning", "--concurrency", "2",
                   "--drain-time-s", "1"]
        self.process = start(command, stdout=self._log, stderr=self._log)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(PATIENCE)
        self._log.close()


class FullStack:
    """with FullStack(bin, envoy) as stack: stack.url

    `engine` names the protocol; `flags` are further flags for all engines; `settings` further ones of the Endpoint Picker.
    """

    def __init__(self, bin_dir, envoy, engine="vllm", prefills=2, decodes=2, settings=None, flags=(), prefill_flags=(),
                 decode_flags=(), renderer_flags=(), sidecar_flags=()):
        self._bin = bin_dir
        self._envoy_binary = envoy
        self.engine = engine
        self._counts = (prefills, decodes)
        self._settings = dict(settings or {})
        self._flags = (tuple(flags) + tuple(prefill_flags), tuple(flags) + tuple(decode_flags))
        self._renderer_flags = tuple(renderer_flags)
        self._sidecar_flags = tuple(sidecar_flags)
        self._ports = contextlib.ExitStack()  # kept for parts that die and come back
        self._started = []
        self._replaced = []  # their lines may be wanted later
        self.prefills = []
        self.decodes = []
        self.sidecars = []

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="handoff-stack-")
        try:
            self._start_engines()
            self._start_picker()
            self._start_envoy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc):
        self.stop()

    def _path(self, program):
        return os.path.join(self._bin, program)

    def _keep(self, part):
        self._started.append(part)
        return part

    def _port(self):
        return str(self._ports.enter_context(ReservedPort(LOOPBACK)))

    def start_engine(self, settings, *flags):
        own = ["--config", os.path.join(SETTINGS, settings), "--port", self._port()]
        if settings != "renderer.ini":
            own += ["--kv-event-port", self._port(), "--kv-replay-port", self._port()]
        return self._keep(Engine(*own, *flags, binary=self._path("handoff-mock-engine")))

    def _start_engines(self):
        prefill_kind, decode_kind = ENGINE_ROLES[self.engine]
        events = {"sglang": ["--kv-event-format", "sglang-map", "--kv-replay-without-topic"]}.get(self.engine, [])
        tokenizer = ["--tokenizer-api", "sglang"] if self.engine == "sglang" else []
        self.renderer = self.start_engine("renderer.ini", *tokenizer, *self._renderer_flags)
        for _ in range(self._counts[0]):
            bootstrap = ["--disaggregation-bootstrap-port", self._port()] if self.engine == "sglang" else []
            self.prefills.append(self.start_engine("prefill-engine.ini", *prefill_kind, *events, *bootstrap, *self._flags[0]))
        sidecar_settings = env_settings("sidecar.env")
        for _ in range(self._counts[1]):
            engine = self.start_engine("decode-engine.ini", *decode_kind, *events, *self._flags[1])
            self.decodes.append(engine)
            flags = ["--port", self._port(), "--drain-delay-ms", sidecar_settings["DYN_SIDECAR_DRAIN_DELAY_MS"], *self._sidecar_flags]
            self.sidecars.append(self._keep(self._sidecar(engine, flags)))
        for sidecar in self.sidecars:
            sidecar.wait_until_ready()

    def _sidecar(self, engine, flags):
        return Sidecar(engine, *flags, binary=self._path("handoff-sidecar"), backend=self.engine)

    def _replace(self, old, new):
        self._started[self._started.index(old)] = new
        self._replaced.append(old)
        for group in (self.prefills, self.decodes, self.sidecars):
            group[:] = [new if each is old else each for each in group]
        return new

    def restart_engine(self, engine):
        """Ends an engine, if it has not ended, and starts the like on the same ports; the new one."""
        engine.stop()
        new = self._replace(engine, Engine(*engine.flags, binary=self._path("handoff-mock-engine")))
        if engine is self.renderer:
            self.renderer = new
        return new

    def restart_sidecar(self, sidecar, number=signal.SIGKILL):
        """Ends a sidecar, if it has not ended, and starts another in front of the same engine, on the same port."""
        if sidecar.process.poll() is None:
            sidecar.process.send_signal(number)
        sidecar.stop()
        engine = self.decodes[self.sidecars.index(sidecar)]
        return self._replace(sidecar, self._sidecar(engine, sidecar.flags))

    def places(self):
        """Of the endpoints that the Endpoint Picker is told about: name -> port, event port, replay port."""
        # SGLang's decode engines publish nothing.
        silent = self.engine == "sglang"
        found = {f"prefill-{i}": (e.port, e.kv_event_port, e.kv_replay_port) for i, e in enumerate(self.prefills)}
        for i, (sidecar, engine) in enumerate(zip(self.sidecars, self.decodes)):
            found[f"decode-{i}"] = (sidecar.port, None if silent else engine.kv_event_port, engine.kv_replay_port)
        return found

    def write_endpoints(self, places=None):
        """Replaces the endpoints file at once, as the Endpoint Picker expects it."""
        path = os.path.join(self.folder, "endpoints.yaml")
        with open(path + ".next", "w", encoding="utf-8") as file:
            file.write(endpoints_text(self.places() if places is None else places, self.engine))
        os.replace(path + ".next", path)
        return path

    def picker_settings(self):
        settings = env_settings("epp.env")
        settings["DYN_EPP_ENDPOINTS_FILE"] = self.write_endpoints()
        settings["DYN_EPP_TOKENIZER_SERVICE_URL"] = f"http://{LOOPBACK}:{self.renderer.port}"
        if self.engine == "sglang":
            settings["DYN_EPP_TOKENIZER_PROTOCOL"] = "sglang-renderer"
            settings["DYN_EPP_HEALTH_TIMEOUT_MS"] = "5000"  # its /health runs a generation and takes a second at least
        settings.update({"DYN_EPP_BIND": LOOPBACK, "DYN_EPP_DRAIN_DELAY_MS": "0", **self._picker_ports})
        settings.update(self._settings)
        return settings

    def _start_picker(self):
        self._picker_ports = {"DYN_EPP_GRPC_PORT": self._port(), "DYN_EPP_GRPC_HEALTH_PORT": self._port()}
        self.picker = self._keep(EndpointPicker(self._path("handoff-epp"), self.picker_settings()))
        self.picker.wait_until_workers_are_ready(self.places())

    def restart_picker(self, number=signal.SIGTERM):
        """Ends the Endpoint Picker and starts another on the same ports."""
        code = self.picker.stop(number)
        self._started.remove(self.picker)
        self._replaced.append(self.picker)
        self.picker = self._keep(EndpointPicker(self._path("handoff-epp"), self.picker_settings()))
        self.picker.wait_until_workers_are_ready(self.places())
        return code

    def _start_envoy(self):
        self.port, self.admin_port = int(self._port()), int(self._port())
        config = envoy_config({"admin address": LOOPBACK, "admin port": self.admin_port, "listen address": LOOPBACK,
                               "listen port": self.port, "Endpoint Picker's address": LOOPBACK,
                               "Endpoint Picker's port": self.picker.port})
        self.envoy = self._keep(Envoy(self._envoy_binary, config, self.folder))
        if not self._envoy_is_ready():
            with open(self.envoy.log_path, encoding="utf-8") as log:
                said = log.read().strip().splitlines()
            raise StackError(f"Envoy did not start: {said[-1] if said else 'no output'}")

    def _envoy_is_ready(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.envoy.process.poll() is None:
            if self.admin("/ready")[0] == 200 and b"::healthy" in self.admin("/clusters")[1]:
                return True
            time.sleep(0.05)
        return False

    def admin(self, path):
        connection = http.client.HTTPConnection(LOOPBACK, self.admin_port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()

    @property
    def url(self):
        return f"http://{LOOPBACK}:{self.port}"

    def connect(self):
        return http.client.HTTPConnection(LOOPBACK, self.port, timeout=PATIENCE)

    def post(self, path, body, headers=None):
        """status, headers, bytes"""
        connection = self.connect()
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def settled(self):
        """All engines' states once nothing is held any more."""
        return [engine.settled() for engine in (*self.prefills, *self.decodes)]

    def logs(self):
        """What every part has said, those that were replaced included."""
        parts = [part for part in (*self._replaced, *self._started) if hasattr(part, "lines")]
        said = [f"==== {type(part).__name__} on port {part.port}\n" + "\n".join(line.text for line in part.lines)
                for part in parts]
        with open(self.envoy.log_path, encoding="utf-8") as log:
            said.append("==== Envoy\n" + log.read())
        return "\n".join(said)

    def stop(self):
        while self._started:
            self._started.pop().stop()
        self._ports.close()
        shutil.rmtree(self.folder, ignore_errors=True)
