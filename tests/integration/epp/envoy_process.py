"""A real Envoy in front of the Endpoint Picker: ext_proc in full duplex, destination by header."""

import json
import os
import subprocess
import tempfile
import urllib.request

from harness.limits import PATIENCE, wait_until
from harness.stack import need_envoy




def address(port, host="127.0.0.1"):
    return {"socket_address": {"address": host, "port_value": port}}


def ext_proc_filter():
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "epp"}},
            "processing_mode": {
                "request_header_mode": "SEND", "response_header_mode": "SEND",
                "request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "FULL_DUPLEX_STREAMED",
                "request_trailer_mode": "SEND", "response_trailer_mode": "SEND",
            },
            "message_timeout": "1000s",
        },
    }


def http2(cluster):
    cluster["typed_extension_protocol_options"] = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}}}}
    return cluster


def configuration(epp_port):
    route = {"match": {"prefix": "/"}, "route": {"cluster": "chosen", "timeout": "0s"}}
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [ext_proc_filter(), {"name": "envoy.filters.http.router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
        "http_protocol_options": {"enable_trailers": True},
    }
    chosen = {"name": "chosen",
              "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                  "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                  "explicit_http_config": {"http_protocol_options": {"enable_trailers": True}}}},
               "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "5s",
              "original_dst_lb_config": {"use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"}}
    epp = http2({"name": "epp", "type": "STATIC", "connect_timeout": "5s",
                 "load_assignment": {"cluster_name": "epp", "endpoints": [
                     {"lb_endpoints": [{"endpoint": {"address": address(epp_port)}}]}]},
                 "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": {
                     "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"}}})
    return {
        "admin": {"address": address(0)},
        "static_resources": {
            "listeners": [{"name": "front", "address": address(0), "filter_chains": [{"filters": [
                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}]}],
            "clusters": [chosen, epp],
        },
    }


class Envoy:
    def __init__(self, epp_port):
        self._folder = tempfile.TemporaryDirectory(prefix="handoff-envoy-")
        config = os.path.join(self._folder.name, "envoy.json")
        admin = os.path.join(self._folder.name, "admin")
        with open(config, "w", encoding="utf-8") as file:
            json.dump(configuration(epp_port), file)
        self._log = open(os.path.join(self._folder.name, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [os.environ.get("HANDOFF_ENVOY") or need_envoy(), "-c", config, "--admin-address-path", admin, "--use-dynamic-base-id", "--concurrency", "1",
             "--log-level", "warning", "--disable-hot-restart"],
            stdout=self._log, stderr=subprocess.STDOUT)
        wait_until(lambda: self.process.poll() is not None or (os.path.exists(admin) and os.path.getsize(admin) > 0))
        assert self.process.poll() is None, self.log()
        with open(admin, encoding="utf-8") as file:
            self.admin = file.read().strip()
        wait_until(lambda: self.ask("/ready", expected=(200, 503)) == b"LIVE\n")
        listener = json.loads(self.ask("/listeners?format=json"))["listener_statuses"][0]
        self.port = listener["local_address"]["socket_address"]["port_value"]

    def ask(self, path, expected=(200,)):
        try:
            with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=PATIENCE) as reply:
                return reply.read()
        except urllib.error.HTTPError as error:
            assert error.code in expected
            return error.read()

    def counter(self, name):
        for line in self.ask(f"/stats?filter={name}").decode().splitlines():
            key, _, value = line.partition(": ")
            if key.endswith(name):
                return int(value)
        return 0

    def log(self):
        self._log.flush()
        with open(self._log.name, encoding="utf-8") as file:
            return file.read()

    def stop(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self._log.close()
        self._folder.cleanup()
