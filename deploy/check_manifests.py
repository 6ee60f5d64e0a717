#!/usr/bin/env python3
"""What can be proved of the manifests without a cluster: that our programs take their settings, and that they agree."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import yaml

HERE = pathlib.Path(__file__).parent
BIN = pathlib.Path("build/release/bin")
OURS = {"handoff-sidecar", "handoff-epp"}


def settings(container):
    return {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}


def flags(container):
    return dict(argument.split("=", 1) for argument in container.get("args", []))


class Manifests(unittest.TestCase):
    def setUp(self):
        documents = list(yaml.safe_load_all((HERE / "kubernetes/vllm.yaml").read_text(encoding="utf-8")))
        self.objects = {(item["kind"], item["metadata"]["name"]): item for item in documents}
        self.assertEqual(len(self.objects), len(documents), "a name is there twice")
        self.pods = {name: item["spec"]["template"] for (_, name), item in self.objects.items()
                     if "template" in item.get("spec", {})}
        self.containers = {(pod, each["name"]): each for pod, template in self.pods.items()
                           for each in template["spec"]["containers"]}
        self.sidecar = self.containers["decode", "handoff-sidecar"]
        self.engine = self.containers["decode", "vllm"]
        self.prefill = self.containers["prefill", "vllm"]
        self.picker = self.containers["handoff-epp", "handoff-epp"]
        self.endpoints = self.objects["ConfigMap", "handoff-endpoints"]["data"]["endpoints.yaml"]

    def port(self, container, name):
        return next(port["containerPort"] for port in container["ports"] if port["name"] == name)

    def config_of(self, container, **changed):
        """What the program makes of the container's settings; every one of them must be a known one."""
        given = settings(container)
        environment = {"PATH": os.environ["PATH"], **given, **changed}
        ended = subprocess.run([BIN / container["name"], "--print-config"], env=environment, capture_output=True, text=True,
                               timeout=60, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        config = dict(line.split("=", 1) for line in ended.stdout.splitlines() if "=" in line)
        self.assertEqual(set(given) - set(config), set(), "settings that the program does not know")
        return config

    def test_the_programs_take_their_settings(self):
        sidecar = self.config_of(self.sidecar)
        self.assertEqual(int(sidecar["DYN_SIDECAR_PORT"]), self.port(self.sidecar, "http"))
        self.assertEqual(int(sidecar["DYN_SIDECAR_ADMIN_PORT"]), self.port(self.sidecar, "admin"))
        self.assertEqual(sidecar["DYN_DECODE_ENGINE_PORT"], flags(self.engine)["--port"])
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(self.endpoints)
            file.flush()
            picker = self.config_of(self.picker, DYN_EPP_ENDPOINTS_FILE=file.name)
        self.assertEqual(int(picker["DYN_EPP_GRPC_PORT"]), self.port(self.picker, "ext-proc"))
        self.assertEqual(int(picker["DYN_EPP_GRPC_HEALTH_PORT"]), self.port(self.picker, "health"))
        mount = self.picker["volumeMounts"][0]["mountPath"]
        self.assertEqual(settings(self.picker)["DYN_EPP_ENDPOINTS_FILE"], f"{mount}/endpoints.yaml")

    def test_the_endpoint_picker_takes_the_endpoints(self):
        text = self.endpoints
        for number, each in enumerate(yaml.safe_load(text)["endpoints"]):  # no name is looked up here
            text = text.replace(f"{each['address']},", f"127.1.0.{number + 1},")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            environment = {"PATH": os.environ["PATH"], **settings(self.picker), "DYN_EPP_ENDPOINTS_FILE": file.name,
                           "DYN_EPP_BIND": "127.0.0.1", "DYN_EPP_GRPC_PORT": "0", "DYN_EPP_GRPC_HEALTH_PORT": "0",
                           "DYN_EPP_TOKENIZER_SERVICE_URL": "http://127.0.0.1:1"}
            with subprocess.Popen([BIN / "handoff-epp"], env=environment, stderr=subprocess.PIPE, text=True) as picker:
                first = picker.stderr.readline()
                picker.kill()
        self.assertIn(" listening ", first)

    def test_endpoints_are_the_pods(self):
        pods = {(f"{name}-{number}.{name}", self.port(self.containers[name, container], "http"), name)
                for name, container in (("prefill", "vllm"), ("decode", "handoff-sidecar"))
                for number in range(self.objects["StatefulSet", name]["spec"]["replicas"])}
        listed = [(each["address"], each["port"], each["role"]) for each in yaml.safe_load(self.endpoints)["endpoints"]]
        self.assertEqual(sorted(listed), sorted(pods))
        for name in ("prefill", "decode"):
            service = self.objects["Service", name]["spec"]
            self.assertEqual(service["clusterIP"], "None")
            self.assertEqual(self.objects["StatefulSet", name]["spec"]["serviceName"], name)
            self.assertEqual(service["selector"].items() - self.pods[name]["metadata"]["labels"].items(), set())

    def test_engines_and_the_endpoint_picker_agree(self):
        picker = settings(self.picker)
        for engine in (self.prefill, self.engine):
            self.assertEqual(flags(engine)["--block-size"], picker["DYN_KV_CACHE_BLOCK_SIZE"])
            self.assertEqual(engine["command"][-1], picker["DYN_MODEL_NAME"])
            events = json.loads(flags(engine)["--kv-events-config"])
            self.assertEqual(events["endpoint"], f"tcp://*:{picker['DYN_EPP_KV_EVENT_PORT']}")
            self.assertEqual(events["replay_endpoint"], f"tcp://*:{picker['DYN_EPP_KV_EVENT_REPLAY_PORT']}")
        self.assertEqual(self.containers["renderer", "vllm"]["command"][-1], picker["DYN_MODEL_NAME"])
        roles = [json.loads(flags(each)["--kv-transfer-config"])["kv_role"] for each in (self.prefill, self.engine)]
        self.assertEqual(roles, ["kv_producer", "kv_consumer"])
        self.assertEqual(flags(self.engine)["--host"], "127.0.0.1")
        url = picker["DYN_EPP_TOKENIZER_SERVICE_URL"]
        service = self.objects["Service", "renderer"]["spec"]["ports"][0]["port"]
        self.assertEqual(url, f"http://renderer:{service}")

    def test_grace_periods_are_longer_than_the_drains(self):
        sidecar = self.config_of(self.sidecar)
        drain = (int(sidecar["DYN_SIDECAR_DRAIN_DELAY_MS"]) + int(sidecar["DYN_SIDECAR_DRAIN_TIMEOUT_MS"])) / 1000
        sleep = int(self.engine["lifecycle"]["preStop"]["exec"]["command"][1])
        self.assertGreater(sleep, drain)
        self.assertGreater(self.pods["decode"]["spec"]["terminationGracePeriodSeconds"], sleep + 10)

    def test_our_containers_may_do_little(self):
        for (_, name), container in self.containers.items():
            if name in OURS:
                security = container["securityContext"]
                self.assertTrue(security["runAsNonRoot"] and security["readOnlyRootFilesystem"])
                self.assertEqual(security["capabilities"], {"drop": ["ALL"]})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=BIN, help="folder of the built programs")
    arguments, rest = parser.parse_known_args()
    BIN = arguments.bin.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
