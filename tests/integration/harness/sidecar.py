"""The sidecar as a process."""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import threading

import child_processes
from reserved_ports import ReservedPort

from .http_client import Connection
from .limits import PATIENCE

BIN = pathlib.Path(os.environ.get("HANDOFF_BIN_DIR", pathlib.Path(__file__).parents[3] / "build/release/bin"))
PROGRAM = str(BIN / "handoff-sidecar")

DEFAULTS = {
    "DYN_SIDECAR_BIND": "127.0.0.1",
    "DYN_SIDECAR_ADMIN_PORT": "auto",
    "DYN_SIDECAR_BACKEND": "vllm",
    "DYN_SIDECAR_THREADS": "1",
    "DYN_SIDECAR_DRAIN_DELAY_MS": "0",
}

_FIELD = re.compile(r'([\w.\-]+)=("(?:[^"\\]|\\.)*"|\S*)')
_DAMAGE = re.compile(r"AddressSanitizer|ThreadSanitizer|LeakSanitizer|runtime error:|Assertion|terminate called")


def environment(settings):
    """A child's environment: nothing of ours but what makes programs run. None removes a default."""
    kept = {name: value for name, value in os.environ.items()
            if name in ("PATH", "HOME", "LANG", "TMPDIR") or name.endswith("SAN_OPTIONS")}
    kept.update(settings)
    return {name: value for name, value in kept.items() if value is not None}


def run(*arguments, settings=None):
    """Runs the program to its end, for starts that are refused."""
    return subprocess.run([PROGRAM, *arguments], env=environment(settings or {}), capture_output=True, text=True,
                          timeout=PATIENCE, check=False)


class LogLine:
    def __init__(self, text):
        self.text = text
        head, _, rest = text.partition(" ")
        self.time = head
        self.level, _, rest = rest.partition(" ")
        self.name = rest.split(" ", 1)[0]
        self.fields = {}
        for name, value in _FIELD.findall(rest):
            self.fields[name] = shlex.split(value)[0] if value.startswith('"') and len(value) > 2 else value.strip('"')

    def matches(self, name, fields):
        return self.name == name and all(self.fields.get(key) == str(value) for key, value in fields.items())

    def __repr__(self):
        return self.text


class Sidecar:
    """Its port stays its own until nobody needs this object any more: clients of one that has stopped meet nobody else."""

    def __init__(self, engine_port, settings=None, arguments=()):
        merged = dict(DEFAULTS, DYN_DECODE_ENGINE_PORT=str(engine_port))
        merged.update(settings or {})
        self._own_port = ReservedPort(merged["DYN_SIDECAR_BIND"])
        merged.setdefault("DYN_SIDECAR_PORT", str(self._own_port))
        self.host = merged["DYN_SIDECAR_BIND"].replace("0.0.0.0", "127.0.0.1")
        self.process = child_processes.start([PROGRAM, *arguments], env=environment(merged), stderr=subprocess.PIPE,
                                             stdout=subprocess.DEVNULL, text=True, errors="replace")
        self.lines = []
        self.ended = False
        self._news = threading.Condition()
        threading.Thread(target=self._collect, daemon=True).start()
        with child_processes.ended_on_failure(self.process):
            listening = self.wait_log("listening")
        self.port = int(listening.fields["port"])
        self.admin_port = int(listening.fields["admin_port"])

    def _collect(self):
        for text in self.process.stderr:
            with self._news:
                self.lines.append(LogLine(text.rstrip("\n")))
                self._news.notify_all()
        with self._news:
            self.ended = True
            self._news.notify_all()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)

    def connect(self, host=None, **how):
        return Connection(self.port, host or self.host, **how)

    def connect_admin(self):
        return Connection(self.admin_port, self.host)

    def mark(self):
        with self._news:
            return len(self.lines)

    def log_text(self):
        with self._news:
            return "\n".join(line.text for line in self.lines)

    def wait_log(self, name, since=0, **fields):
        """The first line of that name with these fields, from line `since` on."""
        def find():
            return next((line for line in self.lines[since:] if line.matches(name, fields)), None)

        with self._news:
            if not self._news.wait_for(lambda: find() or self.ended, PATIENCE) or not find():
                raise AssertionError(f"no {name} {fields} in:\n" + "\n".join(line.text for line in self.lines[since:]))
            return find()

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait_exit(self):
        code = self.process.wait(PATIENCE)
        with self._news:
            assert self._news.wait_for(lambda: self.ended, PATIENCE)
        return code

    def stop(self):
        """Ends it in the ordinary way, and checks that it went well. Returns the final log line."""
        if self.process.poll() is None:
            self.signal()
        code = self.wait_exit()
        self.check_undamaged()
        assert code == 0, f"exit code {code}:\n{self.log_text()}"
        return self.wait_log("stopped")

    def check_undamaged(self):
        text = self.log_text()
        assert not _DAMAGE.search(text), text

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def open_sockets(self):
        folder = f"/proc/{self.process.pid}/fd"
        links = []
        for name in os.listdir(folder):
            try:
                links.append(os.readlink(f"{folder}/{name}"))
            except OSError:
                continue
        return sum(link.startswith("socket:") for link in links)
