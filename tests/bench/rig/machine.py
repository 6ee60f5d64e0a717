"""What the kernel says about the machine and about processes."""

import os
import platform
import re
import socket
import subprocess


def _first_line(command, pattern=None):
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line for line in result.stdout.splitlines() if not pattern or re.search(pattern, line)]
    return lines[0].strip() if lines else None


def describe():
    model = "unknown processor"
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    memory_kb = 0
    with open("/proc/meminfo") as file:
        memory_kb = int(file.readline().split()[1])
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return (f"{os.cpu_count()} x {model}, {memory_kb / 1048576:.1f} GiB, Linux {platform.release()}, "
            f"load before the run {load}")


def versions(nginx, haproxy):
    found = {
        "python": platform.python_version(),
        "compiler": _first_line(["c++", "--version"]),
        "nginx": _first_line([nginx, "-v"]) if nginx else None,
        "haproxy": _first_line([haproxy, "-v"]) if haproxy else None,
        "valgrind": _first_line(["valgrind", "--version"]),
        "strace": _first_line(["strace", "--version"]),
    }
    return {name: text for name, text in found.items() if text}


def commit(folder):
    head = _first_line(["git", "-C", folder, "rev-parse", "HEAD"])
    if not head or not re.fullmatch(r"[0-9a-f]{40}", head):
        return "unknown"
    changed = _first_line(["git", "-C", folder, "status", "--porcelain", "--untracked-files=no"])
    return head + (" with changes" if changed else "")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def resident_kb(pids):
    """Sum of VmRSS and of its anonymous part."""
    total = {"VmRSS": 0, "RssAnon": 0}
    for pid in pids:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                name = line.split(":", 1)[0]
                if name in total:
                    total[name] += int(line.split()[1])
    return total["VmRSS"], total["RssAnon"]


def socket_memory_kb():
    """Kernel memory of all TCP sockets; it is outside every process's RSS."""
    with open("/proc/net/sockstat") as file:
        for line in file:
            if line.startswith("TCP:"):
                words = line.split()
                return int(words[words.index("mem") + 1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return 0
