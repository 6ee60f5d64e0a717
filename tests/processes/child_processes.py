"""Processes that a program starts and that never outlive it, however it ends. Standard library, and setpriv of util-linux.

The kernel kills such a process when the thread that started it ends. Threads of a test come and go, so all are started by one
that lives as long as the program: even a program that is killed leaves nothing, and nobody keeps open the pipe that its own
caller reads to the end. (In its first instant, while it is still setpriv, a child can miss that.) A program that ends in a
gentler way has also waited for them.
"""

import atexit
import concurrent.futures
import contextlib
import functools
import queue
import shutil
import subprocess
import threading


def start(command, **options):
    """subprocess.Popen(command, **options), but for the above. From any thread."""
    if shutil.which(command[0]) is None:  # or setpriv would say so, in the child's place
        raise FileNotFoundError(2, "no such program", command[0])
    return _starter().start_child(["setpriv", "--pdeathsig", "KILL", *command], options)


def end(child):
    """Kills it, should it be running, and waits for it."""
    if child.poll() is None:
        child.kill()
    child.wait()


@contextlib.contextmanager
def ended_on_failure(child):
    """For constructors, which nobody else can clean up after."""
    try:
        yield
    except BaseException:
        end(child)
        raise


class _Starter(threading.Thread):
    def __init__(self):
        super().__init__(name="starter", daemon=True)
        self._orders = queue.SimpleQueue()
        self._running = []
        atexit.register(self._end_all)
        self.start()

    def start_child(self, command, options):
        started = concurrent.futures.Future()
        self._orders.put((command, options, started))
        return started.result()

    def run(self):
        while True:
            command, options, started = self._orders.get()
            try:
                child = subprocess.Popen(command, **options)
            except BaseException as error:
                started.set_exception(error)
                continue
            self._running = [each for each in self._running if each.poll() is None] + [child]
            started.set_result(child)

    def _end_all(self):
        for child in reversed(self._running):
            end(child)


@functools.cache
def _starter():
    return _Starter()
