"""An official router as a process between the same two engines that the sidecar stands between."""

import http.client
import pathlib
import subprocess
import tempfile
import time

import child_processes
from reserved_ports import ReservedPort

VENV = pathlib.Path(__file__).parents[2] / "build/routers-venv"
PATIENCE = 60


def _common(port, metrics_port):
    return ["--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port),
            "--policy", "round_robin", "--disable-retries", "--disable-circuit-breaker", "--request-timeout-secs", "20",
            "--worker-startup-timeout-secs", "30", "--worker-startup-check-interval", "1"]


def _vllm(ports, prefill, decode):
    return [str(VENV / "bin/vllm-router"), "--vllm-pd-disaggregation", "--kv-connector", "nixl", *_common(*ports),
            "--prefill", f"http://127.0.0.1:{prefill.port}", "--decode", f"http://127.0.0.1:{decode.port}"]


def _sglang(ports, prefill, decode):
    bootstrap = prefill.call("GET", "/server_info").json["disaggregation_bootstrap_port"]
    return [str(VENV / "bin/python"), "-m", "sglang_router.launch_router", "--pd-disaggregation", *_common(*ports),
            "--prefill", f"http://127.0.0.1:{prefill.port}", str(bootstrap), "--decode", f"http://127.0.0.1:{decode.port}"]


class Router:
    """`engine`: whose router. Ready when the constructor returns."""

    def __init__(self, engine, prefill, decode):
        # It can't be asked which ports it chose.
        self._ports = [ReservedPort(), ReservedPort()]
        self.port = self._ports[0].number
        command = {"vllm": _vllm, "sglang": _sglang}[engine](self._ports, prefill, decode)
        self._log = tempfile.TemporaryFile()
        self._process = child_processes.start(command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(f"the router ended with {self._process.returncode}:\n{self.log()}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/readiness")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.1)
        raise RuntimeError(f"the router is not ready:\n{self.log()}")

    def log(self, last=4000):
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-last:]

    def stop(self):
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(PATIENCE)
        self._log.close()
        for port in self._ports:
            port.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()
