#!/usr/bin/env python3
"""Proves the measuring tools themselves: bytes arrive, counts are right, damage is noticed. Takes seconds."""

import argparse
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from rig import RigError
from rig.bench import Bench, _parse_strace_counts
from rig.children import Children
from rig.goals import ROWS, verdict
from rig.metrics import PROTOCOLS
from rig.products import _SIDECAR_PORT, Options, Sidecar

_PORT = re.compile(r"listening port=(\d+)")
_LIMIT = 20  # must not expire
_BIN = "."


def tool(name):
    return os.path.join(_BIN, name)


class RigCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="handoff-bench-")
        self.addCleanup(folder.cleanup)
        self.children = Children(folder.name)
        self.addCleanup(self.children.__exit__)
        self.engine = self.start("bench-fake-engine")
        self.relay = self.start("bench-relay", "--upstream-port", str(self.engine))

    def start(self, name, *arguments):
        child = self.children.start(name, [tool(name), *arguments])
        return int(child.wait_for(_PORT, _LIMIT).group(1))

    def run_tool(self, name, *arguments):
        result = subprocess.run([tool(name), *map(str, arguments)], capture_output=True, text=True, timeout=_LIMIT,
                                check=False)
        lines = result.stdout.splitlines()
        return result.returncode, json.loads(lines[-1]) if lines else None, result.stderr

    def post(self, port, body, path="/v1/chat/completions", **options):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LIMIT)
        connection.request("POST", path, body, {"Content-Type": "application/json"}, **options)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def get(self, port, path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LIMIT)
        connection.request("GET", path)
        content = json.loads(connection.getresponse().read())
        connection.close()
        return content

    def stats(self, engine=None):
        return self.get(engine or self.engine, "/stats")

    def sse(self, port, streams=3, events=20, fault=""):
        path = f"/v1/chat/completions?events={events}&interval_ms=5&bytes=200{fault}"
        return self.run_tool("bench-sse", "--port", port, "--streams", streams, "--events", events, "--event-bytes",
                             200, "--path", path, "--complete", 1)


class FakeEngine(RigCase):
    def test_answers_health_and_any_post(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.engine, timeout=_LIMIT)
        self.addCleanup(connection.close)
        for _ in range(2):  # on one kept connection
            connection.request("GET", "/health")
            answer = connection.getresponse()
            self.assertEqual((answer.status, answer.read()), (200, b"{}"))
        status, content = self.post(self.engine, b"{}")
        self.assertEqual(status, 200)
        self.assertIn("choices", json.loads(content))

    def test_gives_a_handoff_when_asked_in_the_middle_of_a_large_chunked_body(self):
        body = b'{"p":"' + b"x" * 300000 + b'","k":{"do_remote_decode": true},"q":"' + b"y" * 99 + b'"}'
        pieces = [body[i:i + 7777] for i in range(0, len(body), 7777)]
        status, content = self.post(self.engine, iter(pieces), encode_chunked=True)
        self.assertEqual(status, 200)
        self.assertTrue(json.loads(content)["kv_transfer_params"]["do_remote_prefill"])
        self.assertEqual(self.stats()["handoffs_given"], 1)

    def test_notices_a_handoff_cut_between_two_packets(self):
        body = b'{"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false}}'
        head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        for cut in range(0, len(body), 5):
            with socket.create_connection(("127.0.0.1", self.engine), timeout=_LIMIT) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(head + body[:cut])
                self.stats()  # by its answer the engine has read the first part
                connection.sendall(body[cut:])
                self.assertTrue(connection.recv(100).startswith(b"HTTP/1.1 200"))
        counted = self.stats()
        self.assertEqual(counted["handoffs_taken"], len(range(0, len(body), 5)))
        self.assertEqual(counted["handoffs_given"], 0)

    def test_refuses_what_is_not_http(self):
        with socket.create_connection(("127.0.0.1", self.engine), timeout=_LIMIT) as connection:
            connection.sendall(b"hello\r\n\r\n")
            self.assertEqual(connection.recv(100), b"")


    def test_answers_as_each_protocol_wants_it(self):
        prefill = self.start("bench-fake-engine", "--role", "prefill")
        self.assertEqual([self.get(port, "/server_info")["disaggregation_mode"] for port in (prefill, self.engine)],
                         ["prefill", "decode"])
        self.assertIn("ctx_info_endpoint", self.get(prefill, "/server_info")["disaggregated_params"])
        self.assertTrue(self.get(prefill, "/query")["0"]["engine_id"])

        number = 2**62 + 1
        context = f'{{"p":"{"x" * 400}","disaggregated_params":{{"request_type":"context_only","disagg_request_id":{number}}}}}'
        reply = json.loads(self.post(prefill, context.encode())[1])
        self.assertEqual(reply["choices"][0]["disaggregated_params"]["disagg_request_id"], number)
        self.assertEqual(len(reply["prompt_token_ids"]), len(context) // 4)
        legs = ((b'{"bootstrap_room": 7 }', b'{"bootstrap_room":7}'),
                (b'{"k":{"do_remote_decode":true,"transfer_id":"a"}}', b'{"k":{"do_remote_prefill":true,"transfer_id":"a"}}'),
                (b'{"max_tokens":1}', b'{"max_tokens":16}'))
        for first, second in legs:
            self.assertEqual(json.loads(self.post(prefill, first)[1])["choices"][0]["finish_reason"], "length")
            self.assertEqual(json.loads(self.post(self.engine, second)[1])["choices"][0]["finish_reason"], "stop")
        self.post(self.engine, context.replace("context_only", "generation_only").encode())
        given, taken = self.stats(prefill), self.stats()
        self.assertEqual((given["handoffs_given"], given["paired"]), (4, 3))
        self.assertEqual((taken["handoffs_taken"], taken["plain_answers"], taken["paired"]), (3, 1, 3))
        self.assertEqual(given["pairing_sum"], taken["pairing_sum"])
        self.post(prefill, b'{"bootstrap_room":1}')
        self.post(self.engine, b'{"bootstrap_room":2}')
        self.assertNotEqual(self.stats(prefill)["pairing_sum"], self.stats()["pairing_sum"])

    def test_notices_an_id_cut_between_two_packets(self):
        body = b'{"transfer_id":"xfer-0123456789abcdef0123456789abcdef","max_tokens":1}'
        head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        sums = [0]
        for cut in range(len(body)):
            with socket.create_connection(("127.0.0.1", self.engine), timeout=_LIMIT) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(head + body[:cut])
                self.stats()
                connection.sendall(body[cut:])
                self.assertTrue(connection.recv(100).startswith(b"HTTP/1.1 200"))
            sums.append(self.stats()["pairing_sum"])
        self.assertEqual(self.stats()["paired"], len(body))
        self.assertEqual(len({(after - before) % 2**64 for before, after in zip(sums, sums[1:])}), 1)


class Protocols(RigCase):
    """The rig's own proof of a handoff, through the real sidecar."""

    def setUp(self):
        super().setUp()
        if not os.access(tool("handoff-sidecar"), os.X_OK):
            self.skipTest("no handoff-sidecar beside the tools")
        core = min(os.sched_getaffinity(0))
        self.bench = Bench(self.children, Options(_BIN), core, core, seconds=1, filler="plain")

    def check(self, name):
        with self.bench.running(name) as target:
            self.bench.check_handoffs(name, target)

    def test_hands_over_in_every_protocol(self):
        for name in ("sidecar",) + PROTOCOLS:
            with self.subTest(name):
                self.check(name)

    def test_refuses_to_measure_what_hands_over_nothing_or_in_another_way(self):
        for name, settings, proof in (("nixl", {}, {"has_pairing_id": True}),
                                      ("sglang", {"DYN_SIDECAR_BACKEND": "sglang"}, {}),
                                      ("shared", {"DYN_SIDECAR_VLLM_CONNECTOR": "shared-storage"}, {})):
            self.bench.products[name] = Sidecar(name, self.children, self.bench.options, settings, **proof)
            with self.subTest(name), self.assertRaisesRegex(RigError, "of 100"):
                self.check(name)


class Relay(RigCase):
    def test_passes_every_byte_in_both_directions(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            relay = self.start("bench-relay", "--upstream-port", str(server.getsockname()[1]))
            with socket.create_connection(("127.0.0.1", relay), timeout=_LIMIT) as client:
                upstream, _ = server.accept()
                upstream.settimeout(_LIMIT)
                with upstream:
                    for sender, receiver in ((client, upstream), (upstream, client)):
                        # More than the socket buffers hold while nobody reads.
                        data = os.urandom(1 << 20) * 8
                        reader = late_reader(receiver, len(data))
                        sender.sendall(data)
                        self.assertEqual(reader(), data)

    def test_carries_keep_alive_requests(self):
        code, result, error = self.run_tool("bench-load", "--port", self.relay, "--connections", 4, "--requests", 200,
                                            "--body-bytes", 262144)
        self.assertEqual(code, 0, error)
        self.assertEqual((result["requests"], result["broken"], result["reconnects"]), (200, 0, 0))


class TwoLegRelay(RigCase):
    def test_makes_both_legs_of_a_request_that_names_a_prefill_engine(self):
        prefill = self.start("bench-fake-engine")
        prefill_header = ["--header", f"x-prefiller-host-port: 127.0.0.1:{prefill}"]
        legs = 0
        for at_once in (0, 1):
            relay = self.start("bench-two-leg-relay", "--upstream-port", str(self.engine), "--at-once", str(at_once))
            for options in ([], prefill_header):
                code, result, error = self.run_tool("bench-load", "--port", relay, "--connections", 4, "--requests",
                                                    200, "--body-bytes", 262144, *options)
                self.assertEqual(code, 0, error)
                self.assertEqual((result["requests"], result["broken"], result["reconnects"]), (200, 0, 0))
                legs += 200 if options else 0
                self.assertEqual((self.stats(prefill)["handoffs_given"], self.stats()["handoffs_taken"]), (legs, legs))

    def test_holds_the_answer_of_legs_that_start_at_once_until_prefill_is_done(self):
        relay = self.start("bench-two-leg-relay", "--upstream-port", str(self.engine), "--at-once", "1")
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_LIMIT)
            with socket.create_connection(("127.0.0.1", relay), timeout=_LIMIT) as client:
                client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 7\r\nx-prefiller-host-port: 127.0.0.1:%d\r\n\r\n"
                               b'{"a":1}' % server.getsockname()[1])
                prefill, _ = server.accept()
                with prefill:
                    while self.stats()["handoffs_taken"] == 0:
                        pass
                    client.setblocking(False)
                    self.assertRaises(BlockingIOError, client.recv, 100)
                    client.settimeout(_LIMIT)
                    prefill.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    self.assertTrue(client.recv(1000).startswith(b"HTTP/1.1 200"))


def late_reader(connection, size):
    """Reads `size` bytes in a thread that starts late, so that the sender meets full buffers."""
    received = bytearray()

    def run():
        while len(received) < size:
            part = connection.recv(65536)
            if not part:
                return
            received.extend(part)

    thread = threading.Timer(0.1, run)
    thread.start()

    def result():
        thread.join(_LIMIT)
        return bytes(received)

    return result


class LoadGenerator(RigCase):
    def test_sends_exactly_the_requests_it_reports(self):
        before = self.stats()["requests"]
        code, result, error = self.run_tool("bench-load", "--port", self.engine, "--connections", 7, "--requests", 1000)
        self.assertEqual(code, 0, error)
        self.assertEqual(result["requests"], 1000)
        self.assertEqual(self.stats()["requests"] - before - 1, 1000)  # less the first look at the counters

    def test_keeps_the_rate_of_an_open_loop(self):
        code, result, error = self.run_tool("bench-load", "--port", self.engine, "--connections", 8, "--rate", 1000,
                                            "--warm-up-ms", 100, "--milliseconds", 500)
        self.assertEqual(code, 0, error)
        self.assertGreater(result["requests"], 350)
        self.assertLess(result["requests"], 650)
        self.assertEqual(result["unfinished"], 0)

    def test_counts_answers_that_are_not_2xx_and_lost_connections(self):
        answers = [b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno",
                   b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut"]
        with socket.create_server(("127.0.0.1", 0)) as server:
            process = subprocess.Popen([tool("bench-load"), "--port", str(server.getsockname()[1]), "--requests", "2"],
                                       stdout=subprocess.PIPE, text=True)
            server.settimeout(_LIMIT)
            connection, _ = server.accept()
            with connection:
                for answer in answers:
                    connection.recv(65536)
                    connection.sendall(answer)
            result = json.loads(process.communicate(timeout=_LIMIT)[0])
        self.assertEqual((result["non_2xx"], result["broken"]), (1, 1))

    def test_refuses_unknown_and_odd_arguments(self):
        for arguments in (("--prot", 1), ("--port", "x"), ("--port", 70000), (), ("--port", 1, "--requests")):
            code, _, error = self.run_tool("bench-load", *arguments)
            self.assertEqual(code, 2, arguments)
            self.assertTrue(error.startswith("error: --"), error)


class SseClient(RigCase):
    def test_accepts_whole_streams(self):
        code, result, error = self.sse(self.relay)
        self.assertEqual(code, 0, error)
        self.assertEqual((result["events"], result["damaged_events"], result["incomplete_streams"]), (60, 0, 0))
        self.assertGreater(result["p50_us"], 0)

    def test_notices_a_changed_byte_a_lost_event_and_a_missing_end(self):
        code, result, _ = self.sse(self.relay, fault="&corrupt=7")
        self.assertEqual((code, result["damaged_events"], result["incomplete_streams"]), (3, 3, 0))
        code, result, _ = self.sse(self.relay, fault="&drop=7")
        self.assertEqual((code, result["damaged_events"]), (3, 3))
        code, result, _ = self.run_tool("bench-sse", "--port", self.relay, "--events", 9, "--event-bytes", 200,
                                        "--path", "/v1/chat/completions?events=5&interval_ms=5&bytes=200",
                                        "--complete", 1)
        self.assertEqual((code, result["incomplete_streams"]), (3, 1))

    def test_notices_a_stream_that_is_cut_off(self):
        event = b'data: {"n":0000000000,"t":00000000000000000001,"p":"a"}\n\n'
        with socket.create_server(("127.0.0.1", 0)) as server:
            process = subprocess.Popen([tool("bench-sse"), "--port", str(server.getsockname()[1]), "--events", "2",
                                        "--event-bytes", str(len(event)), "--complete", "1"],
                                       stdout=subprocess.PIPE, text=True)
            server.settimeout(_LIMIT)
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(event) + event)
            output = process.communicate(timeout=_LIMIT)[0]
        result = json.loads(output.splitlines()[-1])
        self.assertEqual((process.returncode, result["damaged_events"], result["failed_streams"]), (3, 0, 1))


class IdleHolder(RigCase):
    def test_holds_connections_until_its_input_ends(self):
        child = self.children.start("idle", [tool("bench-idle"), "--port", str(self.engine), "--connections", "50"],
                                    stdin=True)
        child.wait_for(re.compile("holding connections=50"), _LIMIT)
        self.assertIsNone(child.process.poll())
        child.process.stdin.close()
        self.assertEqual(child.finish(_LIMIT), 0)


class StartTimer(RigCase):
    def test_times_a_start_and_ends_the_command(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        code, result, error = self.run_tool("bench-start", "--port", port, "--repeats", 3, "--",
                                            tool("bench-fake-engine"), "--port", port)
        self.assertEqual(code, 0, error)
        self.assertTrue(all(0 < start["connected_ms"] <= start["answered_ms"] for start in result["starts"]))
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()


class Judgement(unittest.TestCase):
    def test_one_bad_round_is_no_miss(self):
        row = next(row for row in ROWS if row.id == "S1")
        self.assertEqual(verdict(row, [1.0, 1.05, 1.08, 1.0, 9.0]), "stretch")
        self.assertEqual(verdict(row, [1.2, 1.2, 1.2, 1.25, 9.0]), "pass")
        self.assertEqual(verdict(row, [1.2, 1.4, 1.4, 1.4, 1.2]), "MISS")
        self.assertEqual(verdict(row, [1.2]), "pass (too few rounds)")

    def test_added_time_leaves_the_direct_way_out(self):
        row = next(row for row in ROWS if row.id == "S3")
        self.assertAlmostEqual(row.compare({"direct": 50, "relay": 100, "sidecar": 110}, "sidecar"), 1.2)
        self.assertIsNone(row.compare({"direct": 50, "relay": 40, "sidecar": 110}, "sidecar"))
        self.assertIsNone(row.compare({"relay": 100, "sidecar": 110}, "sidecar"))

    def test_port_is_found_in_plain_and_json_logs(self):
        for line in ("[info] listening address=127.0.0.1 port=4711", "info: Listening on port: 4711 threads=1",
                     '{"level":"info","msg":"listening","address":"0.0.0.0","port":4711}'):
            self.assertEqual(_SIDECAR_PORT.search(line).group(1), "4711", line)

    def test_failed_system_calls_do_not_count(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("% time     seconds  usecs/call     calls    errors syscall\n"
                       "------ ----------- ----------- --------- --------- ----------------\n"
                       " 60.00    0.000600           3       200        20 recvfrom\n"
                       " 40.00    0.000400           4       100           sendto\n"
                       "100.00    0.001000                   300        20 total\n")
            file.flush()
            self.assertEqual(_parse_strace_counts(file.name), {"recvfrom": 180, "sendto": 100})

    def test_a_child_that_cannot_start_is_one_clear_error(self):
        with tempfile.TemporaryDirectory() as folder, Children(folder) as children:
            with self.assertRaisesRegex(RigError, "cannot start /nowhere/tool"):
                children.start("tool", ["/nowhere/tool"])


def main():
    global _BIN  # pylint: disable=global-statement
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="folder of the built tools")
    arguments, rest = parser.parse_known_args()
    _BIN = os.path.abspath(arguments.bin)
    unittest.main(argv=[sys.argv[0]] + rest)


if __name__ == "__main__":
    main()
