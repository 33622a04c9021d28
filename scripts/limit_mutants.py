"""The guards of limits that `scripts.http_mutants` removes: of requests, runs, streams and stored bytes per caller."""

from typing import Final

from scripts.mutants import Mutant

RATES: Final = "tests/http/test_rate_limit.py"
RUNS: Final = "tests/engine/test_live_tasks.py"
STREAMS: Final = "tests/engine/test_stream_limits.py"
QUOTAS: Final = (
    "tests/engine/test_stored_limits.py tests/http/test_stored_limits.py "
    "tests/storage/test_contract_usage.py tests/storage/test_memory_bytes.py"
)
BUCKETS: Final = "../http/rate_limit.py"
PROXIES: Final = "../http/forwarded.py"
ADDRESSES: Final = "tests/http/test_card_address.py"
CONTEXT: Final = "../engine/context.py"
QUOTA: Final = "../quota.py"
STORED: Final = "../engine/stored_limits.py"
ROUTES: Final = "../app/routes.py"
_ROOM: Final = "        if not self._has_room(quota_key):\n            raise"
_LIST: Final = '            addresses += value.decode("latin-1").split(",")'

LIMITS: Final = (
    # ---- limits per caller
    Mutant("an empty bucket rejects requests", BUCKETS, "if missing > 1e-9:", "if False:", RATES),
    Mutant(
        "a bucket holds no more than its burst",
        BUCKETS,
        "max(slot.full_at, now)",
        "slot.full_at or now",
        RATES,
    ),
    Mutant("the fullest bucket is evicted", BUCKETS, "times.index(min(times))", "times.index(max(times))", RATES),
    Mutant(
        "a bucket belongs to one caller",
        BUCKETS,
        "if tag in tags:\n            place = tags.index(tag)",
        "if any(tags):\n            place = 0",
        RATES,
    ),
    Mutant(
        "workers share the buckets",
        BUCKETS,
        "mmap.mmap(-1, self._rows * _ROW.size)",
        "bytearray(self._rows * _ROW.size)",
        RATES,
    ),
    Mutant("all callers together have a limit", BUCKETS, "if self._total is not None:", "if False:", RATES),
    Mutant("anonymous callers have a lower rate", ROUTES, "anonymous /= ANONYMOUS_DIVISOR", "pass", RATES),
    Mutant("JSON-RPC is limited", ROUTES, "limited(rpc)", "rpc", RATES),
    Mutant("REST is limited", ROUTES, "rest = limited(", "rest = (lambda app: app)(", RATES),
    Mutant(
        "the extended card is limited",
        ROUTES,
        "limited(ExtendedCardEndpoint(engine, cards))",
        "ExtendedCardEndpoint(engine, cards)",
        RATES,
    ),
    Mutant(
        "tenants of one account share its limit",
        CONTEXT,
        '        caller = replace(caller, tenant="")\n',
        "        pass\n",
        f"{RATES} {STREAMS} {RUNS}",
    ),
    Mutant(
        "anonymous callers are counted by address",
        CONTEXT,
        'ANONYMOUS_PREFIX + (network_of(peer[0]) if peer else "")',
        "ANONYMOUS_PREFIX",
        RATES,
    ),
    Mutant(
        "anonymous callers have a smaller share of runs and streams",
        QUOTA,
        "if anonymous_divisor != 1 and key.startswith(ANONYMOUS_PREFIX):",
        "if False:",
        f"{RATES} {STREAMS} {RUNS}",
    ),
    Mutant(
        "authenticated callers have the full share",
        QUOTA,
        "if anonymous_divisor != 1 and key.startswith(ANONYMOUS_PREFIX):",
        "if anonymous_divisor != 1:",
        f"{RATES} {STREAMS} {RUNS}",
    ),
    Mutant(
        "an IPv6 network counts as one address", CONTEXT, 'return f"{int(address) >> 64:x}::/64"', "return host", RATES
    ),
    Mutant(
        "mapped IPv4 addresses are not one network", CONTEXT, "if address.ipv4_mapped is not None:", "if False:", RATES
    ),
    Mutant(
        "only a trusted proxy reports client addresses",
        PROXIES,
        "if peer is not None and peer[0] in self._peers:\n            scope[CLIENT_KEY]",
        "if peer is not None:\n            scope[CLIENT_KEY]",
        RATES,
    ),
    Mutant(
        "invented addresses are ignored",
        PROXIES,
        'for text in reversed(_reported_clients(scope["headers"])):',
        'for text in _reported_clients(scope["headers"]):',
        RATES,
    ),
    Mutant(
        "a platform vouches only for its own client",
        PROXIES,
        "self._proxies = TrustedProxies(proxies)\n        self._peers",
        "self._proxies = TrustedProxies(proxies + forwarders)\n        self._peers",
        ADDRESSES,
    ),
    Mutant(
        "Forwarded is ignored beside X-Forwarded-Proto",
        PROXIES,
        "elif FORWARDED in headers:",
        "if FORWARDED in headers:",
        ADDRESSES,
    ),
    Mutant(
        "a signed card has no Host of the client's choice",
        "../app/application.py",
        "uses_host=parts.signer is None,",
        "uses_host=True,",
        ADDRESSES,
    ),
    Mutant("addresses of trusted proxies are skipped", PROXIES, "if address not in self._proxies:", "if True:", RATES),
    Mutant("two X-Forwarded-For headers are one list", PROXIES, _LIST, _LIST.replace("+=", "="), RATES),
    Mutant(
        "addresses behind an invalid one are ignored",
        PROXIES,
        "            if address is None:\n                break",
        "            if address is None:\n                continue",
        RATES,
    ),
    Mutant("one caller has a share of runs", "../engine/runs.py", _ROOM, "        if False:\n            raise", RUNS),
    Mutant(
        "a message to an existing task needs a place",
        "../engine/intake.py",
        "        self._runs.reserve_place(live, context.quota_key)\n",
        "",
        RUNS,
    ),
    Mutant(
        "a run passes its place on",
        "../engine/runs.py",
        "        if run.live.turn.is_taken:",
        "        if False:",
        RUNS,
    ),
    Mutant(
        "an unused place is released",
        "../engine/runs.py",
        "            self._release_void_places()\n",
        "            pass\n",
        RUNS,
    ),
    Mutant(
        "a queued message counts for its address",
        "../engine/intake.py",
        "headers=context.headers, peer=context.peer)",
        "headers=context.headers)",
        RUNS,
    ),
    Mutant(
        "the share of runs is checked twice",
        "../engine/runs.py",
        "        self.check_room(quota_key)\n        return LiveTask(",
        "        return LiveTask(",
        RUNS,
    ),
    Mutant(
        "the size of an event is limited",
        "../engine/agent_output.py",
        "size > self._max_event or self._bytes_left < 0",
        "self._bytes_left < 0",
        RUNS,
    ),
    Mutant(
        "the size of a run's output is limited",
        "../engine/agent_output.py",
        "size > self._max_event or self._bytes_left < 0",
        "size > self._max_event",
        RUNS,
    ),
    Mutant(
        "one caller has a share of streams",
        "../engine/streams.py",
        "if self._open.is_used_up(quota_key, self._limit_per_caller, self._anonymous_divisor):",
        "if False:",
        STREAMS,
    ),
    # ---- stored tasks and bytes
    Mutant(
        "one caller has a share of stored tasks",
        STORED,
        "return not is_new or self.tasks is None or usage.tasks < self.tasks",
        "return True",
        QUOTAS,
    ),
    Mutant(
        "one caller has a share of stored bytes",
        STORED,
        "if self.bytes is not None and usage.bytes >= self.bytes:",
        "if False:",
        QUOTAS,
    ),
    Mutant(
        "all owners together have a limit of stored bytes",
        STORED,
        "if self._of_all.is_given and",
        "if False and",
        QUOTAS,
    ),
    Mutant(
        "a new request is counted before it is stored",
        STORED,
        "self.add(owner, len(encode(request)), tasks=",
        "bool(",
        QUOTAS,
    ),
    Mutant(
        "the share of the store is checked twice",
        STORED,
        "if not self._of_caller.takes(self._count_of(quota_key).total, is_new=is_new):",
        "if False:",
        QUOTAS,
    ),
    Mutant(
        "the output of a run is counted",
        "../engine/runs.py",
        "self.stored.add(run.live.owner, run.output.size)",
        "pass",
        QUOTAS,
        (("../engine/runs.py", "self.stored.add(first.owner, first.output.size)", "pass"),),
    ),
    Mutant(
        "a message to a stored task is counted",
        "../engine/intake.py",
        "self._stored.take(context.owner, request, is_new=False)",
        "pass",
        QUOTAS,
    ),
    Mutant(
        "tenants of one account share its storage limit",
        "../storage/contract.py",
        'return owner.partition("\\n")[0]',
        "return owner",
        QUOTAS,
    ),
    Mutant(
        "tenants are counted in SQLite's store",
        "../storage/sqlite/reads.py",
        " OR (owner >= :account || char(10) AND owner < :account || char(11))",
        "",
        QUOTAS,
    ),
    Mutant(
        "tenants are counted in PostgreSQL's store",
        "../storage/postgres/reads.py",
        "SELECT number FROM task WHERE owner >= $1 || '\\\\x0a'::bytea AND",
        "SELECT number FROM task WHERE FALSE AND",
        QUOTAS,
    ),
    Mutant(
        "an outdated count of the store rejects no message",
        STORED,
        "for interval in (INTERVAL, REFUSAL_INTERVAL):",
        "for interval in (INTERVAL,):",
        QUOTAS,
    ),
    Mutant(
        "a slow store is counted less often", STORED, "max(interval, PAUSE_FACTOR * count.seconds)", "interval", QUOTAS
    ),
    Mutant("concurrent requests share one count of the store", STORED, "async with count.lock:", "if True:", QUOTAS),
    Mutant("cached counts of the store are limited", STORED, "if len(self._counts) > MAX_KNOWN:", "if False:", QUOTAS),
    Mutant(
        "the share of anonymous callers is not counted as one caller's",
        STORED,
        "if quota_key == ANONYMOUS:",
        "if False:",
        QUOTAS,
    ),
    Mutant(
        "a full share of the memory store rejects new tasks",
        "../storage/memory.py",
        "        if is_share_full and share.quota_key != ANONYMOUS:",
        "        if False:",
        QUOTAS,
    ),
    Mutant(
        "the memory store evicts tasks of the same owner first",
        "../storage/memory.py",
        "self._max_tasks_per_owner:\n            self._evict_of(share)",
        "self._max_tasks_per_owner:\n            self._evict()",
        QUOTAS,
    ),
)
