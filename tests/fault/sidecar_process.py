"""The sidecar as a process under test, and what can be seen of it from outside."""

import os
import re
import signal
import time

import child_processes

# Must never expire in a healthy run, however slow the machine or the sanitizer.
PATIENCE = 60


class SidecarProcess:
    def __init__(self, binary, log_path, settings, backend="vllm"):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
        environment.update(
            DYN_SIDECAR_BIND="127.0.0.1",
            DYN_SIDECAR_PORT="0",
            DYN_SIDECAR_ADMIN_PORT="auto",
            DYN_SIDECAR_BACKEND=backend,
            **settings,
        )
        self.log_path = log_path
        with open(log_path, "wb") as log:
            self.process = child_processes.start([binary], env=environment, stderr=log)
        with child_processes.ended_on_failure(self.process):
            listening = self._wait_for_line(r"listening .*?\bport=(\d+) admin_port=(\d+)")
        self.port, self.admin_port = int(listening[1]), int(listening[2])

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def _wait_for_line(self, pattern):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            match = re.search(pattern, self.log())
            if match:
                return match
            if self.process.poll() is not None:
                raise AssertionError(f"the sidecar ended with {self.process.returncode}:\n{self.log()}")
            time.sleep(0.02)
        raise AssertionError(f"no line {pattern!r}:\n{self.log()}")

    def alive(self):
        return self.process.poll() is None

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_mib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) / 1024

    def wait_for_descriptors(self, limit):
        """Waits until at most `limit` are open; returns how many are."""
        end = time.monotonic() + PATIENCE
        while self.descriptors() > limit and time.monotonic() < end:
            time.sleep(0.05)
        return self.descriptors()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self):
        return self.process.wait(PATIENCE)

    def kill(self):
        if self.alive():
            self.process.kill()
            self.process.wait(PATIENCE)

    def totals(self):
        """The counters of the last line."""
        line = self._stopped_line()
        return {name: int(value) for name, value in re.findall(r"([\w.]+)=(\d+)", line)}

    def _stopped_line(self):
        lines = [line for line in self.log().splitlines() if " stopped" in line]
        assert lines, f"no line about the end:\n{self.log()[-3000:]}"
        return lines[-1].split(" stopped", 1)[1]
