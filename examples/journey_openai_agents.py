"""The program of journey_weft.py, with the OpenAI Agents SDK."""

import asyncio
import json
import os
from dataclasses import dataclass

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


@dataclass
class Report:
    city: str
    degrees: int


@function_tool
def weather(city: str) -> str:
    """What it is like in a city."""
    return f"rain in {city}, 9 degrees"


@function_tool(needs_approval=True)
def book(city: str) -> str:
    """Book a journey to a city."""
    return f"booked: {city}"


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=os.environ["MODEL_URL"], api_key=os.environ["MODEL_KEY"])
    agent = Agent(name="met", model=OpenAIChatCompletionsModel("m-1", client), tools=[weather, book])
    first = await Runner.run(agent, "What is it like in Bergen?")
    query = {"role": "user", "content": "As a report, please"}
    report = await Runner.run(agent.clone(output_type=Report), [*first.to_input_list(), query])
    print(report.final_output, first.context_wrapper.usage.total_tokens)
    query = {"role": "user", "content": "Then book it"}
    booking = Runner.run_streamed(agent, [*first.to_input_list(), query])
    while True:
        async for event in booking.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                print(event.data.delta, end="", flush=True)
        if not booking.interruptions:
            break
        state = booking.to_state()
        for call in booking.interruptions:
            if json.loads(call.arguments)["city"] == "Bergen":
                state.approve(call)
            else:
                state.reject(call, rejection_message="that is too far")
        booking = Runner.run_streamed(agent, state)
    print()


asyncio.run(main())
