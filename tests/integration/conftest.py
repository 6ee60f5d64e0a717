"""Fixtures: a prefill and a decode engine, a sidecar with the settings that a test asks for, and the proof after each
test that nothing was left behind.

    @pytest.mark.settings(DYN_SIDECAR_MAX_REQUEST_BYTES="1024")   a sidecar of its own settings, shared within the file
    @pytest.mark.untidy                                           the engines may be left with leases or damage
"""

import contextlib
import json
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "mock_engine"))

import mock_engine_client  # noqa: E402  (which knows where the next one is)

from reserved_ports import ReservedPort  # noqa: E402
from harness.http_client import wire  # noqa: E402
from harness.limits import PATIENCE  # noqa: E402
from harness.scripted_engine import ScriptedEngine  # noqa: E402
from harness.sidecar import BIN, Sidecar  # noqa: E402

mock_engine_client.PATIENCE = PATIENCE
MOCK = os.environ.get("HANDOFF_MOCK_ENGINE", str(BIN / "handoff-mock-engine"))
JSON = ("Content-Type", "application/json")


def pytest_configure(config):
    config.addinivalue_line("markers", "settings(**environment): the sidecar's settings")
    config.addinivalue_line("markers", "untidy: engines may be left with leases or counted damage")


class Rig:
    """One sidecar between two engines."""

    def __init__(self, sidecar, prefill, decode):
        self.sidecar = sidecar
        self.prefill = prefill
        self.decode = decode
        self.since = sidecar.mark()

    @property
    def hint(self):
        """The routing header."""
        if isinstance(self.prefill, ScriptedEngine):
            return ("x-prefiller-host-port", self.prefill.authority)
        return ("x-prefiller-host-port", f"127.0.0.1:{self.prefill.port}")

    def connect(self, **how):
        return self.sidecar.connect(**how)

    def bytes_of(self, body, path="/v1/completions", headers=(), disaggregated=True):
        """The bytes of a generation request."""
        body = body if isinstance(body, (bytes, list)) else json.dumps(body).encode()
        headers = [JSON, *headers] + ([self.hint] if disaggregated else [])
        return wire("POST", path, headers, body)

    def start(self, body, path="/v1/completions", headers=(), disaggregated=True):
        """Sends a generation request; the answer is the test's to read."""
        connection = self.connect()
        connection.send(self.bytes_of(body, path, headers, disaggregated))
        return connection

    def post(self, body, path="/v1/completions", headers=(), disaggregated=True):
        with self.start(body, path, headers, disaggregated) as connection:
            return connection.read_response("POST")

    def exchange_line(self, **fields):
        return self.sidecar.wait_log("exchange", self.since, **fields)

    def let_log_catch_up(self):
        """Log lines are written a little later; from here on they are of this test."""
        self.post(b"{}", "/mock/none", [("x-request-id", f"mark-{self.since}")], disaggregated=False)
        self.exchange_line(request_id=f"mark-{self.since}")
        self.since = self.sidecar.mark()

    def counters_at_end(self):
        """Stops the sidecar; the counters of its life."""
        return {name: int(value) for name, value in self.sidecar.stop().fields.items()}

    def legs(self, engine):
        """Requests that reached an engine, health checks left out."""
        log = engine.control("GET", "/mock/requests").json["requests"]
        return [entry for entry in log if entry["target"] != "/health"]

    def wait_tidy(self, started_over=False):
        """No request, block or lease is left on either engine. `started_over`: an engine may have closed a kept connection just
        as decode's leg was sent on it. Whether the handoff arrived is then unknown, so it is left to its lease."""
        self.decode.wait(requests=0, blocks_free="all", leases=0)
        self.prefill.wait(requests=0, blocks_free="all", leases=0)
        assert started_over or self.prefill.state()["leases"]["expired"] == 0, "only the lease's end gave the blocks back"


class SidecarPool:
    """Sidecars by settings, each started when first asked for and ended with the file."""

    def __init__(self):
        self._sidecars = {}

    def get(self, engine_port, settings):
        key = (engine_port, tuple(sorted(settings.items())))
        sidecar = self._sidecars.get(key)
        if sidecar is None or sidecar.process.poll() is not None:
            sidecar = self._sidecars[key] = Sidecar(engine_port, settings)
        return sidecar

    def stop(self):
        for sidecar in self._sidecars.values():
            if sidecar.process.poll() is None:
                sidecar.stop()


@pytest.fixture(scope="module")
def sidecar_pool():
    pool = SidecarPool()
    yield pool
    pool.stop()


@pytest.fixture(scope="module")
def engine_pairs():
    """Pairs of engines by name: tests that leave leases behind share no engine with those that must not."""
    with contextlib.ExitStack() as stack:
        pairs = {}

        def get(name):
            if name not in pairs:
                pairs[name] = tuple(stack.enter_context(mock_engine_client.MockEngine("--role", role, binary=MOCK))
                                    for role in ("producer", "consumer"))
            return pairs[name]

        yield get


@pytest.fixture
def settings(request):
    marker = request.node.get_closest_marker("settings")
    return dict(marker.kwargs) if marker else {}


@pytest.fixture
def rig(request, engine_pairs, sidecar_pool, settings):
    """A sidecar between two mock engines, shared by the tests of a file."""
    untidy = request.node.get_closest_marker("untidy") is not None
    prefill, decode = engine_pair = engine_pairs("untidy" if untidy else "tidy")
    rig = Rig(sidecar_pool.get(decode.port, settings), prefill, decode)
    if "exchange_line" in request.function.__code__.co_names:
        rig.let_log_catch_up()
    for engine in engine_pair:
        engine.control("POST", "/mock/reset")
    yield rig
    if rig.sidecar.process.poll() is None:
        rig.sidecar.check_undamaged()
    for engine in engine_pair:
        engine.control("DELETE", "/mock/faults")
    if untidy:
        return
    rig.wait_tidy()
    state = decode.state()
    damage = {name: state[name] for name in ("deaths", "hung_incomplete", "wrong_text", "zero_token", "misrouted")}
    assert not any(damage.values()) and prefill.state()["deaths"] == 0, damage


@pytest.fixture
def scripted(settings):
    """A sidecar between two engines that the test plays."""
    with ScriptedEngine() as prefill, ScriptedEngine() as decode, \
            Sidecar(decode.port, {"DYN_SIDECAR_READY_INTERVAL_MS": "3600000", **settings}) as sidecar:
        sidecar.wait_log("engine_health", healthy="true")
        yield Rig(sidecar, prefill, decode)
        if sidecar.process.poll() is None:
            prefill.stop()
            decode.stop()
            sidecar.stop()
        sidecar.check_undamaged()


@pytest.fixture
def own(request):
    """Starts processes that a test does not share: own.sidecar(port, settings), own.engine(flags), own.scripted(), own.port()."""
    class Own:
        def __init__(self, stack):
            self._stack = stack

        def sidecar(self, engine_port, settings=None, arguments=()):
            return self._stack.enter_context(Sidecar(engine_port, settings, arguments))

        def engine(self, *flags):
            return self._stack.enter_context(mock_engine_client.MockEngine(*flags, binary=MOCK))

        def port(self):
            """A number for servers of the test, one after another; nobody else gets it."""
            return self._stack.enter_context(ReservedPort()).number

        def scripted(self, **how):
            return self._stack.enter_context(ScriptedEngine(**how))

        def rig(self, settings=None, prefill=(), decode=()):
            """Two mock engines with these flags and a sidecar."""
            producer = self.engine("--role", "producer", *prefill)
            consumer = self.engine("--role", "consumer", *decode)
            return Rig(self.sidecar(consumer.port, settings), producer, consumer)

    with contextlib.ExitStack() as stack:
        yield Own(stack)


@pytest.fixture
def front(shared_front):
    """Like `scripted`, but shared within the file: for requests that reach no engine, or one at a time."""
    yield shared_front
    for engine in (shared_front.prefill, shared_front.decode):
        while not engine.exchanges.empty():  # of a test that failed
            engine.exchanges.get().close()


@pytest.fixture(scope="module")
def shared_front():
    with ScriptedEngine() as prefill, ScriptedEngine() as decode, \
            Sidecar(decode.port, {"DYN_SIDECAR_READY_INTERVAL_MS": "3600000"}) as sidecar:
        sidecar.wait_log("engine_health", healthy="true")
        yield Rig(sidecar, prefill, decode)
        prefill.stop()
        decode.stop()
        sidecar.stop()
