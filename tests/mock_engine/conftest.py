"""Fixtures: engines that are stopped at the end of the test."""

import pytest

from mock_engine_client import MockEngine


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
def pair(start):
    return start("--role", "producer"), start("--role", "consumer")
