"""The two clients that llmframe is measured against, and how to measure one.

`floor` is the least that a live client can do in Python: a fixed set of workers over raw aiohttp
and orjson. `by_hand` is what people write: AsyncOpenAI, a semaphore and `gather`.

    python benchmarks/clients.py --url http://127.0.0.1:8100/v1 --client floor --rows 4000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "topic": {"type": "string", "enum": ["billing", "bug", "feature"]},
        "urgent": {"type": "boolean"},
        "summary": {"type": "string"},
    },
    "required": ["topic", "urgent", "summary"],
    "additionalProperties": False,
}
"""The three-field schema that `benchmarks/server.py` answers by default."""

Client = Callable[[str, Sequence[str], int], Awaitable[list[Any]]]


@dataclass
class Measured:
    """One run. `cpu` is the client process's, in µs a row; `wall` in seconds."""

    client: str
    rows: int
    wall: float
    rows_per_second: float
    cpu: float
    requests: int
    max_in_flight: int
    utilisation: float | None


def prompts(rows: int) -> list[str]:
    """Texts of about 200 characters, each its own."""
    text = "I was charged twice for the same order and the page shows an error when I open it."
    return [f"Ticket {row}: {text} {text[: 40 + row % 40]}" for row in range(rows)]


def body(prompt: str) -> dict[str, Any]:
    """The request that every client sends."""
    schema = {"name": "response", "strict": True, "schema": SCHEMA}
    return {
        "model": "bench",
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": schema},
        "messages": [
            {"role": "system", "content": "Read the ticket. Answer in JSON."},
            {"role": "user", "content": prompt},
        ],
    }


def fits(content: str) -> Any:
    """The reply decoded, or None where it does not fit the schema."""
    value = json.loads(content)
    return value if isinstance(value.get("urgent"), bool) and "summary" in value else None


async def floor(url: str, texts: Sequence[str], concurrency: int) -> list[Any]:
    """Raw aiohttp and orjson, bounded workers; what fails is asked again at once."""
    import aiohttp
    import orjson

    answers: list[Any] = [None] * len(texts)
    rows = iter(range(len(texts)))
    connector = aiohttp.TCPConnector(limit=concurrency)
    headers = {"Authorization": "Bearer none", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def work() -> None:
            for row in rows:
                while answers[row] is None:
                    data = orjson.dumps(body(texts[row]))
                    async with session.post(f"{url}/chat/completions", data=data) as response:
                        reply = orjson.loads(await response.read())
                    if response.status == 200:
                        answers[row] = fits(reply["choices"][0]["message"]["content"])

        await asyncio.gather(*(work() for _ in range(concurrency)))
    return answers


async def by_hand(url: str, texts: Sequence[str], concurrency: int) -> list[Any]:
    """AsyncOpenAI and a semaphore; failures are left to the SDK's retries and a loop."""
    import openai

    gate = asyncio.Semaphore(concurrency)
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:

        async def one(text: str) -> Any:
            async with gate:
                answer = None
                while answer is None:
                    reply = await client.chat.completions.create(**body(text))
                    answer = fits(reply.choices[0].message.content or "")
                return answer

        return list(await asyncio.gather(*(one(text) for text in texts)))


CLIENTS: dict[str, Client] = {"floor": floor, "by_hand": by_hand}


def control(url: str, path: str) -> dict[str, Any]:
    """Ask the server for ``/stats``, or tell it to ``/reset``."""
    root = url.removesuffix("/v1")
    method = "GET" if path == "/stats" else "POST"
    request = urllib.request.Request(root + path, method=method)
    with urllib.request.urlopen(request) as response:
        told: dict[str, Any] = json.loads(response.read())
        return told


def measure(name: str, run: Callable[[], Any], url: str, rows: int, slots: int = 0) -> Measured:
    """Run a client once and say what it took.

    Args:
        name: Of the client.
        run: Asks `rows` rows and returns when all are answered.
        url: The server's base_url.
        rows: How many.
        slots: The server's; 0: it has none, and there is no utilisation.
    """
    control(url, "/reset")
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    told = control(url, "/stats")
    return Measured(
        client=name,
        rows=rows,
        wall=round(wall, 3),
        rows_per_second=round(rows / wall, 1),
        cpu=round(cpu / rows * 1e6, 1),
        requests=told["requests"],
        max_in_flight=told["max_in_flight"],
        utilisation=round(told["slot_seconds"] / (slots * wall), 3) if slots else None,
    )


def main() -> None:
    """Read the command line, run a client once and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--url", required=True)
    parser.add_argument("--client", choices=CLIENTS, default="floor")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--slots", type=int, default=0, help="the server's, for the utilisation")
    given = parser.parse_args()
    client, texts = CLIENTS[given.client], prompts(given.rows)

    def run() -> None:
        asyncio.run(client(given.url, texts, given.concurrency))

    run_ = measure(given.client, run, given.url, given.rows, given.slots)
    print(json.dumps(asdict(run_)))


if __name__ == "__main__":
    main()
