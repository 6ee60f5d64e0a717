"""Who gets a reserved port: servers that ask for it by its number, one after another, and nobody else."""

import pathlib
import socket
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import reserved_ports  # noqa: E402
from reserved_ports import ReservedPort  # noqa: E402


def server(host, port, *options):
    made = socket.socket()
    for option in (socket.SO_REUSEADDR, *options):
        made.setsockopt(socket.SOL_SOCKET, option, 1)
    made.bind((host, port))
    made.listen()
    return made


def test_servers_come_and_go_on_it():
    with ReservedPort() as port:
        for option in ((), (socket.SO_REUSEPORT,), ()):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port.number))
            with server("127.0.0.1", port.number, *option) as listening:
                with socket.create_connection(("127.0.0.1", port.number)), listening.accept()[0]:
                    pass


def test_it_is_the_same_on_all_hosts():
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    with ReservedPort(*hosts) as port:
        for host in hosts:
            with server(host, port.number), pytest.raises(OSError):
                server(host, port.number)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "0.0.0.0"])
def test_nobody_else_gets_it(host):
    """As far as it can be asked for: what the system chooses from is what can be bound so."""
    with ReservedPort("127.0.0.1", "127.0.0.2") as port, socket.socket() as other:
        with pytest.raises(OSError):
            other.bind((host, port.number))


def test_a_port_that_is_taken_on_one_host_is_passed_over(monkeypatch):
    with ReservedPort("127.0.0.1") as port, server("127.0.0.2", port.number):
        number = port.number
        port.close()
        asked = []
        hold = ReservedPort._hold
        # The system chooses the taken one first.
        monkeypatch.setattr(ReservedPort, "_hold", staticmethod(
            lambda stack, host, wanted: asked.append(wanted) or hold(stack, host, wanted if len(asked) > 1 else number)))
        with ReservedPort("127.0.0.1", "127.0.0.2") as got:
            assert got.number != number and asked[:3] == [0, number, 0] and asked[-1] == got.number


def test_tries_have_an_end(monkeypatch):
    monkeypatch.setattr(reserved_ports, "TRIES", 3)
    with server("127.0.0.2", 0) as taken:
        number = taken.getsockname()[1]
        hold = ReservedPort._hold
        monkeypatch.setattr(ReservedPort, "_hold", staticmethod(lambda stack, host, wanted: hold(stack, host, wanted or number)))
        with pytest.raises(OSError, match="free on all"):
            ReservedPort("127.0.0.1", "127.0.0.2")
