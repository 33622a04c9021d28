"""How often a caller may ask: what a bucket holds, whose it is, and what is answered when it is empty."""

from typing import Any

import httpx
import pytest

from apcore_a2a.agent import Caller
from apcore_a2a.app.serve import ServeOptions, build
from apcore_a2a.engine.context import live_quota_key
from apcore_a2a.http.rate_limit import PLACES, SharedBuckets, TokenBuckets
from apcore_a2a.settings import Limits
from tests.fakes import COMPLETED, Gate, ScriptedAgent
from tests.interaction.serving import CARD
from tests.processes import running

V1 = {"A2A-Version": "1.0"}
GET = {"jsonrpc": "2.0", "id": 7, "method": "GetTask", "params": {"id": "unknown"}}
SLOW = 0.001  # requests a second: what is empty stays so for the time of a test


class ByName:
    """Accepts any name that a caller gives. A caller without a name is anonymous and accepted too."""

    def authenticate(self, headers: dict[str, str]) -> Caller:
        if "x-name" in headers:
            return Caller(id=headers["x-name"], type="user", issuer="test")
        return Caller()


def client(peer: str = "127.0.0.1", app: Any = None, **options: Any) -> httpx.AsyncClient:
    given: ServeOptions = {"card": CARD, **options}  # type: ignore[typeddict-item]  # whatever a test gives
    app = app or build(ScriptedAgent(default=(COMPLETED,)), given, host="127.0.0.1")
    transport = httpx.ASGITransport(app=app, client=(peer, 4711))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=V1)


def app(**options: Any) -> Any:
    given: ServeOptions = {"card": CARD, **options}  # type: ignore[typeddict-item]  # whatever a test gives
    return build(ScriptedAgent(default=(COMPLETED,)), given, host="127.0.0.1")


# ---- buckets -----------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_a_burst_then_its_rate() -> None:
    clock = Clock()
    buckets = TokenBuckets(rate=4, burst=3, clock=clock)
    assert [buckets.take("ada") for _ in range(4)] == [0, 0, 0, 0.25]
    assert buckets.take("bob") == 0
    clock.now += 0.25
    assert [buckets.take("ada") for _ in range(2)] == [0, 0.25]
    clock.now += 60
    assert [buckets.take("ada") for _ in range(4)] == [0, 0, 0, 0.25]  # it never holds more than its burst


def test_over_a_long_time_no_caller_gets_more_than_the_rate_and_one_burst() -> None:
    clock = Clock()
    buckets = TokenBuckets(rate=7, burst=5, clock=clock)
    taken = 0
    for _ in range(10_000):
        clock.now += 0.01
        taken += buckets.take("ada") == 0
    assert 7 * 100 <= taken <= 7 * 100 + 5


def test_asking_while_it_is_empty_does_not_make_it_worse() -> None:
    clock = Clock()
    buckets = TokenBuckets(rate=1, burst=1, clock=clock)
    assert buckets.take("ada") == 0
    for _ in range(1_000):
        assert buckets.take("ada") == 1
    clock.now += 1
    assert buckets.take("ada") == 0


def test_only_so_many_buckets_are_kept_and_the_fullest_go() -> None:
    clock = Clock()
    buckets = TokenBuckets(rate=1, burst=4, most=PLACES, clock=clock)
    for _ in range(3):
        assert buckets.take("eve") == 0
    for number in range(1_000):
        assert buckets.take(f"caller {number}") == 0
    assert buckets.take("eve") == 0  # the bucket that is most used is kept, and those that were used once are evicted
    assert buckets.take("eve") > 0


def test_a_shared_bucket_belongs_to_its_name_alone() -> None:
    buckets = SharedBuckets(1_000)
    names = [f"caller {number}" for number in range(300)]
    for number, name in enumerate(names, 1):
        buckets.write(buckets.find(name), float(number))
    for number, name in enumerate(names, 1):
        assert buckets.find(name).full_at in (0.0, float(number))
    kept = sum(buckets.find(name).full_at > 0 for name in names)
    assert kept > 290  # a row that was full has forgotten the others
    assert buckets.find("unknown").full_at == 0
    for name in ("caller 299", "lone surrogate \ud800"):
        buckets.write(buckets.find(name), 5.0)
        assert buckets.find(name).full_at == 5.0


FORKED = """
import os
import sys
from apcore_a2a.http.rate_limit import TokenBuckets

buckets = TokenBuckets(rate=0.001, burst=10)
taken = 0
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(sum(buckets.take("eve") == 0 for _ in range(3)))
    taken += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(taken, sum(buckets.take("eve") == 0 for _ in range(5)), file=sys.stderr)
"""


async def test_processes_that_were_forked_count_together() -> None:
    async with running("-c", FORKED) as process:
        assert await process.ends() == 0
    assert process.said == "9 1\n"


# ---- whose bucket ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),  # one network of a caller who has 2**64 addresses
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("a:b", "a:c", False),
    ],
)
def test_callers_without_a_name_are_told_apart_by_network(one: str, other: str, same: bool) -> None:
    first = live_quota_key(Caller(), (one, 1))
    second = live_quota_key(Caller(tenant="made up"), (other, 2))
    assert (first == second) is same


def test_a_caller_with_a_name_has_one_allowance_wherever_they_are() -> None:
    ada = Caller(id="ada", type="user", issuer="idp")
    assert live_quota_key(ada, ("10.0.0.1", 1)) == live_quota_key(Caller(id="ada", type="user", issuer="idp"), None)
    assert live_quota_key(ada, None) != live_quota_key(Caller(id="ada", type="user", issuer="other"), None)
    assert live_quota_key(ada, None) == live_quota_key(Caller(id="ada", type="user", issuer="idp", tenant="t"), None)
    # No name makes an authenticated caller count as an anonymous one.
    assert live_quota_key(Caller(id="x", type="user"), None) != live_quota_key(Caller(), None)


# ---- over the wire -----------------------------------------------------------------------------------------------


async def test_over_the_limit_json_rpc_says_429_with_a_typed_error_and_when_to_come_back() -> None:
    async with client(limits=Limits(max_requests_per_second=SLOW, request_burst=2)) as http:
        for _ in range(2):
            assert (await http.post("/", json=GET)).status_code == 200
        refused = await http.post("/", json=GET)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) in range(900, 1_001)
        error = refused.json()["error"]
        assert error["code"] == -32603
        assert error["data"][0]["reason"] == "LIMIT_EXCEEDED"
        assert error["data"][0]["metadata"]["type"] == "LimitExceededError"
        # 0.3 says it in its own shape.
        older = await http.post("/", json=GET | {"method": "tasks/get"}, headers={"A2A-Version": ""})
        assert (older.status_code, older.json()["error"]["code"]) == (429, -32603)


async def test_over_the_limit_rest_says_429_in_its_own_shape() -> None:
    async with client(limits=Limits(max_requests_per_second=SLOW, request_burst=1)) as http:
        assert (await http.get("/tasks")).status_code == 200
        refused = await http.get("/tasks")
        assert refused.status_code == 429
        assert refused.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
        assert refused.json()["error"]["details"][0]["reason"] == "LIMIT_EXCEEDED"


async def test_one_limit_over_every_binding_and_route() -> None:
    async with client(limits=Limits(max_requests_per_second=SLOW, request_burst=1)) as http:
        assert (await http.post("/", json=GET)).status_code == 200
        for method, path in [
            ("GET", "/tasks"),
            ("POST", "/message:send"),
            ("POST", "/message:stream"),
            ("GET", "/some-tenant/tasks"),
            ("GET", "/v1/tasks"),
            ("POST", "/tasks/t:cancel"),
            ("GET", "/agent/authenticatedExtendedCard"),
            ("GET", "/extendedAgentCard"),
            ("GET", "/nothing"),
            ("POST", "//"),
        ]:
            assert (await http.request(method, path, json={})).status_code == 429, path


async def test_public_endpoints_have_no_rate_limit() -> None:
    async with client(limits=Limits(max_requests_per_second=SLOW, request_burst=1), metrics=True) as http:
        for _ in range(3):
            for path in ("/.well-known/agent-card.json", "/health", "/health/live", "/metrics"):
                assert (await http.get(path)).status_code == 200


async def test_each_caller_has_a_bucket_of_their_own() -> None:
    async with client(auth=ByName(), limits=Limits(max_requests_per_second=SLOW, request_burst=1)) as http:
        assert (await http.get("/tasks", headers={"X-Name": "ada"})).status_code == 200
        assert (await http.get("/tasks", headers={"X-Name": "ada"})).status_code == 429
        assert (await http.get("/made-up-tenant/tasks", headers={"X-Name": "ada"})).status_code == 429
        assert (await http.get("/tasks", headers={"X-Name": "bob"})).status_code == 200


async def test_with_authentication_those_without_a_name_get_a_tenth() -> None:
    served = app(auth=ByName(), limits=Limits(max_requests_per_second=10))
    ada = {"X-Name": "ada"}
    async with client(app=served) as http:
        nameless = [(await http.get("/tasks")).status_code for _ in range(4)]
        named = [(await http.get("/tasks", headers=ada)).status_code for _ in range(20)]
    assert nameless == [200, 200, 429, 429]
    assert named == [200] * 20


async def test_without_authentication_anonymous_callers_get_the_full_rate() -> None:
    async with client(limits=Limits(max_requests_per_second=10)) as http:
        assert [(await http.get("/tasks")).status_code for _ in range(20)] == [200] * 20


async def test_callers_without_a_name_are_limited_by_their_own_setting() -> None:
    served = app(auth=ByName(), limits=Limits(max_anonymous_requests_per_second=SLOW, request_burst=1))
    async with client("10.0.0.1", served) as one, client("10.0.0.2", served) as other:
        assert (await one.get("/tasks")).status_code == 200
        assert (await one.get("/tasks")).status_code == 429
        assert (await other.get("/tasks")).status_code == 200
        for _ in range(5):
            assert (await one.get("/tasks", headers={"X-Name": "ada"})).status_code == 200


async def test_the_limit_of_all_together_is_503_and_who_is_over_their_own_takes_nothing_of_it() -> None:
    served = app(
        auth=ByName(), limits=Limits(max_requests_per_second=SLOW, max_total_requests_per_second=SLOW, request_burst=3)
    )
    async with client(app=served) as http:
        ada = {"X-Name": "ada"}
        statuses = [(await http.get("/tasks", headers=ada)).status_code for _ in range(10)]
        assert statuses == [200] * 3 + [429] * 7
        refused = await http.get("/tasks", headers={"X-Name": "bob"})
        assert refused.status_code == 503
        assert refused.json()["error"]["details"][0]["reason"] == "OVERLOADED"
        assert refused.headers["retry-after"]


async def test_how_many_may_come_at_once_is_said_of_a_caller_and_not_of_all_together() -> None:
    served = app(
        auth=ByName(), limits=Limits(max_requests_per_second=SLOW, max_total_requests_per_second=5, request_burst=1)
    )
    async with client(app=served) as http:
        statuses = [(await http.get("/tasks", headers={"X-Name": str(who)})).status_code for who in range(10)]
        assert statuses == [200] * 10  # those of two seconds
        assert (await http.get("/tasks", headers={"X-Name": "0"})).status_code == 429


@pytest.mark.parametrize("given", [{}, {"max_active_tasks": 5}])
def test_a_request_burst_needs_a_rate(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="request_burst has no effect without max_requests_per_second"):
        app(limits=Limits(request_burst=5, **given))


async def test_refused_requests_are_counted() -> None:
    async with client(limits=Limits(max_requests_per_second=SLOW, request_burst=1), metrics=True) as http:
        for _ in range(4):
            await http.get("/tasks")
        assert (await http.get("/metrics")).json()["limited_requests"] == 3
        text = (await http.get("/metrics", headers={"Accept": "text/plain"})).text
        assert "apcore_a2a_limited_requests_total 3" in text


async def test_who_is_refused_is_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    served = app(auth=ByName(), limits=Limits(max_requests_per_second=SLOW, request_burst=1))
    async with client("10.0.0.1", served) as http:
        for _ in range(5):
            for who in ("ada", "bob"):
                await http.get("/tasks", headers={"X-Name": who})
    told = [vars(record) for record in caplog.records if record.getMessage() == "request refused"]
    assert [(line["caller"], line["peer"]) for line in told] == [("ada", "10.0.0.1"), ("bob", "10.0.0.1")]
    assert told[0]["reason"] == "You are over your limit of requests; try again later"


@pytest.mark.parametrize("name", ["max_requests_per_second", "max_total_requests_per_second", "request_burst"])
def test_a_rate_of_zero_is_rejected_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        app(limits=Limits(**{name: 0}))


# ---- behind a proxy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "same_as"),
    [
        ("203.0.113.1", "203.0.113.1"),
        ("203.0.113.1:4711", "203.0.113.1"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("198.51.100.9, 203.0.113.1", "203.0.113.1"),  # what stands before is the client's own word
        ("203.0.113.1, 10.0.0.9", "203.0.113.1"),  # 10.0.0.9 is a trusted proxy as well
        ("203.0.113.1, 172.18.0.4, 10.0.0.9", "203.0.113.1"),  # 172.18.0.4 by its network
        ("203.0.113.1, 172.32.0.4, 10.0.0.9", "172.32.0.4"),
        ("nonsense, 203.0.113.1", "203.0.113.1"),
        ("203.0.113.1, nonsense", "10.0.0.8"),  # then it is the proxy's
        ("", "10.0.0.8"),
    ],
)
async def test_behind_a_trusted_proxy_the_client_counts(said: str, same_as: str) -> None:
    proxies = ["10.0.0.8", "10.0.0.9", "172.16.0.0/12"]
    served = app(limits=Limits(max_requests_per_second=SLOW, request_burst=1), trusted_proxies=proxies)
    async with client("10.0.0.8", served) as behind, client(same_as, served) as direct:
        headers = {"X-Forwarded-For": said, "X-Real-IP": "198.51.100.77"}  # any client can send that one
        assert (await behind.get("/tasks", headers=headers)).status_code == 200
        assert (await direct.get("/tasks", headers={"Host": "localhost"})).status_code == 429


async def test_a_list_of_forwarders_in_two_headers_is_one_list() -> None:
    served = app(limits=Limits(max_requests_per_second=SLOW, request_burst=1), trusted_proxies=["10.0.0.8", "10.0.0.9"])
    async with client("10.0.0.8", served) as http:
        lists = [("X-Forwarded-For", "198.51.100.1"), ("X-Forwarded-For", "203.0.113.1")]
        assert (await http.get("/tasks", headers=lists)).status_code == 200
        lists = [("X-Forwarded-For", "198.51.100.2"), ("X-Forwarded-For", "203.0.113.1")]
        assert (await http.get("/tasks", headers=lists)).status_code == 429
        lists = [("X-Forwarded-For", "203.0.113.1"), ("X-Forwarded-For", "10.0.0.9")]  # and a proxy behind the other
        assert (await http.get("/tasks", headers=lists)).status_code == 429


async def test_only_trusted_proxies_report_client_addresses() -> None:
    served = app(limits=Limits(max_requests_per_second=SLOW, request_burst=1), trusted_proxies=["10.0.0.8"])
    async with client("127.0.0.1", served) as http:
        statuses = []
        for number in range(3):
            answer = await http.get("/tasks", headers={"X-Forwarded-For": f"203.0.113.{number}"})
            statuses.append(answer.status_code)
        assert statuses == [200, 429, 429]


# ---- what runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "anonymous_runs"),
    [({}, 20), ({"auth": ByName()}, 2), ({"auth": ByName(), "limits": Limits(max_active_tasks_per_caller=5)}, 1)],
    ids=["without authentication", "beside callers with a name", "one at least"],
)
async def test_callers_without_a_name_run_a_tenth_beside_those_with_one(options: Any, anonymous_runs: int) -> None:
    gate = Gate()
    given: Any = {
        "card": CARD,
        "limits": Limits(max_active_tasks_per_caller=20),
        **options,
    }  # Any: whatever a case gives
    agent = build(ScriptedAgent(default=(gate, COMPLETED)), given, host="127.0.0.1")
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go"}]}
    body = {"message": message, "configuration": {"returnImmediately": True}}

    async def statuses(http: httpx.AsyncClient, count: int, **headers: str) -> list[int]:
        return [(await http.post("/message:send", json=body, headers=headers)).status_code for _ in range(count)]

    async with client(app=agent) as here, client("192.0.2.1", app=agent) as there:
        assert await statuses(here, anonymous_runs + 1) == [200] * anonymous_runs + [429]
        assert await statuses(there, 1) == [200]
        if "auth" in options:
            assert await statuses(here, 5, **{"x-name": "ada"}) == [200] * 5
        gate.open()
    await agent.engine.close()
