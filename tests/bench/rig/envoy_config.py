"""Envoy for the rig: one HTTP listener, with ext_proc in full duplex or without it."""

_TYPE = "type.googleapis.com/envoy."
_HTTP = _TYPE + "extensions.filters.http."


def _address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _endpoints(name, port):
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(port)}}]}]}


def _ext_proc():
    sent = {f"{side}_{part}_mode": "SEND" for side in ("request", "response") for part in ("header", "trailer")}
    bodies = {f"{side}_body_mode": "FULL_DUPLEX_STREAMED" for side in ("request", "response")}
    return {"name": "envoy.filters.http.ext_proc", "typed_config": {
        "@type": _HTTP + "ext_proc.v3.ExternalProcessor", "message_timeout": "1000s",
        "grpc_service": {"envoy_grpc": {"cluster_name": "epp"}}, "processing_mode": {**sent, **bodies}}}


def _ext_proc_cluster(port):
    options = _TYPE + "extensions.upstreams.http.v3.HttpProtocolOptions"
    return {"name": "epp", "type": "STATIC", "connect_timeout": "5s", "load_assignment": _endpoints("epp", port),
            "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options, "explicit_http_config": {"http2_protocol_options": {}}}}}


def envoy_configuration(ext_proc_port, engine_port):
    """Without `ext_proc_port` every request goes to the engine; with it, where the ext_proc server says."""
    router = {"name": "envoy.filters.http.router", "typed_config": {"@type": _HTTP + "router.v3.Router"}}
    chosen = {"name": "chosen", "connect_timeout": "5s"}
    if ext_proc_port is None:
        filters, clusters = [router], [chosen]
        chosen.update({"type": "STATIC", "load_assignment": _endpoints("chosen", engine_port)})
    else:
        filters, clusters = [_ext_proc(), router], [chosen, _ext_proc_cluster(ext_proc_port)]
        chosen.update({"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "original_dst_lb_config": {
            "use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"}})
    route = {"match": {"prefix": "/"}, "route": {"cluster": "chosen", "timeout": "0s"}}
    manager = {
        "@type": _TYPE + "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front", "http_filters": filters,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]}}
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    listener = {"name": "front", "address": _address(0), "filter_chains": [chain]}
    return {"admin": {"address": _address(0)}, "static_resources": {"listeners": [listener], "clusters": clusters}}
