"""Requests to the whole stack: what goes wrong with each, what it saw going wrong, and what its client may be told then."""

import json

import faults
import shapes
from clients import LATE, TIMED_OUT

PICKER_DIED = "Endpoint Picker died"
# What happens to parts of the stack, and what a request may be told that was under way when it began.
UPSTREAM = (500, 502, 503, 504)
INCIDENTS = {
    "prefill died": UPSTREAM,
    "decode died": UPSTREAM,
    "sidecar died": UPSTREAM,
    PICKER_DIED: (500, 503, 504),  # Envoy's own answers, and those of one that is starting
}


class StackRequest:
    """One request to be sent to Envoy."""

    def __init__(self, rng, run, number):
        self.number = number
        self.rng = rng
        self.run = run
        self.seen = set()  # incidents that were open at some time of its life
        self.shape = rng.choice(run.palette) if rng.random() < 0.88 else rng.choice(run.others)
        self.prefill_fault = self.decode_fault = None
        self.chunked = self.shape.body != b"" and rng.random() < 0.25
        self.headers = [("host", "stack.test"), ("x-request-id", f"r{number}")]
        if self.shape.method == "POST":
            self.headers.append(("content-type", "application/json"))
        if self.shape.disaggregated and rng.random() < 0.15:
            self._fail_at(faults.PREFILL_HEADER, run.prefill_faults)
        elif not self.shape.local and rng.random() < 0.15:
            self._fail_at(faults.DECODE_HEADER, run.decode_faults)
        if rng.random() < 0.2:
            self.headers.append(("x-dynamo-session-id", f"s{rng.randrange(8)}"))
        if rng.random() < 0.1:
            self.headers.append(("x-dynamo-meta-priority", str(rng.randrange(5))))

    def _fail_at(self, header, candidates):
        shape = self.shape
        if header == faults.DECODE_HEADER:
            candidates = [each for each in candidates if not (each.generation_only and not shape.text) and
                          not (each.whole_replies_only and (shape.stream or not shape.text))]
        fault = self.rng.choice(candidates)
        if header == faults.PREFILL_HEADER:
            self.prefill_fault = fault
        else:
            self.decode_fault = fault
        self.headers.append((header, fault.name))

    @property
    def fault(self):
        return self.prefill_fault or self.decode_fault

    def wire(self):
        lines = [f"{self.shape.method} {self.shape.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        body = self.shape.body
        if self.chunked:
            lines.append("transfer-encoding: chunked")
            parts, at = [], 0
            while at < len(body):
                piece = body[at : at + self.rng.choice((1, 17, 1000, 20000))]
                at += len(piece)
                parts.append(b"%x\r\n%s\r\n" % (len(piece), piece))
            body = b"".join(parts) + (b"0\r\nx-sum: 1\r\n\r\n" if self.rng.random() < 0.3 else b"0\r\n\r\n")
        elif body:
            lines.append(f"content-length: {len(body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    def describe(self):
        told = [each and each.name for each in (self.prefill_fault, self.decode_fault)]
        return (f"request r{self.number} {self.shape.method} {self.shape.path} stream={self.shape.stream} faults={told} "
                f"chunked={self.chunked} seen={sorted(self.seen)}")

    def may_break(self):
        return bool(self.seen) or (self.fault is not None and self.fault.may != faults.HARMLESS)

    def judge(self, answer):
        """None if a complete answer is one that this request may get."""
        shape, fault = self.shape, self.fault
        if shape.method == "HEAD" and answer.status == 200:
            return None
        if answer.status == 200 and shape.status == 200:
            return self._judge_success(answer)
        if answer.status == shape.status:
            return None
        if answer.status < 400:
            return f"status {answer.status}"
        if answer.status == 429 and self._is_refusal(answer, "overloaded", shape.method):
            return None if self.run.may_refuse else "refused for no reason"
        if fault is not None and fault.may != faults.HARMLESS and (not fault.statuses or answer.status in fault.statuses):
            return None
        if any(answer.status in INCIDENTS[incident] for incident in self.seen):
            return None
        if answer.status == 502 and not shape.text and b"closed the connection without an answer" in answer.body:
            return None  # lost to an idle connection's close; sending a POST of unknown effect again is not ours to do
        if answer.status == 503 and self._is_refusal(answer, "no_ready_endpoint", shape.method):
            return LATE  # a healthy engine did not answer its health check in time
        if answer.status == 504 and any(said in answer.body for said in TIMED_OUT):
            return LATE
        return f"status {answer.status} without a reason: {answer.body[:200]!r}"

    def _judge_success(self, answer):
        shape, fault = self.shape, self.fault
        wrong = shapes.check_body(shape, answer)
        # A prompt that decode keeps for itself meets no prefill engine.
        if fault is not None and fault.never_ok and not (fault is self.prefill_fault and self.run.may_skip_prefill):
            return f"200 in spite of {fault.name}"
        if wrong is None or (fault is not None and fault.may == faults.GARBLED and wrong != "wrong KV"):
            return None
        if wrong == "in-band error" and self.seen:
            return None  # an engine died after the answer's head
        if "decode died" in self.seen and fault is not None and fault.name in ("http10", "no-length"):
            return None if wrong != "wrong KV" else wrong  # only its end tells where such an answer ends
        return wrong

    @staticmethod
    def _is_refusal(answer, code, method):
        """The Endpoint Picker's own answer, in OpenAI's shape."""
        if method == "HEAD":
            return answer.header("retry-after") == "1"
        try:
            error = json.loads(answer.body)["error"]
        except (ValueError, KeyError, TypeError):
            return False
        return error["code"] == code and answer.header("content-type") == "application/json" and \
            answer.header("retry-after") == "1"
