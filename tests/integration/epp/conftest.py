"""Fixtures: an Endpoint Picker with two prefill and two decode workers, and the proof after each test that nothing is
booked any more.

    @pytest.mark.settings(DYN_EPP_STRICT_MODEL="true")   an Endpoint Picker of its own settings, shared within the file
"""

import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "processes"))

from epp_process import Epp  # noqa: E402
from gateway import Stream  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "settings(**environment): the Endpoint Picker's settings")


@pytest.fixture(scope="module")
def running():
    """All processes of a file, by settings."""
    started = {}
    yield started
    codes = [epp.stop() for epp in started.values()]
    assert all(code == 0 for code in codes), codes


@pytest.fixture
def epp(running, request):
    marker = request.node.get_closest_marker("settings")
    settings = dict(marker.kwargs) if marker else {}
    key = tuple(sorted(settings.items()))
    if key not in running:
        made = Epp(settings)
        for name, port, role in (("p0", 7001, "prefill"), ("p1", 7002, "prefill"), ("d0", 8001, "decode"),
                                 ("d1", 8002, "decode")):
            made.endpoint(name, port, role)
        made.tell("synced", 1)
        running[key] = made
    epp = running[key]
    epp.tell("tokenizer", "answer")
    yield epp
    epp.wait_tidy()


@pytest.fixture
def stream(epp):
    return Stream(epp.channel)


def chat(**members):
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], **members}).encode()
