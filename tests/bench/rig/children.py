"""Child processes: pinned to a core, output to files, ended by pid whatever happens."""

import ctypes
import os
import signal
import subprocess
import time

from . import RigError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _prepare(core):
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if core is not None:
        os.sched_setaffinity(0, {core})


def tail(path, lines=8):
    try:
        with open(path, errors="replace") as file:
            return "\n".join(file.read().splitlines()[-lines:])
    except OSError:
        return ""


class Child:
    def __init__(self, name, process, stdout_path, stderr_path):
        self.name = name
        self.process = process
        self.stdout_path = stdout_path
        self.stderr_path = stderr_path

    @property
    def pid(self):
        return self.process.pid

    def descendants(self):
        """(pid, start time) of the processes below this one; the start time guards against a reused pid."""
        found, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            try:
                with open(f"/proc/{pid}/task/{pid}/children") as file:
                    below = [int(word) for word in file.read().split()]
            except OSError:
                continue
            found += [(child, start_time(child)) for child in below]
            todo += below
        return found

    def wait_for(self, regex, seconds):
        """The first match in what the child has printed."""
        limit = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            for path in (self.stdout_path, self.stderr_path):
                with open(path, errors="replace") as file:
                    match = regex.search(file.read())
                if match:
                    return match
            if ended:
                raise RigError(f"{self.name} ended with code {self.process.returncode} before it was ready:\n"
                               f"{tail(self.stderr_path)}")
            if time.monotonic() > limit:
                raise RigError(f"{self.name} printed nothing like /{regex.pattern}/ within {seconds} s:\n"
                               f"{tail(self.stderr_path)}")
            time.sleep(0.005)

    def finish(self, seconds):
        """Waits for the child to end by itself and returns its exit code."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise RigError(f"{self.name} did not end within {seconds:.0f} s") from None

    def stop(self, seconds=5, how=signal.SIGTERM):
        """Asks, waits, then kills; also the processes it started, should they outlive it."""
        below = self.descendants()
        if self.process.stdin:
            try:
                self.process.stdin.close()
            except OSError:
                pass
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid, started in below:
            if started is not None and start_time(pid) == started:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass


def start_time(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None


class Children:
    """Every child of one run. Use as a context manager: leaving it ends them all, newest first."""

    def __init__(self, work_dir):
        self.work_dir = work_dir
        self._alive = []
        self._count = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while self._alive:
            self._alive.pop().stop(seconds=2)

    def start(self, name, command, core=None, env=None, stdin=False):
        self._count += 1
        base = os.path.join(self.work_dir, f"{self._count:04d}-{name}")
        with open(base + ".out", "wb") as out, open(base + ".err", "wb") as err:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL, stdout=out, stderr=err,
                    env=env, preexec_fn=lambda: _prepare(core))
            except OSError as error:
                raise RigError(f"cannot start {command[0]}: {error.strerror}") from None
        child = Child(name, process, base + ".out", base + ".err")
        self._alive.append(child)
        return child

    def stop(self, child, **options):
        child.stop(**options)
        if child in self._alive:
            self._alive.remove(child)

    def forget(self, child):
        """For a child that has ended by itself."""
        self._alive.remove(child)
