# mypy: ignore-errors
# Typed against dbos and procrastinate, which are installed in their own environment.
"""Jobs of one durable engine on PostgreSQL.

python -m benchmarks.peers.durable dbos|procrastinate URL SECONDS CALLERS

A caller starts a job that returns its number, waits for its end, and starts the next one. The program prints the jobs
that ended per second. It runs in an environment of its own (`engines.txt`).
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

Run = Callable[[int], Awaitable[None]]


async def measure(run: Run, seconds: float, callers: int) -> float:
    """Return the jobs per second of these callers, after a second that is not counted."""
    ended = 0
    begun = time.monotonic()
    counted_from = begun + 1
    until = counted_from + seconds

    async def call(caller: int) -> None:
        nonlocal ended
        number = caller
        while time.monotonic() < until:
            await run(number)
            number += callers
            if counted_from <= time.monotonic() < until:
                ended += 1

    async with asyncio.TaskGroup() as group:
        for caller in range(callers):
            group.create_task(call(caller))
    return ended / seconds


async def dbos(url: str, seconds: float, callers: int) -> float:
    """A workflow of one step, whose result is stored."""
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})

    @DBOS.step()
    async def work(number: int) -> int:
        return number

    @DBOS.workflow()
    async def flow(number: int) -> int:
        return await work(number)

    async def run(number: int) -> None:
        assert await flow(number) == number

    DBOS.launch()
    try:
        return await measure(run, seconds, callers)
    finally:
        DBOS.destroy()


async def procrastinate(url: str, seconds: float, callers: int) -> float:
    """A deferred job, which a worker in the same process executes with as much concurrency."""
    import procrastinate as library

    app = library.App(connector=library.PsycopgConnector(conninfo=url, max_size=callers + 4))
    ended: dict[int, asyncio.Event] = {}

    @app.task
    async def work(number: int) -> None:
        ended[number].set()

    async def run(number: int) -> None:
        ended[number] = asyncio.Event()
        await work.defer_async(number=number)
        await ended[number].wait()
        del ended[number]

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        worker = asyncio.create_task(app.run_worker_async(concurrency=callers, install_signal_handlers=False))
        try:
            return await measure(run, seconds, callers)
        finally:
            worker.cancel()
            await asyncio.wait({worker})


ENGINES = {"dbos": dbos, "procrastinate": procrastinate}

if __name__ == "__main__":
    name, url, seconds, callers = sys.argv[1:]
    print(asyncio.run(ENGINES[name](url, float(seconds), int(callers))))
