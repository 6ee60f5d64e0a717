"""Fixtures: engines that are stopped at the end of the test."""

import pytest

from mock_engine_client import MockEngine  # which knows where the next one is

from reserved_ports import ReservedPort


@pytest.fixture
def start():
    running = []

    def launch(*flags):
        running.append(MockEngine(*flags))
        return running[-1]

    yield launch
    for engine in running:
        engine.stop()


@pytest.fixture
def port():
    """For engines that take each other's place."""
    with ReservedPort() as reserved:
        yield str(reserved)


@pytest.fixture
def pair(start):
    return start("--role", "producer"), start("--role", "consumer")
