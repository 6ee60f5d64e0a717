"""A real Envoy in front of the Endpoint Picker: ext_proc in full duplex, destination by header."""

import base64
import json
import os
import socket
import subprocess
import tempfile
import urllib.request

import child_processes
from google.protobuf import struct_pb2
from harness.limits import PATIENCE, wait_until
from harness.stack import need_envoy

# What this listener takes of an answer that its client does not read: half a MiB is beyond it, and within Envoy's own buffer.
NARROW = {"socket_options": [{"level": socket.SOL_SOCKET, "name": socket.SO_SNDBUF, "int_value": 65536}]}


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
            "metadata_options": {"forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]}},
        },
    }


def subset_filter():
    """The client names the endpoints that the gateway allows, in x-test-subset: a list as google.protobuf.Value in base64."""
    return {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [{"header": "x-test-subset", "remove": True, "on_header_present": {
                "metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset",
                "type": "PROTOBUF_VALUE", "encode": "BASE64"}}],
        },
    }


def subset_header(*endpoints):
    value = struct_pb2.Value(list_value=struct_pb2.ListValue(
        values=[struct_pb2.Value(string_value=endpoint) for endpoint in endpoints]))
    return ("x-test-subset", base64.b64encode(value.SerializeToString()).decode())


def http2(cluster, options):
    cluster["typed_extension_protocol_options"] = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": options}}}
    return cluster


def configuration(epp_port, to_the_picker):
    route = {"match": {"prefix": "/"}, "route": {"cluster": "chosen", "timeout": "0s"}}
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [subset_filter(), ext_proc_filter(), {"name": "envoy.filters.http.router", "typed_config": {
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
                     "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"}}},
                to_the_picker)
    return {
        "admin": {"address": address(0)},
        "static_resources": {
            "listeners": [{"name": name, "address": address(0), **more, "filter_chains": [{"filters": [
                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}]}
                for name, more in (("front", {}), ("narrow", NARROW))],
            "clusters": [chosen, epp],
        },
    }


class Envoy:
    def __init__(self, epp_port, to_the_picker=None):
        """`to_the_picker`: options of its connections to the Endpoint Picker."""
        self._folder = tempfile.TemporaryDirectory(prefix="handoff-envoy-")
        config = os.path.join(self._folder.name, "envoy.json")
        admin = os.path.join(self._folder.name, "admin")
        with open(config, "w", encoding="utf-8") as file:
            json.dump(configuration(epp_port, to_the_picker or {}), file)
        self._log = open(os.path.join(self._folder.name, "log"), "w+", encoding="utf-8")
        self.process = child_processes.start(
            [os.environ.get("HANDOFF_ENVOY") or need_envoy(), "-c", config, "--admin-address-path", admin, "--use-dynamic-base-id", "--concurrency", "1",
             "--log-level", "warning", "--disable-hot-restart"],
            stdout=self._log, stderr=subprocess.STDOUT)
        with child_processes.ended_on_failure(self.process):
            wait_until(lambda: self.process.poll() is not None or (os.path.exists(admin) and os.path.getsize(admin) > 0))
            assert self.process.poll() is None, self.log()
            with open(admin, encoding="utf-8") as file:
                self.admin = file.read().strip()
            wait_until(lambda: self.ask("/ready", expected=(200, 503)) == b"LIVE\n")
        ports = {listener["name"]: listener["local_address"]["socket_address"]["port_value"]
                 for listener in json.loads(self.ask("/listeners?format=json"))["listener_statuses"]}
        self.port, self.narrow_port = ports["front"], ports["narrow"]

    def ask(self, path, expected=(200,)):
        try:
            with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=PATIENCE) as reply:
                return reply.read()
        except urllib.error.HTTPError as error:
            assert error.code in expected
            return error.read()

    def counter(self, name):
        """A counter or gauge, by its name or the end of it."""
        lines = (line.partition(": ") for line in self.ask(f"/stats?filter={name}").decode().splitlines())
        values = {key: int(value) for key, _, value in lines if key.endswith(name)}
        return values.get(name, next(iter(values.values()), 0))

    def is_idle(self):
        """No client is connected, and no stream to the Endpoint Picker is open."""
        return (self.counter("http.front.downstream_cx_active") == 0 and
                self.counter("cluster.epp.upstream_rq_active") == 0)

    def log(self):
        self._log.flush()
        with open(self._log.name, encoding="utf-8") as file:
            return file.read()

    def stop(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self._log.close()
        self._folder.cleanup()
