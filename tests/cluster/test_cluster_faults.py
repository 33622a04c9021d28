"""Short rounds of faults of one replica (a cut network, a wrong clock), and of clients with random requests."""

import math
from pathlib import Path

import pytest

from tests.cluster import clocks, cuts, database, histories, rounds
from tests.cluster.replicas import new_place
from tests.pgbouncer import needs_pgbouncer
from tests.postgres_proxy import Network
from tests.postgres_server import shared_server
from tests.requirements import requirement

SEED = 20261118


@requirement("NFR-REL-003")
async def test_a_replica_that_is_cut_off_stops_its_runs_answers_503_and_recovers() -> None:
    place = new_place(shared_server())
    outcome, cut = await cuts.cut_round(place, tasks=18, seed=SEED, network=Network.SWALLOWS)
    assert outcome.completed >= 12  # the repeatable tasks
    assert cut.stopped_after < math.inf  # before the end of the cut
    assert cut.wrong == []  # answers from memory while the lease was valid, then 503 with Retry-After
    assert {answer.status for answer in cut.answers} >= {503}


@requirement("NFR-REL-003")
async def test_a_database_that_takes_longer_than_a_lease_to_start_costs_no_task() -> None:
    outcome = await cuts.recovery_round(new_place(shared_server()), tasks=18, seed=SEED, lease=6)
    assert (outcome.running, outcome.completed) == (18, 18)


@requirement("NFR-REL-003")
async def test_terminated_connections_fail_no_task_and_no_request() -> None:
    place = new_place(shared_server())
    passed = await database.database_round(place, database.terminate, tasks=8, seed=SEED, seconds=5)
    assert passed.outcome.completed == 8
    assert passed.messages > 0


@needs_pgbouncer
async def test_a_pooler_that_is_restarted_fails_no_task_and_no_request() -> None:
    passed = await database.pooler_round(new_place(shared_server()), "transaction", tasks=8, seed=SEED, seconds=8)
    assert passed.outcome.completed == 8


@pytest.mark.skipif(not clocks.find_faketime(), reason=clocks.HOW_TO_GET_IT)
async def test_clocks_that_are_wrong_or_changed_cost_no_task_and_no_lease(tmp_path: Path) -> None:
    outcome = await rounds.clock_round(new_place(shared_server()), tmp_path, tasks=24, seed=SEED)
    assert outcome.tasks == 24
    assert outcome.completed >= 20


async def test_random_clients_receive_consistent_answers_while_replicas_die_and_stall() -> None:
    history = await histories.history_round(new_place(shared_server()), operations=400, seed=SEED)
    assert sum(history.operations.values()) == 400
    assert history.faults > 0


async def test_a_task_that_is_canceled_at_every_replica_ends_once() -> None:
    storm = await histories.cancel_storm(new_place(shared_server()), tasks=20, seed=SEED)
    assert storm.cancels == 60
    assert storm.outcome.canceled > 0


async def test_readers_at_all_replicas_receive_the_same_events_in_the_same_order() -> None:
    place = new_place(shared_server())
    ordering = await histories.ordering_round(place, tasks=3, numbers=150, readers=4, seed=SEED)
    assert ordering.events > 1000
