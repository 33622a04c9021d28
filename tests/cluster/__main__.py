"""Long rounds: `python -m tests.cluster --rounds 20 --tasks 200`. Says what each found; ends with the first to fail."""

import argparse
import asyncio
import secrets
import time

from tests.cluster import rounds
from tests.cluster.replicas import new_place
from tests.postgres_server import PostgresServer

FAULTS = ("kill", "stop", "database")


async def play(options: argparse.Namespace, server: PostgresServer) -> None:
    for number in range(options.rounds):
        seed = options.seed + number
        fault = options.fault or FAULTS[number % len(FAULTS)]
        begun = time.monotonic()
        place = new_place(server)
        outcome = await rounds.fault_round(place, tasks=options.tasks, seed=seed, fault=fault, lease=options.lease)
        print(
            f"{number + 1:3} {fault:5} seed {seed}: {outcome._asdict()} in {time.monotonic() - begun:.1f} s", flush=True
        )
    if options.requests:
        outcome = await rounds.rolling_round(
            new_place(server), requests=options.requests, streams=options.streams, seed=options.seed
        )
        print(f"rolling restart, {outcome.events} requests, {options.streams} streams: {outcome._asdict()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--lease", type=float, default=15.0, help="seconds; the default of the store is 15")
    parser.add_argument("--fault", choices=FAULTS, help="one of them; without it, they take turns")
    parser.add_argument("--requests", type=int, default=20_000, help="of the rolling restart; 0 leaves it out")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    options = parser.parse_args()
    server = PostgresServer(settings=())
    server.start()
    try:
        asyncio.run(play(options, server))
    finally:
        server.remove()


if __name__ == "__main__":
    main()
