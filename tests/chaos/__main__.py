"""`python -m tests.chaos`: rounds of kill -9 on SQLite, and random histories. Prints the seed, which `--seed` sets."""

import argparse
import asyncio
import logging
import random
import tempfile
from pathlib import Path

from tests.chaos import webhook_rounds
from tests.chaos.rounds import run_round
from tests.engine.history import Trial


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument(
        "--webhook-rounds", type=int, default=5, help="rounds of kills during deliveries to a bad receiver"
    )
    parser.add_argument("--trials", type=int, default=100, help="random histories of 200 operations each")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    chosen = parser.parse_args()
    logging.disable()  # all errors here are intended
    print(f"seed {chosen.seed}")
    dice = random.Random(chosen.seed)
    for number in range(1, chosen.rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_round(Path(folder) / "tasks.db", dice, tasks=chosen.tasks)
        print(f"round {number}: {outcome}", flush=True)
    for number in range(1, chosen.webhook_rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            webhooks = webhook_rounds.run_round(Path(folder) / "tasks.db", dice, tasks=chosen.tasks, kills=3)
        print(f"webhooks, round {number}: {webhooks}", flush=True)
    operations = 0
    for _ in range(chosen.trials):
        seed, faults = dice.randrange(1_000_000_000), dice.choice((0.0, 0.02, 0.2))
        trial = Trial(seed, faults=faults)
        try:
            asyncio.run(trial.run())
        except BaseException:
            print(f"failed: Trial({seed}, faults={faults})")
            raise
        operations += trial.clients * trial.steps
    print(f"{chosen.trials} histories of {operations} operations kept the invariants")


if __name__ == "__main__":
    main()
