"""Short rounds of faults with three replicas in processes of their own."""

import signal

import aiohttp
import pytest

from tests.cluster import rounds
from tests.cluster.replicas import Client, new_place, replicas
from tests.postgres_server import PostgresServer, shared_server
from tests.requirements import requirement

SEED = 20261118


@requirement("NFR-REL-003")
@pytest.mark.parametrize("fault", ["kill", "stop"])
async def test_a_fault_of_one_replica_costs_no_task_and_no_event(fault: str) -> None:
    outcome = await rounds.fault_round(new_place(shared_server()), tasks=24, seed=SEED, fault=fault)
    assert outcome.tasks == 24
    assert outcome.completed > 0
    assert outcome.events > 100


async def test_a_database_that_crashes_costs_no_task_and_no_event() -> None:
    server = PostgresServer()
    server.start()
    try:
        outcome = await rounds.fault_round(new_place(server), tasks=12, seed=SEED, fault="database", lease=6)
    finally:
        server.remove()
    assert (outcome.completed, outcome.lost) == (12, 0)


async def test_a_stream_of_a_replica_that_shuts_down_ends_with_a_retry_hint_and_continues_elsewhere() -> None:
    url = new_place(shared_server()).url
    async with replicas(url, url) as (leaving, staying), Client([leaving], SEED) as client:
        task_id = await client.start("count 40 0.2 safe")
        async with aiohttp.ClientSession(headers={"A2A-Version": "1.0"}) as http:
            async with http.get(f"{leaving.address}/tasks/{task_id}:subscribe") as stream:
                await stream.content.readline()
                leaving.send(signal.SIGTERM)
                rest = await stream.content.read()
            assert b"TASK_STATE_FAILED" not in rest
            assert rest.endswith(b"retry: 500\n\n")
            async with http.get(f"{staying.address}/tasks/{task_id}:subscribe") as stream:
                assert b"TASK_STATE_COMPLETED" in await stream.content.read()


@requirement("NFR-REL-001")
async def test_a_rolling_restart_of_three_replicas_fails_no_request() -> None:
    outcome = await rounds.rolling_round(new_place(shared_server()), requests=200, streams=6, seed=SEED)
    assert outcome.events >= 200
