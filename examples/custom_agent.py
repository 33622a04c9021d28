"""An agent written by hand: it asks for input, answers in chunks, and can be canceled.

python examples/custom_agent.py
apcore-a2a stream http://127.0.0.1:8000 "10"
"""

import asyncio

from apcore_a2a import serve
from apcore_a2a.agents.executors import EventQueue, RequestContext, TaskUpdater


class Countdown:
    """Counts down from any number up to 999."""

    def __init__(self, pause: float = 1.0) -> None:
        self.pause = pause

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue)
        text = context.get_user_input().strip()
        if not (text.isascii() and text.isdecimal() and len(text) <= 3):
            await updater.requires_input("From which number, up to 999?")
            return  # the answer arrives in another call of `execute`, for the same task
        await updater.start_work()
        start = int(text)
        artifact_id = ""  # the first chunk creates the artifact
        for number in range(start, -1, -1):
            artifact_id = await updater.add_artifact(
                f"{number} ", artifact_id=artifact_id, append=number < start, last_chunk=number == 0
            )
            await asyncio.sleep(self.pause)
        await updater.complete("Lift-off")

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue).cancel("Countdown stopped")


if __name__ == "__main__":
    serve(Countdown(), host="127.0.0.1", port=8000)
