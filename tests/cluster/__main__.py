"""Long rounds: `python -m tests.cluster --rounds 20 --tasks 200`. Prints each result; stops at the first failure.

First kill -9 in `--rounds` rounds, then each other fault in `--others` rounds, then one round each of a rolling
restart, a storm of cancels, events to many readers, and random histories. `--only` chooses some of them.
"""

import argparse
import asyncio
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.cluster import clocks, cuts, database, histories, rounds
from tests.cluster.replicas import Place, new_place
from tests.pgbouncer import HOW_TO_GET_IT, IS_MISSING
from tests.postgres_proxy import Network
from tests.postgres_server import PostgresServer

AT_REST_WITHIN = 20.0  # seconds after a kill, with tasks of three seconds and a lease of fifteen
DELAY_BY_LOCKED_ROW = 2.0  # seconds, of 99 % of the messages to tasks whose rows are free

Options = argparse.Namespace
Round = Callable[[Place, Options, int], Awaitable[str]]


async def kill(place: Place, options: Options, seed: int) -> str:
    outcome = await rounds.fault_round(
        place, tasks=options.tasks, seed=seed, fault="kill", lease=options.lease, seconds=options.seconds
    )
    if outcome.slowest > AT_REST_WITHIN:
        options.late += 1  # the machine may have been busy: the rounds go on, and the end reports it
    return str(outcome._asdict())


async def stop(place: Place, options: Options, seed: int) -> str:
    outcome = await rounds.fault_round(place, tasks=options.tasks, seed=seed, fault="stop", lease=options.lease)
    return str(outcome._asdict())


async def crash(place: Place, options: Options, seed: int) -> str:
    outcome = await rounds.fault_round(place, tasks=options.tasks, seed=seed, fault="database", lease=options.lease)
    assert outcome.lost == 0, outcome
    return str(outcome._asdict())


async def clock(place: Place, options: Options, seed: int) -> str:
    if not clocks.find_faketime():
        return f"skipped: {clocks.HOW_TO_GET_IT}"
    with tempfile.TemporaryDirectory() as folder:
        outcome = await rounds.clock_round(place, Path(folder), tasks=options.tasks, seed=seed, lease=options.lease)
    return str(outcome._asdict())


async def swallow(place: Place, options: Options, seed: int) -> str:
    return await cut_off(place, options, seed, Network.SWALLOWS)


async def reset(place: Place, options: Options, seed: int) -> str:
    return await cut_off(place, options, seed, Network.RESETS)


async def cut_off(place: Place, options: Options, seed: int, network: Network) -> str:
    outcome, cut = await cuts.cut_round(place, tasks=options.tasks, seed=seed, network=network, lease=options.lease)
    assert cut.stopped_after <= options.lease, f"its runs went on for {cut.stopped_after} s"
    assert cut.wrong == [], cut.wrong
    assert cut.late == [], cut.late
    statuses = dict(Counter(answer.status for answer in cut.answers))
    summary = f"its runs stopped after {cut.stopped_after:.1f} s, it answered {statuses} within {cut.slowest:.1f} s"
    return f"{outcome._asdict()}, {summary}"


async def recovery(place: Place, options: Options, seed: int) -> str:
    outcome = await cuts.recovery_round(place, tasks=options.tasks, seed=seed, lease=options.lease)
    assert outcome.lost == 0, outcome
    return str(outcome._asdict())


def passing(fault: database.Fault) -> Round:
    """Return the round of a fault of the database that passes."""

    async def play_round(place: Place, options: Options, seed: int) -> str:
        return str(await database.database_round(place, fault, tasks=options.tasks, seed=seed))

    return play_round


async def lock_row(place: Place, options: Options, seed: int) -> str:
    passed = await database.database_round(place, database.lock_row, tasks=options.tasks, seed=seed)
    assert passed.p99 < DELAY_BY_LOCKED_ROW, passed
    return str(passed)


async def connections(place: Place, options: Options, seed: int) -> str:
    url = f"{await database.limited_url(place)}&lease={database.LEASE}"
    fault = database.take_connections
    return str(await database.database_round(place, fault, tasks=options.tasks, seed=seed, urls=[url] * 3))


async def disk(place: Place, options: Options, seed: int) -> str:
    server = PostgresServer(settings=())  # which writes its tables to the small disk
    server.start()
    try:
        async with database.small_disk(server, 64) as folder:
            fault = database.fill_disk(folder)
            return str(await database.database_round(new_place(server), fault, tasks=options.tasks, seed=seed))
    finally:
        server.remove()


async def pooler_session(place: Place, options: Options, seed: int) -> str:
    return await behind_pooler(place, options, seed, "session")


async def pooler_transaction(place: Place, options: Options, seed: int) -> str:
    return await behind_pooler(place, options, seed, "transaction")


async def behind_pooler(place: Place, options: Options, seed: int, mode: str) -> str:
    if IS_MISSING:
        return f"skipped: {HOW_TO_GET_IT}"
    return str(await database.pooler_round(place, mode, tasks=options.tasks, seed=seed))


async def rolling(place: Place, options: Options, seed: int) -> str:
    outcome = await rounds.rolling_round(place, requests=options.requests, streams=options.streams, seed=seed)
    summary = f"{outcome.events} requests, {options.streams} streams at a time, {outcome.running} restarts"
    return f"{summary}: {outcome._asdict()}"


async def storm(place: Place, options: Options, seed: int) -> str:
    return str(await histories.cancel_storm(place, tasks=options.tasks, seed=seed))


async def order(place: Place, options: Options, seed: int) -> str:
    numbers = max(options.events // 430, 1)  # 500 readers, which miss some events between two streams
    return str(await histories.ordering_round(place, tasks=50, numbers=numbers, readers=10, seed=seed))


async def history(place: Place, options: Options, seed: int) -> str:
    return str(await histories.history_round(place, operations=options.operations, seed=seed))


FAULTS: dict[str, Round] = {
    "stop": stop,
    "database": crash,
    "terminate": passing(database.terminate),
    "lock-row": lock_row,
    "lock-tables": passing(database.lock_tables),
    "cancel": passing(database.cancel_statements),
    "read-only": passing(database.read_only),
    "connections": connections,
    "disk": disk,
    "pooler-session": pooler_session,
    "pooler-transaction": pooler_transaction,
    "recovery": recovery,
    "clock": clock,
    "swallow": swallow,
    "reset": reset,
}
ONCE: dict[str, Round] = {"rolling": rolling, "storm": storm, "order": order, "history": history}


async def play(options: Options, server: PostgresServer) -> None:
    plan: list[tuple[str, Round]] = [("kill", kill)] * options.rounds
    for _ in range(options.others):
        plan += FAULTS.items()
    plan += ONCE.items()
    if options.only:
        plan = [each for each in plan if each[0] in options.only]
    for number, (name, play_round) in enumerate(plan):
        begun = time.monotonic()
        seed = options.seed + number
        result = await play_round(new_place(server), options, seed)
        print(f"{number + 1:3} {name:8} seed {seed}: {result} in {time.monotonic() - begun:.1f} s", flush=True)
    if options.late:
        raise SystemExit(f"after {options.late} of {options.rounds} kills a task was not at rest in {AT_REST_WITHIN} s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of kill -9")
    parser.add_argument("--others", type=int, default=2, help="rounds of each other fault")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--lease", type=float, default=15.0, help="seconds of a lease; the store's default is 15")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds that a task runs when a replica is killed")
    parser.add_argument("--requests", type=int, default=20_000, help="requests during the rolling restart")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--events", type=int, default=1_000_000, help="events to many readers")
    parser.add_argument("--operations", type=int, default=100_000, help="operations of random histories")
    parser.add_argument("--only", nargs="*", choices=["kill", *FAULTS, *ONCE], help="run only these")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    options = parser.parse_args(namespace=argparse.Namespace(late=0))
    server = PostgresServer(settings=())
    server.start()
    try:
        asyncio.run(play(options, server))
    finally:
        server.remove()


if __name__ == "__main__":
    main()
