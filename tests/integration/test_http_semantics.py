"""HTTP/1.1 as a proxy must do it: framing, persistence, expectations, targets, upgrades, old clients."""

import json

import pytest
from harness.http_client import Truncated, wire
from harness.scripted_engine import prefill_body

COMPLETION = {"model": "mock-model", "prompt": "Tell me of sheep and other animals", "max_tokens": 6}
JSON = ("Content-Type", "application/json")
BOTH_WAYS = pytest.mark.parametrize("disaggregated", [True, False], ids=["disaggregated", "decode-only"])


def answer_generation(front, disaggregated, body=b"ok"):
    if disaggregated:
        front.prefill.next().reply(prefill_body())
    leg = front.decode.next()
    leg.reply(body)
    return leg


# ------------------------------------------------------------------------------------------------------ body framing

@pytest.mark.parametrize("size", [0, 1, 5, 70_000, 3_000_000])
@pytest.mark.parametrize("content_type", ["application/octet-stream", "application/json"])
def test_fixed_length_stays_fixed(front, size, content_type):
    body = b'"' + b"x" * (size - 2) + b'"' if size > 2 else b"1" * size
    with front.connect() as client:
        client.send(wire("POST", "/other", [("Content-Type", content_type)], body))
        leg = front.decode.next()
        assert leg.body() == body
        assert leg.framing == "fixed" and leg.all_headers("content-length") == [str(size)]
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"


@pytest.mark.parametrize("pieces", [[b"a"], [b"x" * 10, b"y" * 20, b"z"], [b"x" * 100_000] * 5])
def test_chunked_stays_chunked(front, pieces):
    with front.connect() as client:
        client.send(wire("POST", "/other", [("Content-Type", "application/octet-stream")], pieces))
        leg = front.decode.next()
        assert leg.body() == b"".join(pieces)
        assert leg.framing == "chunked" and leg.header("content-length") is None
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"


def test_no_body_stays_none(front):
    for method in ("GET", "DELETE", "OPTIONS"):
        with front.connect() as client:
            client.send(wire(method, "/other"))
            leg = front.decode.next()
            assert leg.framing == "none" and leg.method == method
            leg.reply(b"ok")
            assert client.read_response().body == b"ok"


@BOTH_WAYS
def test_chunked_generation_request_has_a_length_for_the_engine(front, disaggregated):
    body = [b'{"prompt":', b'"p"', b"}"]
    with front.connect() as client:
        client.send(front.bytes_of(body, disaggregated=disaggregated))
        leg = answer_generation(front, disaggregated)
        assert leg.framing == "fixed" and len(leg.all_headers("content-length")) == 1
        assert leg.body().startswith(b'{"prompt":"p"')
        assert client.read_response().body == b"ok"


def test_upload_streams_through_while_it_arrives(front):
    with front.connect() as client:
        client.send(wire("PUT", "/upload", [("Content-Type", "application/octet-stream")])[:-2] +
                    b"Content-Length: 200000\r\n\r\n" + b"a" * 100)
        leg = front.decode.next()
        got = b""
        while len(got) < 100:
            got += leg.body_piece()
        client.send(b"b" * 199900)
        while len(got) < 200000:
            got += leg.body_piece()
        leg.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        leg.done()
        assert client.read_response().body == b"ok"
        assert client.request("GET", "/health").status == 200


def test_reply_framing_is_kept(front):
    with front.connect() as client:
        client.send(wire("GET", "/fixed"))
        front.decode.next().reply(b"12345")
        assert client.read_response().framing == "fixed"
        client.send(wire("GET", "/chunked"))
        leg = front.decode.next()
        leg.begin_stream()
        leg.chunk(b"12345")
        leg.end_stream()
        assert client.read_response().framing == "chunked"
        client.send(wire("GET", "/empty"))
        front.decode.next().reply(b"")
        answer = client.read_response()
        assert (answer.framing, answer.body) == ("fixed", b"")


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_replies_without_a_body(front, status):
    with front.connect() as client:
        client.send(wire("GET", "/none"))
        leg = front.decode.next()
        extra = "Content-Length: 17\r\n" if status[0] == "3" else ""
        leg.send(f"HTTP/1.1 {status}\r\nETag: \"x\"\r\n{extra}\r\n".encode())
        leg.done()
        answer = client.read_response()
        assert answer.status == int(status[:3]) and answer.header("etag") == '"x"'
        assert answer.header("transfer-encoding") is None
        assert answer.header("content-length") == ("17" if status[0] == "3" else None)
        client.send(wire("GET", "/next"))
        front.decode.next().reply(b"next")
        assert client.read_response().body == b"next"


@pytest.mark.parametrize("framing", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b""])
def test_head_has_the_length_and_no_body(front, framing):
    with front.connect() as client:
        client.send(wire("HEAD", "/thing"))
        leg = front.decode.next()
        assert leg.method == "HEAD"
        leg.send(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n")
        leg.done()
        answer = client.read_response("HEAD")
        assert answer.header("content-length") == ("5" if b"Length" in framing else None)
        client.send(wire("GET", "/next"))
        front.decode.next().reply(b"next")
        assert client.read_response().body == b"next"


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_head_of_the_sidecars_own_paths(front, path):
    with front.connect() as client:
        assert client.request("HEAD", path).status == 200
        assert client.request("GET", path).status == 200


def test_reason_phrase_and_status_are_the_engines(front):
    with front.connect() as client:
        client.send(wire("GET", "/odd"))
        front.decode.next().reply(b"", "299 Rather Fine")
        answer = client.read_response()
        assert (answer.status, answer.reason) == (299, "Rather Fine")


def test_trailers_of_a_reply_are_dropped(front):
    with front.connect() as client:
        client.send(wire("GET", "/trailers"))
        leg = front.decode.next()
        leg.begin_stream(headers=[("Trailer", "X-Sum")])
        leg.chunk(b"abc")
        leg.send(b"0\r\nX-Sum: 1\r\n\r\n")
        leg.done()
        answer = client.read_response()
        assert answer.body == b"abc" and answer.header("trailer") is None


# ------------------------------------------------------------------------------------------------ pipelining, persistence

def test_pipelined_requests_are_answered_in_order(front):
    with front.connect() as client:
        client.send(b"".join(wire("GET", f"/{i}") for i in range(4)) + wire("GET", "/health"))
        for i in range(4):
            leg = front.decode.next()
            assert leg.target == f"/{i}"
            front.decode.expect_nothing()
            leg.reply(b"%d" % i)
            assert client.read_response().body == b"%d" % i
        assert client.read_response().body == b"alive\n"


def test_pipelined_generation_requests_do_not_cross(rig):
    bodies = [{**COMPLETION, "prompt": f"Question {i} of six", "stream": i % 2 == 1} for i in range(6)]
    with rig.connect() as client:
        client.send(b"".join(rig.bytes_of(body, disaggregated=i % 3 != 2) for i, body in enumerate(bodies)))
        for body in bodies:
            answer = client.read_response()
            if body["stream"]:
                text = "".join(json.loads(event)["choices"][0]["text"] for event in answer.events()[:-1])
            else:
                text = answer.json["choices"][0]["text"]
            assert text == rig.decode.expect("/v1/completions", body)["text"]


def test_pipelined_behind_a_body(front):
    with front.connect() as client:
        client.send(wire("POST", "/a", [JSON], b"[1]") + wire("POST", "/b", [], [b"x" * 10]) + wire("GET", "/c"))
        for target, body in (("/a", b"[1]"), ("/b", b"x" * 10), ("/c", b"")):
            leg = front.decode.next()
            assert (leg.target, leg.body()) == (target, body)
            leg.reply(target.encode())
            assert client.read_response().body == target.encode()


def test_pipelined_behind_a_refused_request(front):
    with front.connect() as client:
        client.send(wire("POST", "/v1/completions", [JSON], b'{"kv_transfer_params":{"a":1}}') + wire("GET", "/health"))
        client.read_response().refused(400, "invalid_pd_request")
        assert client.read_response().body == b"alive\n"


def test_connection_close_of_the_client_is_heeded(front):
    with front.connect() as client:
        client.send(wire("GET", "/a", [("Connection", "close")]) + wire("GET", "/never"))
        front.decode.next().reply(b"a")
        answer = client.read_response()
        assert answer.body == b"a" and answer.header("connection") == "close"
        assert client.expect_closed()
    front.decode.expect_nothing()


def test_many_requests_on_one_connection(front):
    with front.connect() as client:
        for i in range(200):
            client.send(wire("GET", f"/{i}"))
            front.decode.next().reply(b"%d" % i)
            assert client.read_response().body == b"%d" % i


@pytest.mark.settings(DYN_SIDECAR_CLIENT_IDLE_TIMEOUT_MS="100")
def test_idle_client_is_closed(scripted):
    with scripted.connect() as client:
        assert client.request("GET", "/health").status == 200
        assert client.expect_closed() == "fin"


# --------------------------------------------------------------------------------------------------------- HTTP/1.0

@BOTH_WAYS
def test_http10_fixed_answer_and_close(front, disaggregated):
    with front.connect() as client:
        headers = [JSON] + ([front.hint] if disaggregated else [])
        client.send(wire("POST", "/v1/completions", headers, b"{}", version="1.0", host=None))
        answer_generation(front, disaggregated)
        answer = client.read_response()
        assert (answer.body, answer.framing, answer.header("connection")) == (b"ok", "fixed", "close")
        assert client.expect_closed() == "fin"


def test_http10_keep_alive(front):
    with front.connect() as client:
        for i in range(3):
            client.send(wire("GET", f"/{i}", [("Connection", "keep-alive")], version="1.0"))
            leg = front.decode.next()
            assert leg.version == "HTTP/1.1"
            leg.reply(b"x")
            answer = client.read_response()
            assert answer.body == b"x" and answer.header("connection").lower() == "keep-alive"


@BOTH_WAYS
@pytest.mark.parametrize("headers", [[], [("Connection", "keep-alive")]], ids=["plain", "keep-alive"])
def test_http10_stream_is_delimited_by_the_close(front, disaggregated, headers):
    with front.connect() as client:
        headers = headers + [JSON] + ([front.hint] if disaggregated else [])
        client.send(wire("POST", "/v1/completions", headers, b"{}", version="1.0"))
        if disaggregated:
            front.prefill.next().reply(prefill_body())
        leg = front.decode.next()
        leg.begin_stream()
        leg.chunk(b"data: 1\n\n")
        leg.chunk(b"data: 2\n\n")
        leg.end_stream()
        answer = client.read_response()
        assert answer.framing == "close" and answer.body == b"data: 1\n\ndata: 2\n\n"
        assert answer.header("transfer-encoding") is None and answer.header("connection") == "close"


@BOTH_WAYS
@pytest.mark.parametrize("how", ["close", "reset"])
def test_http10_truncated_answer_ends_with_a_reset(front, disaggregated, how):
    with front.connect() as client:
        headers = [JSON] + ([front.hint] if disaggregated else [])
        client.send(wire("POST", "/v1/completions", headers, b"{}", version="1.0"))
        if disaggregated:
            front.prefill.next().reply(prefill_body())
        leg = front.decode.next()
        leg.begin_stream()
        leg.chunk(b"data: 1\n\n")
        answer = client.read_head()
        while b"data: 1\n\n" not in client.buffer:
            client._more()
        getattr(leg, how)()
        with pytest.raises(Truncated) as end:
            client.read_body(answer)
        assert end.value.how == "reset"


# ------------------------------------------------------------------------------------------------------------ Expect

@BOTH_WAYS
@pytest.mark.parametrize("framing", ["fixed", "chunked"])
def test_expect_100_continue_is_answered_when_the_body_is_wanted(front, framing, disaggregated):
    body = b'{"prompt":"p"}'
    request = front.bytes_of(body if framing == "fixed" else [body], headers=[("Expect", "100-continue")],
                             disaggregated=disaggregated)
    head, _, rest = request.partition(b"\r\n\r\n")
    with front.connect() as client:
        client.send(head + b"\r\n\r\n")
        assert client.read_head().status == 100
        client.send(rest)
        leg = answer_generation(front, disaggregated)
        assert leg.header("expect") is None
        answer = client.read_response()
        assert answer.status == 200 and answer.interim == []


def test_expect_with_a_streamed_upload(front):
    with front.connect() as client:
        client.send(wire("PUT", "/upload", [("Expect", "100-Continue"), ("Content-Type", "a/b")])[:-2] +
                    b"Content-Length: 100000\r\n\r\n")
        assert client.read_head().status == 100
        client.send(b"x" * 100000)
        leg = front.decode.next()
        assert leg.header("expect") is None and len(leg.body()) == 100000
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"


def test_expect_is_not_answered_where_the_request_is_refused_by_its_head(front):
    with front.connect() as client:
        client.send(wire("POST", "/v1/completions", [JSON, ("x-prefiller-host-port", "bad"), ("Expect", "100-continue"),
                                                     ("Content-Length", "10")]))
        answer = client.read_response().refused(502, "invalid_epp_metadata")
        assert answer.interim == [] and answer.header("connection") == "close"


def test_expect_beyond_the_limit_is_refused_without_asking_for_the_body(front):
    with front.connect() as client:
        client.send(wire("POST", "/v1/completions", [JSON, ("Expect", "100-continue"), ("Content-Length", "999999999")]))
        assert client.read_response().refused(413, "pd_request_too_large").interim == []


def test_expect_of_something_else_is_417(front):
    with front.connect() as client:
        client.request("GET", "/x", [("Expect", "teapot")]).refused(417, "expectation_failed")


def test_expect_of_a_10_client_is_not_answered(front):
    with front.connect() as client:
        client.send(wire("POST", "/other", [JSON, ("Expect", "100-continue")], b"[1]", version="1.0"))
        front.decode.next().reply(b"ok")
        answer = client.read_response()
        assert answer.interim == [] and answer.body == b"ok"


def test_expect_with_the_body_on_its_heels(front):
    with front.connect() as client:
        client.send(wire("POST", "/other", [JSON, ("Expect", "100-continue")], b"[1]"))
        front.decode.next().reply(b"ok")
        assert client.read_response().body == b"ok"


# ----------------------------------------------------------------------------------------------------- upgrade, CONNECT

def test_websocket_is_refused_cleanly(front):
    with front.connect() as client:
        answer = client.request("GET", "/v1/realtime", [("Connection", "Upgrade"), ("Upgrade", "websocket"),
                                                        ("Sec-WebSocket-Key", "x"), ("Sec-WebSocket-Version", "13")])
        answer.refused(501, "upgrade_not_supported")
        assert client.request("GET", "/health").status == 200
    front.decode.expect_nothing()


def test_h2c_offer_is_declined_by_answering_in_1_1(front):
    with front.connect() as client:
        client.send(wire("GET", "/v1/models", [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"),
                                               ("HTTP2-Settings", "AAMAAABkAAQAAP__")]))
        leg = front.decode.next()
        assert leg.header("upgrade") is None and leg.header("http2-settings") is None and leg.header("connection") is None
        leg.reply(b"[]")
        assert client.read_response().body == b"[]"


def test_h2_preface_is_505(front):
    with front.connect() as client:
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert client.read_response().status == 505
        client.read_end()


def test_upgrade_without_connection_is_just_stripped(front):
    with front.connect() as client:
        client.send(wire("GET", "/v1/models", [("Upgrade", "websocket")]))
        leg = front.decode.next()
        assert leg.header("upgrade") is None
        leg.reply(b"[]")
        assert client.read_response().body == b"[]"


def test_connect_is_refused(front):
    with front.connect() as client:
        client.send(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
        client.read_response().refused(501, "connect_not_supported")
    front.decode.expect_nothing()


# ------------------------------------------------------------------------------------------------------------- targets

@pytest.mark.parametrize("target,sent", [
    ("http://elsewhere.example:99/v1/models?a=b", "/v1/models?a=b"), ("http://elsewhere.example", "/"),
    ("http://elsewhere.example?q", "/?q"), ("HTTPS://user@h/x", "/x"), ("/a//b/../c/./d", "/a//b/../c/./d"),
    ("/%41%2f%zz?%20", "/%41%2f%zz?%20"), ("/caf\xe9", "/caf\xe9"), ("//double", "//double"), ("/a?b?c", "/a?b?c"),
    ("/;p=1", "/;p=1"), ("/v1/completions/", "/v1/completions/")])
def test_targets_are_sent_on_as_they_are(front, target, sent):
    with front.connect() as client:
        client.send(wire("GET", target))
        leg = front.decode.next()
        assert leg.target == sent
        assert leg.header("host") == f"localhost:{front.decode.port}"
        leg.reply(b"ok")
        assert client.read_response().status == 200


def test_options_asterisk(front):
    with front.connect() as client:
        client.send(wire("OPTIONS", "*"))
        leg = front.decode.next()
        assert leg.target == "*"
        leg.reply(b"")
        assert client.read_response().status == 200


def test_absolute_form_of_a_generation_path_is_disaggregated(front):
    with front.connect() as client:
        client.send(wire("POST", "http://elsewhere.example/v1/completions?q", [JSON, front.hint], b"{}"))
        leg = front.prefill.next()
        assert leg.target == "/v1/completions?q"
        leg.reply(prefill_body())
        leg = front.decode.next()
        assert leg.target == "/v1/completions?q"
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"


def test_absolute_form_of_the_health_path(front):
    with front.connect() as client:
        assert client.request("GET", "http://x/health?deep=1").body == b"alive\n"


@pytest.mark.parametrize("method", ["PATCH", "PROPFIND", "TRACE", "X-OWN"])
def test_other_methods_pass_through(front, method):
    with front.connect() as client:
        client.send(wire(method, "/thing"))
        leg = front.decode.next()
        assert leg.method == method
        leg.reply(b"ok")
        assert client.read_response().status == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_wrong_method_on_a_generation_path_is_the_engines_affair(rig, method):
    with rig.connect() as client:
        assert client.request(method, "/v1/completions", [rig.hint]).status == 405
    assert rig.legs(rig.prefill) == []


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_redirects_of_decode_are_relayed_and_not_followed(front, own, status):
    trap = own.scripted()
    with front.connect() as client:
        client.send(wire("GET", "/old"))
        front.decode.next().reply(b"see there", status, [("Location", f"http://127.0.0.1:{trap.port}/new")])
        answer = client.read_response()
        assert answer.status == int(status[:3]) and answer.header("location") == f"http://127.0.0.1:{trap.port}/new"
        assert answer.body == b"see there"
    assert trap.links == []


def test_proxies_of_the_environment_are_ignored(own):
    trap, prefill, decode = own.scripted(), own.scripted(), own.scripted()
    proxy = f"http://127.0.0.1:{trap.port}"
    names = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
    sidecar = own.sidecar(decode.port, {name: proxy for name in names})
    with sidecar.connect() as client:
        client.send(wire("POST", "/v1/completions", [JSON, ("x-prefiller-host-port", prefill.authority)], b"{}"))
        prefill.next().reply(prefill_body())
        decode.next().reply(b"ok")
        assert client.read_response().body == b"ok"
    assert trap.links == []


# --------------------------------------------------------------------------------------------------------------- paths

@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/version", "/load", "/ping"])
def test_other_paths_of_the_engine_work(rig, path):
    direct = rig.decode.call("GET", path)
    with rig.connect() as client:
        answer = client.request("GET", path)
    assert answer.status == direct.status == 200
    assert answer.header("content-type") == direct.headers.get("content-type")


@pytest.mark.parametrize("path,body", [("/tokenize", {"model": "mock-model", "prompt": "sheep"}),
                                       ("/v1/embeddings", {"model": "mock-model", "input": "sheep"}),
                                       ("/v1/completions/render", COMPLETION)])
def test_other_post_paths_of_the_engine_work(rig, path, body):
    direct = rig.decode.post(path, body)
    answer = rig.post(body, path)
    assert answer.status == direct.status
    assert rig.legs(rig.prefill) == []
    sent = [leg for leg in rig.legs(rig.decode) if leg["target"] == path]
    assert "x-prefiller-host-port" not in [name.lower() for name, _ in sent[-1]["headers"]]


def test_unknown_path_is_the_engines_404(rig):
    with rig.connect() as client:
        answer = client.request("GET", "/nowhere")
    assert answer.status == 404 and answer.json == {"detail": "Not Found"}


