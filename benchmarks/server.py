"""A chat server that costs as little CPU as Python allows, to measure clients against.

    python benchmarks/server.py --port 8100                            # static: answers at once
    python benchmarks/server.py --port 8100 --slots 64                 # log-normal, mean 200 ms
    python benchmarks/server.py --port 8100 --slots 64 --errors 3 --repairs 5

With `--slots N` at most N requests are served at once. How long each takes is fixed by a hash of
its prompt (the last message), so the work is the same for every client and every run. `--errors`
and `--repairs` are percentages of prompts, picked by the hash as well: the first request with
such a prompt gets a 500, or a reply that does not fit the schema; later ones get the answer.

``GET /stats`` tells, as JSON: requests, in_flight, max_in_flight, max_sockets, statuses,
slot_seconds (service time handed out) and cpu_seconds; ``POST /reset`` sets all to zero. Any
number of client processes may use it at once. It prints its base_url when it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections import Counter, deque
from hashlib import blake2b
from statistics import NormalDist
from typing import Any

ANSWER = '{"topic":"billing","urgent":false,"summary":"The customer asks about an invoice."}'
WRONG = '{"topic":"billing","urgent":"perhaps"}'
MEAN, SIGMA = 0.2, 0.5
"""Seconds; a log-normal with this spread has its 99th percentile at 2.8 times its mean."""


def response(status: int, body: bytes, kind: str = "application/json") -> bytes:
    """An HTTP response, head and all."""
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def completion(content: str) -> bytes:
    """The response with a chat completion of this content."""
    message = {"role": "assistant", "content": content, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 50, "completion_tokens": 20, "total_tokens": 70}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [choice],
        "usage": usage,
    }
    return response(200, json.dumps(body).encode())


def fraction(digest: bytes) -> float:
    """A number in (0, 1) out of a digest."""
    return (int.from_bytes(digest, "big") + 0.5) / 2 ** (8 * len(digest))


class Bench:
    """What all connections share."""

    def __init__(self, slots: int, errors: float, repairs: float, answer: str) -> None:
        self.slots = slots
        self.errors = errors / 100
        self.repairs = repairs / 100
        self.ok = completion(answer)
        self.wrong = completion(WRONG)
        self.fault = response(500, b'{"error":{"message":"internal error","type":"server_error"}}')
        self.normal = NormalDist()
        self.loop = asyncio.get_running_loop()
        self.queue: deque[tuple[float, bytes, Connection]] = deque()
        self.busy = 0
        self.sockets = 0
        self.reset()

    def reset(self) -> None:
        """Forget all counts, and which prompts were met."""
        self.requests = self.in_flight = self.max_in_flight = 0
        self.max_sockets = self.sockets
        self.statuses: Counter[int] = Counter()
        self.slot_seconds = 0.0
        self.cpu = time.process_time()
        self.met: set[bytes] = set()

    def stats(self) -> bytes:
        """The response to ``GET /stats``."""
        names = ("requests", "in_flight", "max_in_flight", "max_sockets", "slot_seconds")
        told: dict[str, Any] = {name: getattr(self, name) for name in names}
        told["statuses"] = dict(self.statuses)
        told["cpu_seconds"] = time.process_time() - self.cpu
        return response(200, json.dumps(told).encode())

    def take(self, body: bytes, connection: Connection) -> None:
        """One request; its answer is written now, or when its time has come."""
        self.requests += 1
        if not self.slots and not self.errors and not self.repairs:
            connection.write(self.ok)
            return
        digest = blake2b(prompt(body), digest_size=24).digest()
        answer = self.ok
        if digest not in self.met:
            self.met.add(digest)
            if fraction(digest[8:16]) < self.errors:
                answer = self.fault
            elif fraction(digest[16:]) < self.repairs:
                answer = self.wrong
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        if not self.slots:
            self.finish(answer, connection)
            return
        spread = self.normal.inv_cdf(fraction(digest[:8])) * SIGMA
        seconds = MEAN * math.exp(spread - SIGMA**2 / 2)
        if self.busy < self.slots:
            self.serve(seconds, answer, connection)
        else:
            self.queue.append((seconds, answer, connection))

    def serve(self, seconds: float, answer: bytes, connection: Connection) -> None:
        """Take a slot for so long."""
        self.busy += 1
        self.slot_seconds += seconds
        self.loop.call_later(seconds, self.served, answer, connection)

    def served(self, answer: bytes, connection: Connection) -> None:
        """Answer, and give the slot to the next in the queue."""
        self.busy -= 1
        self.finish(answer, connection)
        if self.queue:
            self.serve(*self.queue.popleft())

    def finish(self, answer: bytes, connection: Connection) -> None:
        """Count and write an answer."""
        self.in_flight = max(0, self.in_flight - 1)
        self.statuses[int(answer[9:12])] += 1
        connection.write(answer)


def prompt(body: bytes) -> bytes:
    """The last message's content, however the client wrote its JSON."""
    at = body.rfind(b'"content":"')
    if at >= 0:
        end = body.find(b'"', at + 11)
        while end > 0 and body[end - 1 : end] == b"\\":
            end = body.find(b'"', end + 1)
        return body[at + 11 : end]
    return str(json.loads(body)["messages"][-1]["content"]).encode()


class Connection(asyncio.Protocol):
    """As much of HTTP/1.1 as the clients speak."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.buffer = b""
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Count the socket."""
        self.transport = transport
        self.bench.sockets += 1
        self.bench.max_sockets = max(self.bench.max_sockets, self.bench.sockets)

    def connection_lost(self, error: Exception | None) -> None:
        """Count the socket out."""
        self.bench.sockets -= 1

    def write(self, data: bytes) -> None:
        """Write, unless the client has gone."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Cut the stream into requests."""
        self.buffer = self.buffer + data if self.buffer else data
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[:end]
            if head.startswith(b"GET"):
                self.buffer = self.buffer[end + 4 :]
                self.write(self.bench.stats())
                continue
            at = head.lower().find(b"content-length:")
            stop = head.find(b"\r\n", at)
            length = int(head[at + 15 : stop if stop > 0 else None]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            if head.startswith(b"POST /reset"):
                self.bench.reset()
                self.write(response(200, b"{}"))
            else:
                self.bench.take(body, self)


async def serve(port: int, slots: int, errors: float, repairs: float, answer: str) -> None:
    """Serve until the process is stopped."""
    bench = Bench(slots, errors, repairs, answer)
    server = await bench.loop.create_server(lambda: Connection(bench), "127.0.0.1", port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--slots", type=int, default=0, help="0: answer at once")
    parser.add_argument("--errors", type=float, default=0.0, help="percent of prompts")
    parser.add_argument("--repairs", type=float, default=0.0, help="percent of prompts")
    parser.add_argument("--answer", default=ANSWER, help="content of every good reply")
    given = vars(parser.parse_args())
    try:
        import uvloop

        uvloop.install()
    except ImportError:
        pass
    asyncio.run(serve(**given))


if __name__ == "__main__":
    main()
