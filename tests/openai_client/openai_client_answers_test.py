"""What the OpenAI client reads through the sidecar is what the engine said."""

import json
import unittest

from client_case import MODEL, ClientCase, user

WEATHER = {"type": "function",
           "function": {"name": "get_weather", "description": "Weather of a city.",
                        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
FORCE_WEATHER = {"type": "function", "function": {"name": "get_weather"}}


class ChatCompletions(ClientCase):
    def test_answers_with_prefill_and_decode(self):
        messages = user("How far is the moon?")
        answer = self.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=20)
        expected = self.expected("/v1/chat/completions", messages=messages, max_tokens=20)
        self.assertEqual(answer.choices[0].message.content, expected["text"])
        self.assertEqual(answer.choices[0].finish_reason, expected["choices"][0]["finish_reason"])
        self.assertEqual(answer.usage.completion_tokens, expected["choices"][0]["completion_tokens"])
        self.assertEqual(answer.usage.prompt_tokens, self.assert_disaggregated())

    def test_streams_with_usage(self):
        messages = user("How far is the sun?")
        stream = self.client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=24,
                                                     stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        expected = self.expected("/v1/chat/completions", messages=messages, max_completion_tokens=24)
        self.assertEqual(text, expected["text"])
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 24)
        self.assertEqual(chunks[-1].usage.prompt_tokens, self.assert_disaggregated())

    def test_calls_a_tool(self):
        messages = user("Weather in Delft?")
        answer = self.client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER],
                                                     tool_choice=FORCE_WEATHER, max_tokens=16)
        call = answer.choices[0].message.tool_calls[0]
        expected = self.expected("/v1/chat/completions", messages=messages, tools=[WEATHER],
                                 tool_choice=FORCE_WEATHER, max_tokens=16)
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(call.function.arguments, expected["choices"][0]["tool_call"]["arguments"])
        json.loads(call.function.arguments)
        self.assert_disaggregated()

    def test_streams_a_tool_call(self):
        messages = user("Weather in Ghent?")
        stream = self.client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER],
                                                     tool_choice=FORCE_WEATHER, max_tokens=16, stream=True)
        name = arguments = ""
        for chunk in stream:
            for call in chunk.choices[0].delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
        expected = self.expected("/v1/chat/completions", messages=messages, tools=[WEATHER],
                                 tool_choice=FORCE_WEATHER, max_tokens=16)
        self.assertEqual(name, "get_weather")
        self.assertEqual(arguments, expected["choices"][0]["tool_call"]["arguments"])
        self.assert_disaggregated()

    def test_two_choices_run_decode_only(self):
        answer = self.client.chat.completions.create(model=MODEL, messages=user("Two of them?"), n=2, max_tokens=8)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assert_decode_only()

    def test_answers_without_a_prefill_endpoint(self):
        with self.new_client() as client:
            answer = client.chat.completions.create(model=MODEL, messages=user("Alone?"), max_tokens=8)
        expected = self.expected("/v1/chat/completions", messages=user("Alone?"), max_tokens=8)
        self.assertEqual(answer.choices[0].message.content, expected["text"])
        self.assert_decode_only()


class Completions(ClientCase):
    def test_answers_with_prefill_and_decode(self):
        answer = self.client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=20)
        expected = self.expected("/v1/completions", prompt="Once upon a time", max_tokens=20)
        self.assertEqual(answer.choices[0].text, expected["text"])
        self.assert_disaggregated()

    def test_streams(self):
        stream = self.client.completions.create(model=MODEL, prompt="There was", max_tokens=20, stream=True)
        text = "".join(chunk.choices[0].text for chunk in stream)
        self.assertEqual(text, self.expected("/v1/completions", prompt="There was", max_tokens=20)["text"])
        self.assert_disaggregated()

    def test_several_prompts_run_decode_only(self):
        answer = self.client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=8)
        self.assertEqual(len(answer.choices), 2)
        self.assert_decode_only()


class Responses(ClientCase):
    def test_answers_with_prefill_and_decode(self):
        answer = self.client.responses.create(model=MODEL, input="How deep is the sea?", max_output_tokens=20)
        expected = self.expected("/v1/responses", input="How deep is the sea?", max_output_tokens=20)
        self.assertEqual(answer.output_text, expected["text"])
        self.assert_disaggregated()

    def test_streams(self):
        stream = self.client.responses.create(model=MODEL, input="How high is the hill?", max_output_tokens=20,
                                              stream=True)
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        expected = self.expected("/v1/responses", input="How high is the hill?", max_output_tokens=20)
        self.assertEqual(text, expected["text"])
        self.assert_disaggregated()


class OtherPaths(ClientCase):
    def test_lists_models(self):
        self.assertIn(MODEL, [model.id for model in self.client.models.list()])


if __name__ == "__main__":
    unittest.main()
