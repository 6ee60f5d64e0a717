"""The routing header over the wire, and which headers reach whom (C29)."""

import pytest
from harness.http_client import wire
from harness.scripted_engine import prefill_body

JSON = ("Content-Type", "application/json")
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate"]

BAD_HINTS = {
    "empty": "", "blank": "   ", "no-port": "prefill", "no-port-colon": "prefill:", "no-host": ":8000", "port-0": "h:0",
    "port-65536": "h:65536", "port-huge": "h:99999999999999999999", "port-negative": "h:-1", "port-plus": "h:+80",
    "port-letters": "h:abc", "port-hex": "h:0x50", "port-space": "h: 80", "list": "a:1,b:2", "list-space": "a:1, b:2",
    "userinfo": "user@h:80", "userinfo-password": "u:p@h:80", "scheme": "http://h:80", "path": "h:80/x", "slash": "h:80/",
    "query": "h:80?x", "fragment": "h:80#x", "bare-ipv6": "fd00::1:8000", "bare-ipv6-loopback": "::1:80",
    "open-bracket": "[::1:80", "no-port-ipv6": "[::1]", "junk-behind-bracket": "[::1]x:80", "ipv6-zone": "[fe80::1%25eth0]:80",
    "bracketed-name": "[host]:80", "bracketed-ipv4": "[127.0.0.1]:80", "empty-brackets": "[]:80", "two-ports": "h:80:80",
    "high-bytes": "h\xe9:80", "tab-inside": "h\t:80", "quotes": '"h:80"', "space-inside": "h x:80", "star": "*:80",
    "percent": "h%41:80", "backslash": "h\\x:80", "underscore-only": "!:80", "semicolon": "h:80;x", "ipv4-too-large": "1.2.3.400:80",
}


@pytest.mark.parametrize("value", BAD_HINTS.values(), ids=BAD_HINTS)
def test_bad_hint_is_502_and_no_engine_is_asked(front, value):
    with front.connect() as client:
        answer = client.request("POST", "/v1/completions", [JSON, ("x-prefiller-host-port", value)], b"{}")
        answer.refused(502, "invalid_epp_metadata")
        assert answer.error["message"] == "Invalid EPP routing metadata" and answer.error["param"] is None
        assert client.request("GET", "/health").status == 200, "the connection is still good"
    front.prefill.expect_nothing()
    front.decode.expect_nothing()


@pytest.mark.parametrize("lines", [["a:1", "b:2"], ["a:1", "a:1"], ["", "a:1"], ["a:1", "b:2", "c:3"]])
def test_repeated_hint_is_502(front, lines):
    with front.connect() as client:
        headers = [JSON] + [("X-Prefiller-Host-Port", value) for value in lines]
        client.request("POST", "/v1/completions", headers, b"{}").refused(502, "invalid_epp_metadata")
    front.decode.expect_nothing()


@pytest.mark.parametrize("path", PATHS)
def test_bad_hint_on_every_generation_path(front, path):
    with front.connect() as client:
        client.request("POST", path, [JSON, ("x-prefiller-host-port", "x")], b"{}").refused(502, "invalid_epp_metadata")


@pytest.mark.parametrize("value", ["127.0.0.1:PORT", "localhost:PORT", "LOCALHOST:PORT", "  127.0.0.1:PORT\t"])
def test_good_hints(front, value):
    value = value.replace("PORT", str(front.prefill.port))
    with front.connect() as client:
        client.send(wire("POST", "/v1/completions", [JSON, ("X-PREFILLER-host-port", value)], b"{}"))
        front.prefill.next().reply(prefill_body())
        front.decode.next().reply(b"ok")
        assert client.read_response().body == b"ok"


@pytest.mark.parametrize("value", ["bad", "", "127.0.0.1:1", "a:1,b:2"])
@pytest.mark.parametrize("method,path", [("POST", "/v1/embeddings"), ("GET", "/v1/models"), ("GET", "/v1/completions"),
                                         ("POST", "/v1/completions/"), ("POST", "/tokenize")])
def test_hint_on_other_paths_is_stripped_and_ignored(front, method, path, value):
    with front.connect() as client:
        client.send(wire(method, path, [JSON, ("x-prefiller-host-port", value), ("x-prefiller-host-port", value)],
                         b"[1]" if method == "POST" else None))
        leg = front.decode.next()
        assert leg.header("x-prefiller-host-port") is None
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"
    front.prefill.expect_nothing()


# ---------------------------------------------------------------------------------------------------------- allowlist

def allowed(own, allowlist, host="127.0.0.1"):
    prefill, decode = own.scripted(host=host), own.scripted()
    sidecar = own.sidecar(decode.port, {"DYN_SIDECAR_PREFILL_ALLOWLIST": allowlist.replace("PORT", str(prefill.port))})
    client = sidecar.connect()
    authority = f"[{host}]:{prefill.port}" if ":" in host else f"{host}:{prefill.port}"
    client.send(wire("POST", "/v1/completions", [JSON, ("x-prefiller-host-port", authority)], b"{}"))
    return client, prefill, decode


@pytest.mark.parametrize("allowlist", ["127.0.0.1", "127.0.0.0/8", "10.0.0.1, 127.0.0.1:PORT"])
def test_allowed_endpoint(own, allowlist):
    client, prefill, decode = allowed(own, allowlist)
    prefill.next().reply(prefill_body())
    decode.next().reply(b"ok")
    assert client.read_response().body == b"ok"


@pytest.mark.parametrize("allowlist", ["10.0.0.0/8", "127.0.0.1:1", ".example.com", "localhost", "127.0.0.2"])
def test_endpoint_that_is_not_allowed_is_403(own, allowlist):
    client, prefill, decode = allowed(own, allowlist)
    answer = client.read_response().refused(403, "prefill_endpoint_not_allowed")
    assert answer.error["type"] == "permission_error"
    assert str(prefill.port) not in answer.body.decode()
    assert prefill.links == []
    decode.expect_nothing()


# ------------------------------------------------------------------------------------------------ what reaches the engines

ORCHESTRATION = ["x-prefiller-host-port", "x-gateway-destination-endpoint", "x-gateway-destination-endpoint-served",
                 "x-gateway-destination-endpoint-subset", "x-gateway-inference-fairness-id", "x-gateway-inference-objective",
                 "x-gateway-model-name-rewrite", "x-dynamo-worker-instance-id", "x-dynamo-prefill-instance-id",
                 "x-dynamo-dp-rank", "x-dynamo-prefill-dp-rank", "x-dynamo-routing-mode", "x-encoder-hosts-ports",
                 "x-kv-cache-source-host-port", "x-data-parallel-host-port"]
HOP_BY_HOP = [("Keep-Alive", "timeout=5"), ("Proxy-Connection", "keep-alive"), ("Proxy-Authorization", "Basic eA=="),
              ("Proxy-Authenticate", "Basic"), ("TE", "trailers"), ("Trailer", "X-T"), ("Upgrade", "h2c")]
END_TO_END = [("Authorization", "Bearer secret"), ("X-Request-Id", "id-1"), ("traceparent", "00-ab-cd-01"),
              ("tracestate", "a=b"), ("User-Agent", "curl/8"), ("Cookie", "a=b"), ("X-Custom-Thing", "1"),
              ("X-Custom-Thing", "2"), ("Accept", "*/*"), ("X-Empty", ""), ("X-High", "caf\xe9"),
              ("X-Forwarded-For", "10.0.0.1"), ("OpenAI-Organization", "o"), ("api-key", "k"), ("x-api-key", "k2")]


def check_leg(leg, stripped, kept):
    names = [name.lower() for name, _ in leg.headers]
    for name in stripped:
        assert name.lower() not in names, name
    for name, value in kept:
        assert value in leg.all_headers(name), name
    assert names.count("host") == 1 and names.count("content-length") <= 1


@pytest.mark.parametrize("way", ["disaggregated", "decode-only", "pass-through"])
def test_c29_what_is_stripped_and_what_is_kept(front, way):
    stripped = [name for name in ORCHESTRATION] + [name for name, _ in HOP_BY_HOP] + ["connection", "x-named"]
    headers = [JSON, *HOP_BY_HOP, *END_TO_END, ("Connection", "keep-alive, X-Named"), ("X-Named", "1"),
               *((name.title(), "1") for name in ORCHESTRATION if name != "x-prefiller-host-port")]
    path = "/v1/embeddings" if way == "pass-through" else "/v1/completions"
    if way != "decode-only":
        headers.append(front.hint)
    with front.connect() as client:
        client.send(wire("POST", path, headers, b'{"prompt":"p"}'))
        if way == "disaggregated":
            leg = front.prefill.next()
            check_leg(leg, stripped + ["accept-encoding"], END_TO_END)
            leg.reply(prefill_body())
        leg = front.decode.next()
        check_leg(leg, stripped, END_TO_END)
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"


def test_c29_connection_may_not_name_what_others_rely_on(front):
    names = "Authorization, X-Request-Id, Content-Type, Content-Encoding, X-Forwarded-For, traceparent, Cookie, Host, x-api-key"
    with front.connect() as client:
        client.send(wire("POST", "/v1/completions", [JSON, front.hint, *END_TO_END, ("Connection", names)], b"{}"))
        leg = front.prefill.next()
        check_leg(leg, [], [pair for pair in END_TO_END])
        assert leg.header("content-type") == "application/json"
        leg.reply(prefill_body())
        leg = front.decode.next()
        check_leg(leg, [], END_TO_END)
        leg.reply(b"ok")
        assert client.read_response().status == 200


def test_c29_connection_may_not_hide_the_routing_header(front):
    with front.connect() as client:
        client.request("POST", "/v1/completions", [JSON, ("x-prefiller-host-port", "bad"),
                                                   ("Connection", "x-prefiller-host-port")], b"{}"
                       ).refused(502, "invalid_epp_metadata")
    front.decode.expect_nothing()


def test_c29_headers_of_a_reply(front):
    with front.connect() as client:
        client.send(wire("GET", "/thing"))
        leg = front.decode.next()
        leg.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
                 b"Proxy-Authenticate: x\r\nTrailer: T\r\nUpgrade: h2\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nServer: uvicorn\r\n"
                 b"Date: Mon, 30 Nov 2026 00:00:00 GMT\r\nX-Request-Id: r\r\nContent-Type: a/b\r\nRetry-After: 3\r\n\r\nok")
        leg.done()
        answer = client.read_response()
        for name in ("x-hop", "keep-alive", "proxy-authenticate", "trailer", "upgrade", "connection"):
            assert answer.header(name) is None, name
        assert answer.all_headers("set-cookie") == ["a=1", "b=2"]
        assert [answer.header(name) for name in ("server", "x-request-id", "content-type", "retry-after")] == \
            ["uvicorn", "r", "a/b", "3"]
        assert answer.header("date") == "Mon, 30 Nov 2026 00:00:00 GMT"


def test_request_id_is_made_once_and_equal_on_both_legs(front):
    seen = set()
    for _ in range(3):
        with front.connect() as client:
            client.send(front.bytes_of(b"{}"))
            first = front.prefill.next()
            first.reply(prefill_body())
            second = front.decode.next()
            second.reply(b"ok")
            client.read_response()
        (made,) = first.all_headers("x-request-id")
        assert second.all_headers("x-request-id") == [made] and made
        seen.add(made)
        assert front.sidecar.wait_log("exchange", 0, request_id=made)
    assert len(seen) == 3


def test_request_id_of_the_client_is_kept(front):
    with front.connect() as client:
        client.send(front.bytes_of(b"{}", headers=[("x-request-ID", "mine/1")]))
        first = front.prefill.next()
        first.reply(prefill_body())
        second = front.decode.next()
        second.reply(b"ok")
        client.read_response()
    assert first.all_headers("x-request-id") == second.all_headers("x-request-id") == ["mine/1"]
    assert front.sidecar.wait_log("exchange", 0, request_id="mine/1")


def test_expect_and_content_length_are_made_anew_on_each_leg(front):
    with front.connect() as client:
        client.send(front.bytes_of(b'{"prompt":"p"}', headers=[("Expect", "100-continue")]))
        first = front.prefill.next()
        assert first.header("expect") is None and int(first.header("content-length")) == len(first.body())
        first.reply(prefill_body())
        second = front.decode.next()
        assert second.header("expect") is None and int(second.header("content-length")) == len(second.body())
        second.reply(b"ok")
        assert client.read_response().body == b"ok"
