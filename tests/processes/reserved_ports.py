"""Ports that nobody gets by chance, for servers that are told their port: because it is the same on several hosts, because
they end and come back, or because they can't say which one the system chose. Standard library only."""

import contextlib
import socket

TRIES = 100


class ReservedPort:
    """A port of `hosts`. Servers with SO_REUSEADDR, as all of ours are, can listen on it by its number, one after another; as
    long as none does, connections are refused. Nobody who lets the system choose is given it, be it on a wildcard address.

    How: a socket that is bound and does not listen. It is bound before it has SO_REUSEADDR, so that it meets no other's.
    """

    def __init__(self, *hosts):
        first, *others = hosts or ("127.0.0.1",)
        for _ in range(TRIES):
            with contextlib.ExitStack() as stack:
                self.number = self._hold(stack, first, 0)
                try:
                    for host in others:
                        self._hold(stack, host, self.number)
                except OSError:  # in use there
                    continue
                self._sockets = stack.pop_all()
                return
        raise OSError(f"no port is free on all of {hosts}")

    @staticmethod
    def _hold(stack, host, port):
        held = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
        held.bind((host, port))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return held.getsockname()[1]

    def __str__(self):
        return str(self.number)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self._sockets.close()
