"""Failures reach the OpenAI client as the right exception, and leave nothing behind on the engines."""

import unittest

import openai

from client_case import MODEL, ClientCase, user

LONG = 60000  # tokens: a minute at the engines' speed


class Failures(ClientCase):
    def ask(self, **arguments):
        return self.client.chat.completions.create(model=MODEL, messages=user("Hello?"), **arguments)

    def test_a_refusal_of_prefill_is_a_bad_request(self):
        self.stack.prefill.fault(match={"role": "prefill"}, action="status", status=400,
                                 body={"error": {"message": "This prompt is too long.", "type": "BadRequestError",
                                                 "param": None, "code": 400}})
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(max_tokens=8)
        self.assertIn("This prompt is too long.", caught.exception.message)
        self.assertEqual(self.asked("decode"), 0)

    def test_the_engines_own_refusal_is_a_bad_request(self):
        with self.assertRaises(openai.BadRequestError):
            self.ask(max_tokens=8, temperature=-1)

    def test_an_unknown_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="no-such-model", messages=user("Hello?"), max_tokens=8)

    def test_a_busy_prefill_engine_is_a_server_error_with_our_code(self):
        self.stack.prefill.fault(match={"role": "prefill"}, action="status", status=503, body="secret of the engine",
                                 headers=[["Retry-After", "3"]])
        with self.assertRaises(openai.InternalServerError) as caught:
            self.ask(max_tokens=8)
        self.assertEqual(caught.exception.status_code, 503)
        self.assertEqual(caught.exception.code, "prefill_upstream_error")
        self.assertEqual(caught.exception.response.headers["retry-after"], "3")
        self.assertNotIn("secret", caught.exception.message)

    def test_the_clients_own_retry_gets_through(self):
        self.stack.prefill.fault(match={"role": "prefill"}, times=1, action="status", status=503, body="busy")
        answer = self.client.with_options(max_retries=2).chat.completions.create(
            model=MODEL, messages=user("Again?"), max_tokens=8)
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assert_disaggregated()

    def test_an_unreachable_prefill_engine_is_a_server_error(self):
        with self.assertRaises(openai.InternalServerError) as caught:
            self.ask(max_tokens=8, extra_headers={"x-prefiller-host-port": "127.0.0.1:1"})
        self.assertEqual(caught.exception.status_code, 502)
        self.assertEqual(caught.exception.code, "prefill_upstream_unavailable")

    def test_a_wrong_routing_header_is_a_server_error(self):
        with self.assertRaises(openai.InternalServerError) as caught:
            self.ask(max_tokens=8, extra_headers={"x-prefiller-host-port": "no port"})
        self.assertEqual(caught.exception.code, "invalid_epp_metadata")

    def test_a_forged_handoff_is_a_bad_request(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(max_tokens=8, extra_body={"kv_transfer_params": {"do_remote_prefill": True}})
        self.assertEqual(caught.exception.code, "invalid_pd_request")
        self.assertEqual(caught.exception.param, "kv_transfer_params")

    def test_a_time_out_frees_the_engines(self):
        with self.assertRaises(openai.APITimeoutError):
            self.client.with_options(timeout=0.5).chat.completions.create(
                model=MODEL, messages=user("Slowly?"), max_tokens=LONG)
        self.states()  # waits until neither engine holds anything
        self.assertEqual(self.grown("decode", "requests", "aborted"), 1)

    def test_a_stream_that_is_left_frees_the_engines(self):
        stream = self.ask(max_tokens=LONG, stream=True)
        for _ in range(3):
            next(iter(stream))
        stream.close()
        self.states()
        self.assertEqual(self.grown("decode", "requests", "aborted"), 1)


if __name__ == "__main__":
    unittest.main()
