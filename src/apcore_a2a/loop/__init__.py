"""What the engine needs of asyncio, and nothing of what the engine does: tasks with an owner, turns, waits."""
