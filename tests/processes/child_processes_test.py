"""Programs that end in every way: what they started is gone, and nothing holds the pipe that they wrote to."""

import os
import pathlib
import select
import signal
import subprocess
import sys
import threading

import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

import child_processes  # noqa: E402

PATIENCE = 60
PROGRAM = """
import os, signal, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
from child_processes import ended_on_failure, start

class Pair:
    def __init__(self):
        self.first = self.started()
        self.second = self.started()
        print(self.first.pid, self.second.pid, flush=True)
        sys.stdin.readline()
        ending()

    def started(self):
        child = start(["sh", "-c", "echo here; exec sleep 600"], stdout=subprocess.PIPE, text=True)
        child.stdout.readline()  # as for the line that says where a server listens
        return child

def ending():
    {ending}

{where}
"""
IN_MAIN = "Pair()"
IN_THREAD = "thread = threading.Thread(target=Pair); thread.start(); thread.join(); sys.exit(1)"


def has_ended(process, seconds=0):
    """Of a file descriptor of a process, be it another's child."""
    return bool(select.select([process], [], [], seconds)[0])


@pytest.mark.parametrize("where", [IN_MAIN, IN_THREAD], ids=["main", "thread"])
@pytest.mark.parametrize("ending, code", [
    ("raise RuntimeError('in a constructor')", 1), ("raise KeyboardInterrupt", None), ("sys.exit(1)", 1), ("os._exit(7)", 7),
    ("os.kill(os.getpid(), signal.SIGTERM); signal.pause()", -signal.SIGTERM), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
], ids=["exception", "interrupt", "exit", "at-once", "terminated", "killed"])
def test_nothing_outlives_a_program(ending, code, where):
    program = subprocess.Popen([sys.executable, "-c", PROGRAM.format(ending=ending, where=where), str(HERE)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    children = []
    try:
        children = [os.pidfd_open(int(word)) for word in program.stdout.readline().split()]
        assert [has_ended(child) for child in children] == [False, False]
        program.communicate("go on\n", timeout=PATIENCE)  # to the end of its output, which its children share
        assert program.returncode == code if code is not None else program.returncode != 0
        assert all(has_ended(child, PATIENCE) for child in children)
    finally:
        for child in children:
            if not has_ended(child):
                signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)
        program.kill()
        program.wait()


def test_a_child_outlives_the_thread_that_wanted_it():
    started = []
    thread = threading.Thread(target=lambda: started.append(
        child_processes.start(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)))
    thread.start()
    thread.join()
    echo, _ = started[0].communicate("still there", timeout=PATIENCE)
    assert (echo, started[0].returncode) == ("still there", 0)


def test_a_constructor_that_fails_ends_what_it_has_started():
    child = child_processes.start(["sleep", "600"])
    with pytest.raises(KeyError):
        with child_processes.ended_on_failure(child):
            raise KeyError
    assert child.returncode == -signal.SIGKILL


def test_a_program_that_is_not_there_is_told():
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        child_processes.start(["/no-such-program"])
