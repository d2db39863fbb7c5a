"""Function tools, approval by a callback, an answer of a type, a fork, a stream, and usage. Run it with the address of
a server that speaks as OpenAI's does in MODEL_URL, and its key in MODEL_KEY."""

import asyncio
import os
from dataclasses import dataclass

import weft.aio


@dataclass
class Report:
    city: str
    degrees: int


@weft.tool(reads=True)
def weather(city: str) -> str:
    """What it is like in a city."""
    return f"rain in {city}, 9 degrees"


@weft.tool(asks=True)
def book(city: str) -> str:
    """Book a journey to a city."""
    return f"booked: {city}"


def approve(call: weft.PendingCall) -> weft.Answer:
    return weft.allow() if call.arguments["city"] == "Bergen" else weft.deny("that is too far")


async def main() -> None:
    async with weft.aio.open("journeys.db") as ledger:
        server = {"providerType": "openai-compatible", "baseUrl": os.environ["MODEL_URL"], "apiKey": "${MODEL_KEY}"}
        await ledger.programs.ensure("provider", "there", server)
        await ledger.programs.ensure("model", "fast", {"provider": "there", "modelId": "m-1"})
        await ledger.programs.ensure("agent", "met", {"defaultModel": "fast"})
        tools = [weather, book]
        first = await ledger.send("What is it like in Bergen?", agent="met", tools=tools)
        report = await ledger.send("As a report, please", thread=first.id, returns=Report)
        print(report.value, first.usage.total_tokens)
        fork = await ledger.fork(first.id)
        async for part in ledger.stream("Then book it", session=fork.label, tools=tools, approve=approve):
            if isinstance(part, weft.TextAdded):
                print(part.text, end="", flush=True)
        print()


asyncio.run(main())
