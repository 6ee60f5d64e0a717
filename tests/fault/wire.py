"""HTTP/1.x from a client's side, on bytes: strict about what it reads, free to misbehave in what it sends."""

import asyncio
import socket
import struct
from dataclasses import dataclass, field


class Broken(Exception):
    """The answer ended so that nobody can take it for complete."""


class Nonsense(Exception):
    """What came is not a correct HTTP/1.1 answer."""


@dataclass
class Answer:
    version: str = ""
    status: int = 0
    headers: dict = field(default_factory=dict)
    body: bytes = b""
    keep_alive: bool = False

    def header(self, name):
        return self.headers.get(name, "")


class Connection:
    """One client connection. `slow` makes the kernel's buffers small, so that back-pressure reaches the sidecar."""

    @classmethod
    async def open(cls, port, slow=False):
        self = cls()
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=2048 if slow else 65536)
        self.received = 0
        self.buffer = b""
        self.pause = 0.0  # before each read
        self.answered = []  # statuses, for who wonders why nothing follows
        return self

    def send(self, data):
        self.writer.write(data)

    async def drain(self):
        try:
            await self.writer.drain()
        except ConnectionError as error:
            raise Broken(f"while sending: {error!r}") from error

    def finish_sending(self):
        try:
            self.writer.write_eof()
        except OSError:
            pass

    def close(self, reset=False):
        if reset:
            sock = self.writer.get_extra_info("socket")
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                pass
            self.writer.transport.abort()
        else:
            self.writer.close()

    async def read_some(self):
        if self.pause:
            await asyncio.sleep(self.pause)
        try:
            data = await self.reader.read(65536)
        except ConnectionError as error:
            raise Broken(f"reset: {error!r}") from error
        self.received += len(data)
        self.buffer += data
        return bool(data)

    async def _line(self):
        while b"\r\n" not in self.buffer:
            if len(self.buffer) > 70000:
                raise Nonsense("endless line")
            if not await self.read_some():
                raise Broken("closed in the middle of a line" if self.buffer else "closed without an answer")
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    async def _exactly(self, size):
        while len(self.buffer) < size:
            if not await self.read_some():
                raise Broken(f"closed {size - len(self.buffer)} bytes early")
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    async def read_answer(self, method="POST"):
        answer = await self._head()
        while answer.status == 100:
            answer = await self._head()
        if method == "HEAD" or answer.status in (204, 304):
            return answer
        if "transfer-encoding" in answer.headers:
            if answer.header("transfer-encoding") != "chunked" or "content-length" in answer.headers:
                raise Nonsense(f"framing {answer.headers}")
            parts = []
            while True:
                size_text = await self._line()
                try:
                    size = int(size_text, 16)
                except ValueError as error:
                    raise Nonsense(f"chunk size {size_text[:40]!r}") from error
                if size == 0:
                    if await self._line() != b"":
                        raise Nonsense("trailer")
                    break
                parts.append(await self._exactly(size))
                if await self._exactly(2) != b"\r\n":
                    raise Nonsense("chunk end")
            answer.body = b"".join(parts)
        elif "content-length" in answer.headers:
            answer.body = await self._exactly(int(answer.header("content-length")))
        else:
            while await self.read_some():
                pass
            answer.body, self.buffer = self.buffer, b""
            answer.keep_alive = False
        return answer

    async def _head(self):
        line = (await self._line()).decode("latin-1")
        parts = line.split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise Nonsense(f"status line {line!r}")
        answer = Answer(version=parts[0], status=int(parts[1]))
        while field_line := (await self._line()).decode("latin-1"):
            name, colon, value = field_line.partition(":")
            if not colon or not name or name != name.strip():
                raise Nonsense(f"field line {field_line!r}")
            name = name.lower()
            if name in answer.headers and name in ("content-length", "transfer-encoding"):
                raise Nonsense(f"two {name}")
            answer.headers[name] = value.strip()
        answer.keep_alive = answer.header("connection").lower() != "close"
        self.answered.append(answer.status)
        return answer

    async def nothing_more(self):
        """After the last answer: no byte may be left, or some request got two answers."""
        if self.buffer:
            raise Nonsense(f"bytes behind the last answer: {self.buffer[:80]!r}")
