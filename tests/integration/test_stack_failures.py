"""Parts of the stack that go away and come back, while clients go on."""

import json
import signal
import threading

import pytest
from harness.limits import wait_until
from harness.stack import CHAT, QUICK, answered, chat, start_stack, wait_tidy


@pytest.fixture
def stack():
    with start_stack(flags=QUICK) as running:
        yield running


def wait_event(stack, event, endpoint):
    """An event other than the start's, where every endpoint is not ready until it is probed."""
    assert stack.picker.wait_for_line(lambda line: line.event == event and line.fields.get("endpoint") == endpoint and
                                      line.fields.get("reason") != "not probed yet")


def test_prefill_engine_that_dies_gets_no_more_requests(stack):
    stack.prefills[0].control("POST", "/mock/die")
    wait_event(stack, "endpoint_not_ready", "prefill-0")
    for number in range(8):
        answered(stack, chat(f"after a death {number}"))
    assert stack.prefills[1].state()["prefill_requests"] == 8


def test_decode_engine_that_dies_gets_no_more_requests(stack):
    stack.decodes[0].control("POST", "/mock/die")
    wait_event(stack, "endpoint_not_ready", "decode-0")
    for number in range(8):
        answered(stack, chat(f"after a death {number}"))
    assert stack.decodes[1].state()["decode_requests"] == 8


def test_without_any_prefill_engine_the_answer_is_503(stack):
    for index, engine in enumerate(stack.prefills):
        engine.control("POST", "/mock/die")
        wait_event(stack, "endpoint_not_ready", f"prefill-{index}")
    status, headers, data = stack.post(CHAT, chat("nobody computes this"))
    assert status == 503 and headers["retry-after"]
    assert json.loads(data)["error"]["type"] == "server_error"


def test_endpoints_file_moves_the_traffic(stack):
    places = stack.places()
    places.pop("decode-0")
    places.pop("prefill-1")
    stack.write_endpoints(places)
    wait_event(stack, "endpoint_removed", "prefill-1")
    for number in range(6):
        answered(stack, chat(f"after a change {number}"))
    assert stack.prefills[0].state()["prefill_requests"] == 6 and stack.decodes[1].state()["decode_requests"] == 6
    wait_tidy(stack)


def test_renderer_that_is_away_costs_hits_and_not_requests(stack):
    stack.renderer.control("POST", "/mock/die")
    for number in range(4):
        answered(stack, chat(f"not tokenized {number}"))
    wait_tidy(stack)


def test_what_envoy_answers_itself_has_the_shape_of_all_errors():
    def is_refused(code):
        status, headers, data = stack.post(CHAT, chat("nobody is there"))
        error = json.loads(data)["error"]
        assert headers["content-type"] == "application/json" and headers["retry-after"] == "1"
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        return (status, error["code"], error["type"], error["param"]) == (503, code, "server_error", None)

    with start_stack(flags=QUICK, settings={"DYN_EPP_HEALTH_INTERVAL_MS": "3600000"}) as stack:  # whoever dies is not missed
        answered(stack, chat("before"))
        for sidecar in stack.sidecars:
            sidecar.process.kill()
            sidecar.process.wait()
        assert is_refused("gateway_error")
        wait_tidy(stack)
        stack.picker.process.kill()
        stack.picker.process.wait()
        assert is_refused("endpoint_picker_unavailable")


def test_picker_that_is_killed_comes_back(stack):
    answered(stack, chat("before"))
    assert stack.restart_picker(signal.SIGKILL) == -signal.SIGKILL
    # Envoy reconnects by itself; until then it says so itself.
    wait_until(lambda: stack.post(CHAT, chat("after"))[0] == 200)
    for number in range(4):
        answered(stack, chat(f"after a restart {number}"))
    wait_tidy(stack)


def test_stream_outlives_a_picker_that_is_told_to_stop():
    with start_stack(flags=("--prefill-us-per-token", "0", "--decode-us-per-token", "20000")) as stack:
        body = chat("slowly", stream=True, max_tokens=40)
        connection = stack.connect()
        connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        first = response.readline()
        code = []
        stopping = threading.Thread(target=lambda: code.append(stack.picker.stop()))
        stopping.start()
        text = first + response.read()
        stopping.join()
        connection.close()
        assert response.status == 200 and text.rstrip().endswith(b"data: [DONE]")
        assert code == [0]
