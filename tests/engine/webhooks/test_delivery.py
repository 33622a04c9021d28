"""WebhookDelivery: order, retries, circuits, limits and the drain."""

import asyncio
import json
from collections import Counter

import pytest
from msgspec.structs import replace

from apcore_a2a.engine.webhooks import delivery
from apcore_a2a.engine.webhooks.delivery import DEFAULT_LIMITS
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import PushConfig, TaskState
from apcore_a2a.storage.contract import Webhook
from tests.engine.webhooks.delivering import AT_ONCE, DeliveryScenario, FakeSender, delivering, host, numbers
from tests.fakes import PATIENCE, Gate
from tests.requirements import requirement
from tests.storage.contract import ALICE, Author, append


@requirement("FR-PSH-003")
async def test_a_webhook_is_given_up_after_retries_in_one_two_and_four_seconds() -> None:
    async with delivering(bad=["HTTP 500"]) as scenario:
        await scenario.task("t", "bad", events=2)
        await scenario.sender.next()
        for pause in (1.0, 2.0, 4.0):
            await scenario.until(lambda webhook: webhook.attempts > 0, "t")
            await scenario.later(pause - 0.01)
            assert scenario.sender.posts.empty()
            await scenario.later(0.01)
            assert (await scenario.sender.next()).event_id == "t/1"
        webhook = await scenario.until(lambda webhook: webhook.failed, "t")
        assert (webhook.attempts, webhook.delivered, webhook.reason) == (4, 0, "HTTP 500")
        await scenario.later(1_000)
        assert scenario.sender.posts.empty()


async def test_a_delivered_event_resets_the_attempts() -> None:
    async with delivering(bad=["no", "no", "", "no", ""]) as scenario:
        await scenario.task("t", "bad", events=2)
        got = [await scenario.sender.next()]
        for pause in (1.0, 2.0):
            await scenario.until(lambda webhook: webhook.attempts > 0, "t")
            await scenario.later(pause)
            got.append(await scenario.sender.next())
        got.append(await scenario.sender.next())
        webhook = await scenario.until(lambda webhook: webhook.delivered == 1, "t")
        await scenario.until(lambda webhook: webhook.attempts == 1, "t")
        await scenario.later(1.0)
        got.append(await scenario.sender.next())
        webhook = await scenario.until(lambda webhook: webhook.delivered == 2, "t")
        assert (webhook.attempts, webhook.failed) == (0, False)
        assert numbers(got) == ["t/1", "t/1", "t/1", "t/2", "t/2"]


async def test_events_are_posted_in_order_and_one_at_a_time() -> None:
    async with delivering() as scenario:
        await scenario.task("t", events=120)
        got = [await scenario.sender.next() for _ in range(120)]
        assert numbers(got) == [f"t/{number}" for number in range(1, 121)]
        assert scenario.sender.most["good"] == 1


async def test_a_webhook_that_hangs_delays_no_other() -> None:
    gate = Gate()
    async with delivering(slow=[gate]) as scenario:
        for number in range(100):
            await scenario.task(f"slow{number}", "slow")
        for number in range(20):
            await scenario.task(f"t{number}")
        got = [await scenario.sender.next() for _ in range(20 + DEFAULT_LIMITS.max_workers_per_target)]
        assert Counter(host(post) for post in got) == {"good": 20, "slow": DEFAULT_LIMITS.max_workers_per_target}
        gate.open()
        rest = [await scenario.sender.next() for _ in range(64 - DEFAULT_LIMITS.max_workers_per_target)]
        assert {host(post) for post in rest} == {"slow"}
        assert scenario.sender.most["slow"] == DEFAULT_LIMITS.max_workers_per_target


async def test_the_number_of_workers_is_limited() -> None:
    gate = Gate()
    async with delivering(AT_ONCE, **{f"slow{number}": [gate] for number in range(16)}) as scenario:
        for number in range(16 * 16):
            await scenario.task(f"t{number}", f"slow{number % 16}", owner=f"|{number % 8}")
        for _ in range(DEFAULT_LIMITS.max_workers):
            await scenario.sender.next()
        await scenario.later(0)
        assert scenario.sender.posts.empty()
        gate.open()


# ---- fairness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [60, 1_000])
async def test_hosts_that_never_answer_do_not_delay_another_account(hosts: int) -> None:
    gate = Gate()
    async with delivering(AT_ONCE, **{f"slow{number}": [gate] for number in range(hosts)}) as scenario:
        for number in range(hosts):
            # Tenants of one account share its part: a client can invent any number of them.
            await scenario.task(f"t{number}", f"slow{number}", owner=f"|mallory\n{number}")
        hanging = [await scenario.sender.next() for _ in range(DEFAULT_LIMITS.max_workers_per_account)]
        await scenario.later(0)
        assert scenario.sender.posts.empty()
        await scenario.task("good", owner="|bob")
        assert (await scenario.sender.next()).event_id == "good/1"
        assert len({host(post) for post in hanging}) == DEFAULT_LIMITS.max_workers_per_account
        gate.open()
        await scenario.until(lambda webhook: webhook.delivered == 1, "t0", owner="|mallory\n0")


async def test_accounts_take_turns_for_the_workers() -> None:
    gate = Gate()
    async with delivering(replace(AT_ONCE, max_workers=1), slow=[gate]) as scenario:
        await scenario.task("first", "slow", owner="|mallory")
        await gate.reached()
        for number in range(40):
            await scenario.task(f"m{number}", owner="|mallory")
        await scenario.task("b", owner="|bob")
        await scenario.later(0)
        gate.open()
        got = [await scenario.sender.next() for _ in range(4)]
        assert "b/1" in numbers(got)


async def test_the_bytes_posted_at_once_are_shared_by_the_accounts() -> None:
    gate = Gate()
    limits = replace(AT_ONCE, max_bytes=2_000, max_bytes_per_account=1)
    async with delivering(limits, slow=[gate]) as scenario:
        for number in range(3):
            await scenario.task(f"m{number}", "slow", owner="|mallory")
        await gate.reached()
        await scenario.task("b", owner="|bob")
        got = [await scenario.sender.next() for _ in range(2)]
        assert numbers(got) == ["m0/1", "b/1"]
        gate.open()


# ---- circuits -------------------------------------------------------------------------------------------------------

ONCE = replace(AT_ONCE, retry_delays=())


async def open_circuit(scenario: DeliveryScenario, *, owner: str = ALICE) -> None:
    """Let webhooks fail until the circuit of the target "bad" is open. Each is tried once."""
    for number in range(delivery.OPENS_AFTER):
        await scenario.task(f"t{number}", "bad", owner=owner)
        await scenario.sender.next()
        await scenario.until(lambda webhook: webhook.failed, f"t{number}", owner=owner)


async def test_the_circuit_of_a_failing_target_opens_and_one_trial_closes_it() -> None:
    gate = Gate()
    async with delivering(ONCE, bad=[*["no"] * delivery.OPENS_AFTER, gate]) as scenario:
        await open_circuit(scenario)
        for number in range(3):
            await scenario.task(f"late{number}", "bad")
        await scenario.later(0.5)
        assert scenario.sender.posts.empty()
        for pause in (0.5, 1.0, 1.0):
            await scenario.later(pause)
        await gate.reached()
        assert scenario.sender.busy["bad"] == 1  # one trial
        gate.open()
        await scenario.later(1.0)
        for number in range(3):
            await scenario.until(lambda webhook: webhook.delivered == 1, f"late{number}")


async def test_a_receiver_that_answers_with_errors_is_up() -> None:
    """The webhooks of `/gone` do not stop those of `/good` at the same host."""
    answers = [*["HTTP 404", "HTTP 500"] * delivery.OPENS_AFTER, ""]
    async with delivering(ONCE, bad=answers) as scenario:
        for number in range(2 * delivery.OPENS_AFTER):
            await scenario.task(f"t{number}", "bad")
            await scenario.until(lambda webhook: webhook.failed, f"t{number}")
        await scenario.task("good", "bad")
        await scenario.until(lambda webhook: webhook.delivered == 1, "good")


async def test_an_answer_closes_the_circuit() -> None:
    failures = ["no"] * (delivery.OPENS_AFTER - 1)
    async with delivering(ONCE, bad=[*failures, "HTTP 500", *failures, ""]) as scenario:
        for number in range(2 * delivery.OPENS_AFTER):
            await scenario.task(f"t{number}", "bad")
            await scenario.until(lambda webhook: webhook.failed or bool(webhook.delivered), f"t{number}")


async def test_the_circuit_of_one_account_delays_no_other() -> None:
    async with delivering(ONCE, bad=[*["no"] * delivery.OPENS_AFTER, ""]) as scenario:
        await open_circuit(scenario, owner="|mallory")
        await scenario.task("good", "bad", owner="|bob")
        await scenario.until(lambda webhook: webhook.delivered == 1, "good", owner="|bob")


async def test_an_open_circuit_does_not_delay_retries() -> None:
    async with delivering(bad=["no"]) as scenario:
        for number in range(delivery.OPENS_AFTER):
            await scenario.task(f"t{number}", "bad")
            await scenario.sender.next()
            await scenario.until(lambda webhook: webhook.attempts == 1, f"t{number}")
        for attempt, pause in enumerate((1.0, 2.0, 4.0), 2):
            await scenario.later(pause)
            for number in range(delivery.OPENS_AFTER):
                await scenario.until(lambda webhook: webhook.attempts == attempt, f"t{number}")  # noqa: B023
        for number in range(delivery.OPENS_AFTER):
            assert (await scenario.until(lambda webhook: webhook.failed, f"t{number}")).attempts == 4


async def test_after_a_minute_a_circuit_delays_nothing() -> None:
    gate = Gate()
    async with delivering(ONCE, bad=[*["no"] * delivery.OPENS_AFTER, gate]) as scenario:
        await open_circuit(scenario)
        await scenario.later(delivery.LONG_DOWN + 1)
        for number in range(3):
            await scenario.task(f"late{number}", "bad")
        for _ in range(3):
            await scenario.sender.next()
        assert scenario.sender.busy["bad"] == 3
        gate.open()


async def test_webhooks_of_a_target_that_stays_down_are_given_up_after_four_posts_each() -> None:
    async with delivering(bad=["no connection"]) as scenario:
        for number in range(50):
            await scenario.task(f"t{number}", "bad")
        for _ in range(400):
            await scenario.later(0.5)
        for number in range(50):
            webhook = await scenario.until(lambda webhook: webhook.failed, f"t{number}")
            assert (webhook.attempts, webhook.reason) == (4, "no connection")
        posts = Counter(numbers([scenario.sender.posts.get_nowait() for _ in range(scenario.sender.posts.qsize())]))
        assert posts == {f"t{number}/1": 4 for number in range(50)}


async def test_0_3_gets_the_task_as_it_was_at_each_status_and_nothing_for_chunks() -> None:
    async with delivering() as scenario:
        author = await scenario.task("t", version="0.3")
        first = await scenario.sender.next()
        await append(scenario.store, author.work())
        await append(scenario.store, author.chunk("a", "b"))
        await append(scenario.store, author.complete())
        scenario.delivery.wake()
        got = [first, await scenario.sender.next(), await scenario.sender.next()]
        assert numbers(got) == ["t/1", "t/2", "t/5"]
        bodies = [json.loads(post.body) for post in got]
        assert [body["status"]["state"] for body in bodies] == ["submitted", "working", "completed"]
        assert [len(body.get("artifacts", [])) for body in bodies] == [0, 0, 1]
        assert {post.media_type for post in got} == {"application/json"}
        await scenario.until(lambda webhook: webhook.delivered == 5, "t")


async def test_a_removed_webhook_gets_no_further_events() -> None:
    gate = Gate()
    async with delivering(slow=[gate, ""]) as scenario:
        await scenario.task("t", "slow", events=3)
        await gate.reached()
        assert await scenario.store.webhooks.remove("t", ALICE, "w")
        gate.open()
        await scenario.later(100)
        assert scenario.sender.posts.qsize() == 1  # the post in progress


async def test_an_unavailable_store_is_polled_again() -> None:
    async with delivering() as scenario:
        broken = True

        def check() -> None:
            if broken:
                raise StoreUnavailableError

        scenario.webhooks.before["claim"] = check
        await scenario.task("t")
        await scenario.later(1)
        assert scenario.sender.posts.empty()
        broken = False
        await scenario.later(1)
        assert (await scenario.sender.next()).event_id == "t/1"


async def test_a_drain_delivers_the_remaining_events() -> None:
    sender = FakeSender()
    scenario = DeliveryScenario(sender)
    for number in range(100):
        author = await scenario.task(f"t{number}", f"host{number}", events=3)
        await append(scenario.store, author.work())
        await append(scenario.store, author.status(TaskState.COMPLETED))
    scenario.delivery.start()
    await scenario.delivery.drain(PATIENCE)
    assert sender.posts.qsize() == 500
    assert (await scenario.store.webhooks.backlog()).events == 0


async def test_a_drain_does_not_wait_for_a_silent_receiver() -> None:
    gate = Gate()
    scenario = DeliveryScenario(FakeSender(slow=[gate]))
    await scenario.task("t", "slow")
    scenario.delivery.start()
    await gate.reached()
    async with asyncio.timeout(PATIENCE):
        await scenario.delivery.drain(0.01)
    assert (await scenario.store.webhooks.backlog()).events == 1


async def test_a_drain_releases_claims_with_their_cursors() -> None:
    gate = Gate()
    scenario = DeliveryScenario(FakeSender(slow=["", gate]), replace(AT_ONCE, max_workers_per_target=1))
    await scenario.task("long", "slow", events=3)
    await scenario.task("queued", "slow")
    second = PushConfig(url="https://other/hook", id="a", task_id="long")
    await scenario.store.webhooks.save(Webhook(config=second, a2a_version="1.0"), ALICE)
    scenario.delivery.start()
    await gate.reached()
    await scenario.delivery.drain(0.01)
    claims = await scenario.store.webhooks.claim(10, delivery.LEASE)  # another replica, before the leases expire
    got = {claim.webhook.config.task_id: claim.webhook for claim in claims}
    assert {name: webhook.delivered for name, webhook in got.items()} == {"long": 1, "queued": 0}


async def test_a_drain_starts_no_further_worker() -> None:
    gate = Gate()
    scenario = DeliveryScenario(FakeSender(slow=[gate]))
    for number in range(2 * DEFAULT_LIMITS.max_workers_per_target):
        await scenario.task(f"t{number}", "slow")
    scenario.delivery.start()
    await gate.reached()
    await scenario.later(0)
    await scenario.delivery.drain(0.01)
    assert scenario.sender.posts.qsize() == DEFAULT_LIMITS.max_workers_per_target
    assert scenario.sender.busy.total() == 0


async def test_a_task_with_many_events_shares_its_worker() -> None:
    async with delivering(replace(AT_ONCE, max_workers_per_target=1)) as scenario:
        await scenario.task("long", events=10 * delivery.AT_A_TIME)
        await scenario.task("short")
        got = [await scenario.sender.next() for _ in range(3 * delivery.AT_A_TIME)]
        assert "short/1" in numbers(got)
        rest = [await scenario.sender.next() for _ in range(7 * delivery.AT_A_TIME + 1)]
        told = [post for post in numbers(got + rest) if post.startswith("long")]
        assert told == [f"long/{number}" for number in range(1, 10 * delivery.AT_A_TIME + 1)]


async def test_the_bytes_posted_at_once_are_limited() -> None:
    size = len(Author("t0").create().events[0])
    gate = Gate()
    async with delivering(replace(AT_ONCE, max_bytes=2 * size + size // 2), slow=[gate]) as scenario:
        for number in range(6):
            await scenario.task(f"t{number}", "slow")
        await gate.reached()
        await scenario.later(0)
        assert scenario.sender.busy["slow"] == 2
        gate.open()
        assert len([await scenario.sender.next() for _ in range(6)]) == 6
        assert scenario.sender.most["slow"] == 2
