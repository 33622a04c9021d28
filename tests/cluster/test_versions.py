"""Replicas of two versions on one database, as in every upgrade without downtime."""

import signal

import asyncpg
import pytest

from apcore_a2a.storage.postgres.schema import MIGRATIONS
from tests.cluster.checker import check_database, check_received, read_events
from tests.cluster.replicas import Client, new_place, replicas
from tests.postgres_server import shared_server
from tests.processes import running
from tests.requirements import requirement
from tests.sources import ROOT

SEED = 16
ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


@requirement("NFR-REL-001")
@pytest.mark.parametrize("first", ["older", "newer"])
async def test_replicas_of_two_adjacent_versions_serve_each_others_tasks(first: str) -> None:
    """An upgrade, and a rollback."""
    place = new_place(shared_server())
    url = f"{place.url}&lease=3"
    later = {"older": ({}, {"LATER_BY": "1"}), "newer": ({"LATER_BY": "1"}, {})}[first]
    async with (
        replicas(url, environments=later[:1]) as (one,),
        replicas(url, environments=later[1:]) as (other,),
        Client([one, other], SEED) as client,
    ):
        for here, there in ((one, other), (other, one)):
            client.replicas = [here]
            asked = await client.start("ask", wait=True)
            slow = await client.start("count 1000 0.05 safe")
            client.replicas = [there]
            assert await client.read(asked) == "INPUT_REQUIRED"
            canceled = await client.persist("POST", f"/tasks/{slow}:cancel")
            assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
            quick = await client.start("count 10 0.05 safe")
            client.replicas = [here]
            await client.follow(quick)
            assert await client.read(quick) == "COMPLETED"
            assert (await client.persist("GET", "/tasks"))["totalSize"] >= 3
        client.replicas = [one]
        left = await client.start("count 20 0.1 safe")
        await one.end(signal.SIGKILL)
        client.replicas = [other]
        await client.follow(left)
        assert await client.read(left) == "COMPLETED"
    assert await check_database(place.dsn, place.schema) == []
    assert check_received(client, await read_events(place.dsn, place.schema)) == []
    connection = await asyncpg.connect(place.dsn)
    version = await connection.fetchval(f"SELECT version FROM {place.schema}.about")
    await connection.close()
    assert version == len(MIGRATIONS) + 1


async def test_a_replica_does_not_start_on_tables_two_versions_later_and_reports_what_to_do() -> None:
    place = new_place(shared_server())
    async with replicas(place.url, environments=[{"LATER_BY": "2"}]):
        async with running("-m", "tests.cluster.replica", place.url, **ENVIRONMENT) as old:
            await old.says(r"made by a newer apcore-a2a; this one knows schemas up to \d+: upgrade it")
            assert await old.ends() == 2
        async with running("-m", "tests.cluster.replica", place.url, LATER_BY="1", **ENVIRONMENT) as middle:
            await middle.says(r"running on http://[\d.]+:\d+")
