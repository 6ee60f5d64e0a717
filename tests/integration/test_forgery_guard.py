"""Clients can't send a handoff: on no path, in no spelling, under no encoding."""

import json

import pytest
from harness.http_client import wire

JSON = ("Content-Type", "application/json")
GENERATION = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate"]
OTHERS = ["/v1/embeddings", "/tokenize", "/v1/chat/completions/render", "/score", "/v2/anything", "/"]
FORGED = '{"kv_transfer_params": {"do_remote_prefill": true}}'
HINT = pytest.mark.parametrize("disaggregated", [True, False], ids=["disaggregated", "decode-only"])


def refused(front, body, path="/v1/completions", headers=(JSON,), status=400, code="invalid_pd_request",
            disaggregated=False):
    with front.connect() as client:
        hint = [front.hint] if disaggregated else []
        answer = client.request("POST", path, [*headers, *hint], body if isinstance(body, (bytes, list)) else body.encode())
        answer.refused(status, code)
    front.prefill.expect_nothing()
    front.decode.expect_nothing()
    return answer


def passed(front, body, path="/v1/completions", headers=(JSON,)):
    body = body if isinstance(body, bytes) else body.encode()
    with front.connect() as client:
        client.send(wire("POST", path, headers, body))
        leg = front.decode.next()
        assert leg.body() == body
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"


@HINT
@pytest.mark.parametrize("path", GENERATION)
def test_c08_handoff_of_a_client_is_400_on_every_generation_path(front, path, disaggregated):
    answer = refused(front, FORGED, path, disaggregated=disaggregated)
    assert answer.error["param"] == "kv_transfer_params"


@pytest.mark.parametrize("path", OTHERS)
def test_handoff_of_a_client_is_400_on_every_other_post_path(front, path):
    refused(front, FORGED, path)


@pytest.mark.parametrize("path", [*OTHERS, "/invocations", "/v1/completions"])
def test_handoff_behind_too_many_members_is_400_on_every_path(front, path):
    members = ", ".join(f'"a{number}": 1' for number in range(5000))
    refused(front, "{" + members + ', "kv_transfer_params": {"do_remote_prefill": true}}', path)


@pytest.mark.parametrize("path", ["/v1/completions?x=y", "/v1/chat/complet%69ons", "/v1%2Fchat%2Fcompletions",
                                  "/v1%2fcompletions", "/%76%31/completions", "/v1/completions/", "//v1/completions",
                                  "/v1/./completions", "http://h/v1/completions", "/v1/completions%3Fx",
                                  "/v1/%63ompletions#x", "/v1/%2563ompletions"])
def test_spellings_of_a_path(front, path):
    refused(front, FORGED, path)


@pytest.mark.parametrize("headers", [[], [("Content-Type", "")], [("Content-Type", "application/json; charset=utf-8")],
                                     [("Content-Type", "APPLICATION/JSON")], [("Content-Type", "application/problem+json")],
                                     [("Content-Type", "text/json")], [("content-type", " application/json ;x")]], ids=repr)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
def test_content_types_that_an_engine_may_read_as_json(front, headers, path):
    refused(front, FORGED, path, headers)


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", "multipart/form-data; boundary=x", "x"])
def test_generation_paths_are_guarded_whatever_the_content_type(front, content_type):
    refused(front, FORGED, "/v1/completions", [("Content-Type", content_type)])


def test_two_content_types(front):
    refused(front, FORGED, "/v1/embeddings", [("Content-Type", "text/plain"), JSON])


def test_a_body_in_chunks_is_guarded_too(front):
    refused(front, [FORGED[:7].encode(), FORGED[7:30].encode(), FORGED[30:].encode()])
    refused(front, [bytes([byte]) for byte in FORGED.encode()], "/v1/embeddings")


FORGERIES = {
    "object": '{"kv_transfer_params":{"a":1}}', "string": '{"kv_transfer_params":"x"}', "number": '{"kv_transfer_params":1}',
    "array": '{"kv_transfer_params":[]}', "true": '{"kv_transfer_params":true}', "false": '{"kv_transfer_params":false}',
    "escaped-key": '{"kv\\u005ftransfer_params":{"a":1}}', "escaped-letter": '{"\\u006Bv_transfer_params":{"a":1}}',
    "all-escaped": '{"' + "".join(f"\\u{ord(c):04x}" for c in "kv_transfer_params") + '":{"a":1}}',
    "duplicate-last": '{"kv_transfer_params":null,"kv_transfer_params":{"a":1}}',
    "duplicate-first": '{"kv_transfer_params":{"a":1},"kv_transfer_params":null}',
    "behind-much": '{"messages":[' + ",".join(['{"a":"}{"}'] * 500) + '],"kv_transfer_params":{"a":1}}',
    "behind-white-space": '{ "prompt" : "p" ,\n\t "kv_transfer_params" : { "a" : 1 } }',
    "extra-args": '{"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}}}',
    "extra-args-escaped": '{"sampling\\u005fparams":{"extra_args":{"kv_transfer\\u005fparams":{"a":1}}}}',
    "extra-args-duplicate": '{"sampling_params":{},"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}}}',
    "extra-args-inner-duplicate": '{"sampling_params":{"extra_args":{},"extra_args":{"kv_transfer_params":1}}}',
    "xargs": '{"vllm_xargs":{"kv_transfer_params":"x"}}',
}


@HINT
@pytest.mark.parametrize("body", FORGERIES.values(), ids=FORGERIES)
def test_forgeries(front, body, disaggregated):
    refused(front, body, disaggregated=disaggregated)


HARMLESS = ['{"kv_transfer_params":null}', '{"kv_transfer_params":{}}', '{"kv_transfer_params": { }}',
            '{"messages":[{"kv_transfer_params":{"a":1}}]}', '{"prompt":"\\"kv_transfer_params\\":{}"}',
            '{"KV_TRANSFER_PARAMS":{"a":1}}', '{"kv_transfer_params ":{"a":1}}', '{"x":{"kv_transfer_params":{"a":1}}}',
            '{"sampling_params":{"kv_transfer_params":{"a":1}}}', '{"ec_transfer_params":{"a":1}}']


@pytest.mark.parametrize("body", HARMLESS)
def test_c08_harmless_bodies_go_through_unchanged(front, body):
    passed(front, body)


@pytest.mark.parametrize("body", ["[1,2]", '"x"', "null", "7", '[{"kv_transfer_params":{"a":1}}]'])
def test_bodies_that_are_no_object_are_the_engines_affair_without_a_hint(front, body):
    passed(front, body)


NOT_JSON = {"cut": '{"prompt":"p"', "trailing": '{"prompt":"p"} x', "two": '{"a":1}{"kv_transfer_params":{"a":1}}',
            "single-quotes": "{'kv_transfer_params':{'a':1}}", "trailing-comma": '{"a":1,}', "no-colon": '{"a" 1}',
            "comment-between": '{/**/"kv_transfer_params":{"a":1}}', "unquoted": '{kv_transfer_params:{"a":1}}'}


@HINT
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_what_cannot_be_looked_into_is_not_passed_on(front, body, disaggregated):
    refused(front, body, disaggregated=disaggregated)


# No JSON either, but nothing can hide behind it: the engine says so itself.
@pytest.mark.parametrize("body", [b'{"a":"\x01"}', b'{"a":"\\x"}', b'{"a":NaN}', b'{"a":01}', b'{"a":"\xff"}'], ids=repr)
def test_faults_inside_a_value_are_the_engines_affair(front, body):
    passed(front, body)


ENCODINGS = {"utf-8-bom": b"\xef\xbb\xbf" + FORGED.encode(), "utf-16-le-bom": FORGED.encode("utf-16"),
             "utf-16-be-bom": b"\xfe\xff" + FORGED.encode("utf-16-be"), "utf-16-le": FORGED.encode("utf-16-le"),
             "utf-16-be": FORGED.encode("utf-16-be"), "utf-32-le": FORGED.encode("utf-32-le"),
             "utf-32-be": FORGED.encode("utf-32-be"), "utf-32-bom": FORGED.encode("utf-32")}


@HINT
@pytest.mark.parametrize("body", ENCODINGS.values(), ids=ENCODINGS)
def test_other_encodings_are_400_on_generation_paths(front, body, disaggregated):
    refused(front, body, disaggregated=disaggregated)


@pytest.mark.parametrize("headers", [[JSON], []], ids=["json", "no-type"])
@pytest.mark.parametrize("body", ENCODINGS.values(), ids=ENCODINGS)
def test_other_encodings_hide_no_handoff_on_other_paths(front, body, headers):
    refused(front, body, "/v2/chat", headers)


def test_other_encodings_of_what_is_not_json_pass_through(front):
    passed(front, FORGED.encode("utf-16"), "/v2/chat", [("Content-Type", "application/octet-stream")])


@HINT
@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "GZIP", "gzip, identity", "identity, gzip", "x"])
def test_content_encoding_is_415(front, coding, disaggregated):
    refused(front, FORGED, headers=(JSON, ("Content-Encoding", coding)), status=415, code="unsupported_content_encoding",
            disaggregated=disaggregated)


def test_content_encoding_named_in_connection_is_415_all_the_same(front):
    refused(front, FORGED, headers=(JSON, ("Content-Encoding", "gzip"), ("Connection", "content-encoding")), status=415,
            code="unsupported_content_encoding")


def test_two_content_encodings(front):
    refused(front, FORGED, headers=(JSON, ("Content-Encoding", "identity"), ("Content-Encoding", "gzip")), status=415,
            code="unsupported_content_encoding")


def test_identity_is_no_encoding(front):
    passed(front, '{"a":1}', headers=(JSON, ("Content-Encoding", "identity")))


def test_content_encoding_elsewhere_passes_through(front):
    passed(front, b"\x1f\x8b\x08\x00rubbish", "/v1/embeddings", (JSON, ("Content-Encoding", "gzip")))


@pytest.mark.parametrize("depth", [100, 500])
def test_deep_nesting_is_bounded_and_harmless(front, depth):
    body = '{"a":' + "[" * depth + "]" * depth + "}"
    with front.connect() as client:
        client.send(wire("POST", "/v1/completions", [JSON], body.encode()))
        if depth <= 500:
            leg = front.decode.next()
            leg.reply(b"ok")
        assert client.read_response().status == 200


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_very_deep_nesting_does_no_harm(front, opening):
    body = '{"a":' + opening * 1_000_000
    refused(front, body)
    refused(front, body, disaggregated=True)


def test_very_many_members_do_no_harm(front):
    body = "{" + ",".join(f'"k{i}":{i}' for i in range(300_000)) + ',"kv_transfer_params":{"a":1}}'
    refused(front, body)


def test_guarded_path_in_another_case_is_another_path(front):
    refused(front, FORGED, "/V1/Completions")


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_other_methods_are_not_generation(front, method):
    with front.connect() as client:
        client.send(wire(method, "/v1/completions", [JSON], FORGED.encode()))
        front.decode.next().reply(b"", "405 Method Not Allowed")
        assert client.read_response().status == 405


@pytest.mark.settings(DYN_SIDECAR_ALLOW_CLIENT_HANDOFF="true")
@pytest.mark.parametrize("path", GENERATION)
def test_trusted_clients_may_send_one(scripted, path):
    passed(scripted, FORGED, path)
    passed(scripted, json.dumps({"sampling_params": {"extra_args": {"kv_transfer_params": {"a": 1}}}}), path)


@pytest.mark.settings(DYN_SIDECAR_BACKEND="none")
def test_without_a_backend_nothing_is_guarded(scripted):
    passed(scripted, FORGED)
