"""What a client is told when there is no room or nobody for its request: status, code, shape and `retry-after`, whether it asked for
a stream or not, over HTTP/1.1 and HTTP/2; and that nothing of it stays."""

import contextlib
import itertools

import pytest
from harness.envoy_clients import CLIENTS, ask, start
from envoy_process import subset_header
from envoy_stack import Front, Stack, prompt
from harness.limits import wait_until

POLICY = """
default_policy_family: normal
policy_classes:
  - {name: normal, prefill_busy_threshold: 1000000}
  - {name: patient, prefill_busy_threshold: 0}
  - {name: brief, prefill_busy_threshold: 0, request_queue_limit_per_worker: 1}
  - {name: never, prefill_busy_threshold: 1000000, request_queue_limit_per_worker: 0}
"""
LIMIT = 2 * 1024 * 1024  # of a body
BUSY = 300_000  # prefill tokens beyond which a worker gets nothing more; the tokenizer here makes one of each byte
SETTINGS = {
    "DYN_EPP_MAX_NUM_BATCHED_TOKENS": "1000",
    "DYN_EPP_MAX_INFLIGHT_REQUESTS": "2",
    "DYN_EPP_MAX_REQUEST_BODY_BYTES": str(LIMIT),
    "DYN_EPP_MAX_BUFFERED_BYTES": str(LIMIT),
    "DYN_EPP_TOKENIZER_FALLBACK": "error",
    "DYN_EPP_STRICT_MODEL": "true",
    "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD": str(BUSY),
    "DYN_EPP_SHED_RETRY_AFTER_SECS": "7",
}
NUMBERS = itertools.count()
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    with contextlib.ExitStack() as stack:
        yield Stack(stack, {"DYN_ROUTER_POLICY_CONFIG": str(policy), **SETTINGS}, ("--prefill-us-per-token", "1000"))


@pytest.fixture
def stack(shared):
    with shared.checked():
        yield shared


class Case:
    """A state in which a request is refused: `made(stack)` brings it about while it is entered, and yields what the request
    has beside its prompt (headers, path, members of the body)."""

    def __init__(self, status, code, made, message=None):
        self.status = status
        self.code = code
        self.made = contextlib.contextmanager(made)
        self.message = message
        self.kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
        self.name = made.__name__


@contextlib.contextmanager
def being_prefilled(stack, **members):
    """Another request, which keeps prefill busy for as long as this is entered."""
    # Unlike any before it from the first block on: nothing of it is taken for cached.
    body = {"user": str(next(NUMBERS)), **prompt(prompt="word " * 20_000, **members)}
    other = start("http1", stack.envoy.port, body)
    stack.prefill.wait(requests__running=1)
    yield
    other.leave("close")


def too_many_in_flight(stack):
    stack.epp.tell("tokenizer", "hold")
    others = [start("http1", stack.envoy.port, prompt(), path=CHAT) for _ in range(2)]
    wait_until(lambda: stack.epp.report()["planning"] == 2)
    yield {}
    for other in others:
        other.leave("close")
    wait_until(lambda: stack.epp.report()["planning"] == 0)
    stack.epp.tell("tokenizer", "answer")


def too_many_in_the_queue(stack):
    brief = [("x-dynamo-meta-policy-class", "brief")]
    with being_prefilled(stack):
        other = start("http1", stack.envoy.port, prompt(), brief)
        wait_until(lambda: stack.waiting() == 1)
        yield {"headers": brief}
        other.leave("close")
        wait_until(lambda: stack.waiting() == 0)


def too_long_in_the_queue(stack):
    with being_prefilled(stack):
        yield {"headers": [("x-dynamo-meta-policy-class", "patient"), ("x-dynamo-meta-slo-ttft-ms", "20")]}


def class_without_places(_):
    yield {"headers": [("x-dynamo-meta-policy-class", "never")]}


def workers_with_too_much_to_do(stack):
    with being_prefilled(stack, filler="x" * BUSY):
        yield {}


def no_decode_worker(stack):
    stack.epp.endpoint("d0", stack.sidecar.port, "decode", ready=False)
    yield {}
    stack.epp.endpoint("d0", stack.sidecar.port, "decode")


def no_prefill_worker(stack):
    stack.epp.endpoint("p0", stack.prefill.port, "prefill", ready=False)
    yield {}
    stack.epp.endpoint("p0", stack.prefill.port, "prefill")


def endpoints_that_are_not_known_yet(stack):
    stack.epp.tell("synced", 0)
    yield {}
    stack.epp.tell("synced", 1)


def subset_that_is_empty(_):
    yield {"headers": [subset_header()]}


def subset_of_others(_):
    yield {"headers": [subset_header("127.0.0.1:1", "10.0.0.1")]}


def tokenizer_that(does):
    def made(stack):
        stack.epp.tell("tokenizer", does)
        yield {"path": CHAT}
        stack.epp.tell("tokenizer", "answer")

    made.__name__ = f"tokenizer_that_says_{does}"
    return made


def too_many_metadata_headers(_):
    yield {"headers": [(f"x-dynamo-meta-{number}", "1") for number in range(65)]}


def model_that_is_not_there(_):
    yield {"members": {"model": "another"}}


def bodies_beyond_the_memory(stack):
    other = CLIENTS["http1"](stack.envoy.port, CHAT)
    other.send_head(length=LIMIT)
    other.send_body(b"x" * (LIMIT - 1000), end=False)
    wait_until(lambda: stack.epp.report()["buffered_bytes"] == LIMIT - 1000)
    yield {"members": {"filler": "x" * 2000}}
    other.leave("close")


CASES = [
    Case(429, "overloaded", too_many_in_flight),
    Case(429, "overloaded", too_many_in_the_queue),
    Case(429, "overloaded", too_long_in_the_queue, "No worker had room for the request before its deadline."),
    Case(429, "overloaded", class_without_places),
    Case(429, "overloaded", workers_with_too_much_to_do),
    Case(503, "no_ready_endpoint", no_decode_worker),
    Case(503, "no_ready_endpoint", no_prefill_worker, "No prefill endpoint is ready."),
    Case(503, "no_ready_endpoint", endpoints_that_are_not_known_yet, "The endpoints are not known yet."),
    Case(503, "no_ready_endpoint", subset_that_is_empty),
    Case(503, "no_ready_endpoint", subset_of_others),
    Case(503, "buffers_full", bodies_beyond_the_memory),
    Case(404, "model_not_found", model_that_is_not_there),
    Case(431, "too_many_metadata_headers", too_many_metadata_headers),
    Case(400, "invalid_request", tokenizer_that("refused")),
    Case(503, "tokenizer_unavailable", tokenizer_that("unavailable")),
    Case(504, "tokenizer_timeout", tokenizer_that("timeout")),
    Case(502, "tokenizer_bad_answer", tokenizer_that("garbage")),
]


def check_refused(reply, status, code, kind, message=None):
    assert (reply.status, reply.error["code"], reply.error["type"]) == (status, code, kind), reply
    assert reply.headers.get("retry-after") == ("7" if status in (429, 503) else None), reply
    assert reply.error["message"] and message in (None, reply.error["message"]), reply


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refusal(stack, case, client, stream):
    with case.made(stack) as how:
        members = how.pop("members", {})
        reply = ask(client, stack.envoy.port, prompt(stream=stream, **members), **how)
    check_refused(reply, case.status, case.code, case.kind, case.message)


def test_refusal_ends_no_connection(stack):
    """The request had come as a whole: the next one comes on the same connection."""
    request = start("http1", stack.envoy.port, prompt(), [("x-dynamo-meta-policy-class", "never")])
    check_refused(request.read(), 429, "overloaded", "rate_limit_error")
    assert request.connection.request("GET", "/v1/models").status == 200
    request.close()


@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "not_announced"])
@pytest.mark.parametrize("client", CLIENTS)
def test_body_beyond_the_limit(stack, client, is_announced):
    """It is answered before it has come, which ends an HTTP/1.1 connection, and says so."""
    request = CLIENTS[client](stack.envoy.port, CHAT)
    request.send_head(length=LIMIT + 1 if is_announced else None)
    if not is_announced:
        for _ in range(LIMIT // 65536 + 1):
            request.send_body(b"x" * 65536, end=False)
    reply = request.read()
    check_refused(reply, 413, "request_too_large", "invalid_request_error")
    assert reply.headers.get("connection") == ("close" if client == "http1" else None)
    request.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_body_that_stops_coming(client):
    with contextlib.ExitStack() as stack:
        front = Front(stack, {"DYN_EPP_REQUEST_BODY_TIMEOUT_MS": "100", "DYN_EPP_SHED_RETRY_AFTER_SECS": "7"})
        request = CLIENTS[client](front.envoy.port, CHAT)
        request.send_head(length=1000)
        request.send_body(b"{", end=False)
        reply = request.read()
        check_refused(reply, 408, "request_timeout", "invalid_request_error")
        assert reply.headers.get("connection") == ("close" if client == "http1" else None)
        request.close()
        front.epp.wait_tidy()


def test_subset_that_has_the_worker(stack):
    assert ask("http1", stack.envoy.port, prompt(), [subset_header("127.0.0.1:1", f"127.0.0.1:{stack.sidecar.port}")]).status == 200


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("status", [429, 503])
def test_engine_without_room(stack, role, status):
    """Its own words, where they are about the request; else ours. When to come again is its to say."""
    engine = {"prefill": stack.prefill, "decode": stack.decode}[role]
    # `reject`: it has read the request, and gives the handoff's blocks back.
    action = "status" if role == "prefill" else "reject"
    engine.fault(match={"role": role}, action=action, status=status, body={"error": {"message": "full"}},
                 headers=[["Retry-After", "3"]])
    reply = ask("http1", stack.envoy.port, prompt())
    assert reply.status == status, reply
    if role == "prefill":
        assert reply.headers["retry-after"] == "3", reply
    if role == "prefill" and status == 503:
        assert reply.error["code"] == "prefill_upstream_error"
    elif role == "prefill":
        assert reply.body == b'{"error":{"message":"full"}}'
