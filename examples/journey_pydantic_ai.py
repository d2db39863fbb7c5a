"""The program of journey_weft.py, with pydantic-ai."""

import asyncio
import os
from dataclasses import dataclass

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext, Tool, ToolDenied
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


@dataclass
class Report:
    city: str
    degrees: int


def weather(city: str) -> str:
    """What it is like in a city."""
    return f"rain in {city}, 9 degrees"


def book(city: str) -> str:
    """Book a journey to a city."""
    return f"booked: {city}"


def approve(context: RunContext[None], requests: DeferredToolRequests) -> DeferredToolResults:
    results = DeferredToolResults()
    for call in requests.approvals:
        is_near = call.args_as_dict()["city"] == "Bergen"
        results.approvals[call.tool_call_id] = True if is_near else ToolDenied("that is too far")
    return results


async def main() -> None:
    provider = OpenAIProvider(base_url=os.environ["MODEL_URL"], api_key=os.environ["MODEL_KEY"])
    agent = Agent(
        OpenAIChatModel("m-1", provider=provider),
        tools=[weather, Tool(book, requires_approval=True)],
        capabilities=[HandleDeferredToolCalls(handler=approve)],
    )
    first = await agent.run("What is it like in Bergen?")
    report = await agent.run("As a report, please", message_history=first.all_messages(), output_type=Report)
    print(report.output, first.usage.total_tokens)
    async with agent.run_stream_events("Then book it", message_history=first.all_messages()) as events:
        async for event in events:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                print(event.part.content, end="", flush=True)
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                print(event.delta.content_delta, end="", flush=True)
    print()


asyncio.run(main())
