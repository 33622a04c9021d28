"""The guards of limits that `scripts.http_mutants` takes away: how much a caller may ask for, run, watch and store."""

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
PROXIES: Final = "../http/middleware.py"
CONTEXT: Final = "../engine/context.py"
STORED: Final = "../engine/stored_limits.py"
ROUTES: Final = "../app/routes.py"
_ROOM: Final = "        if self._has_all(quota_key):\n            raise"
_LIST: Final = '                named += value.decode("latin-1").split(",")'

LIMITS: Final = (
    # ---- whose limit it is
    Mutant("a bucket can be empty", BUCKETS, "if missing > 1e-9:", "if False:", RATES),
    Mutant(
        "a bucket holds no more than its burst",
        BUCKETS,
        "max(slot.full_at, now)",
        "slot.full_at or now",
        RATES,
    ),
    Mutant("the fullest bucket is forgotten", BUCKETS, "times.index(min(times))", "times.index(max(times))", RATES),
    Mutant(
        "a bucket is its caller's alone",
        BUCKETS,
        "if tag in tags:\n            place = tags.index(tag)",
        "if any(tags):\n            place = 0",
        RATES,
    ),
    Mutant(
        "workers count together",
        BUCKETS,
        "mmap.mmap(-1, self._rows * _ROW.size)",
        "bytearray(self._rows * _ROW.size)",
        RATES,
    ),
    Mutant("all together have a limit", BUCKETS, "if self._total is not None:", "if False:", RATES),
    Mutant("the nameless have less", ROUTES, "anonymous /= ANONYMOUS_PART", "pass", RATES),
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
        "a tenant is no second caller",
        CONTEXT,
        '        caller = replace(caller, tenant="")\n',
        "        pass\n",
        f"{RATES} {STREAMS} {RUNS}",
    ),
    Mutant(
        "the nameless are told apart",
        CONTEXT,
        '_NAMELESS + (network_of(peer[0]) if peer else "")',
        "_NAMELESS",
        RATES,
    ),
    Mutant(
        "the nameless run and watch less",
        CONTEXT,
        "if anonymous_part == 1 or not quota_key.startswith(_NAMELESS):",
        "if True:",
        f"{RATES} {STREAMS} {RUNS}",
    ),
    Mutant(
        "who has a name has a whole share",
        CONTEXT,
        "if anonymous_part == 1 or not quota_key.startswith(_NAMELESS):",
        "if anonymous_part == 1:",
        f"{RATES} {STREAMS} {RUNS}",
    ),
    Mutant("an IPv6 network is one caller", CONTEXT, 'return f"{int(address) >> 64:x}::/64"', "return host", RATES),
    Mutant("all of IPv4 is not one network", CONTEXT, "if address.ipv4_mapped is not None:", "if False:", RATES),
    Mutant(
        "only a trusted proxy says whom it forwards",
        PROXIES,
        "if peer is not None and peer[0] in self._proxies:\n            scope[CLIENT_KEY]",
        "if peer is not None:\n            scope[CLIENT_KEY]",
        RATES,
    ),
    Mutant("what a client made up is not read", PROXIES, "for text in reversed(named):", "for text in named:", RATES),
    Mutant("trusted proxies are passed over", PROXIES, "if address not in self._proxies:", "if True:", RATES),
    Mutant("two lists are one", PROXIES, _LIST, _LIST.replace("+=", "="), RATES),
    Mutant(
        "behind what is no address nothing is believed",
        PROXIES,
        "            if address is None:\n                break",
        "            if address is None:\n                continue",
        RATES,
    ),
    Mutant("one caller has a share of runs", "../engine/runs.py", _ROOM, "        if False:\n            raise", RUNS),
    Mutant(
        "a message to an old task needs a place",
        "../engine/intake.py",
        "        self._runs.keep_place(live, context.quota_key)\n",
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
        "a place that nobody uses is given up",
        "../engine/runs.py",
        "            self._give_up_void_places()\n",
        "            pass\n",
        RUNS,
    ),
    Mutant(
        "what waits counts for its address",
        "../engine/intake.py",
        "CallContext(caller=context.caller, peer=context.peer)",
        "CallContext(caller=context.caller)",
        RUNS,
    ),
    Mutant(
        "the share of runs is looked at twice",
        "../engine/runs.py",
        "        self.check_room(quota_key)\n        return LiveTask(",
        "        return LiveTask(",
        RUNS,
    ),
    Mutant(
        "an event has a size", "../engine/run.py", "size > self._max_event or self._room < 0", "self._room < 0", RUNS
    ),
    Mutant(
        "a run's output has a size",
        "../engine/run.py",
        "size > self._max_event or self._room < 0",
        "size > self._max_event",
        RUNS,
    ),
    Mutant(
        "one caller has a share of streams",
        "../engine/streams.py",
        "if self._open.used_by(quota_key) >= limit_of(quota_key, self._limit_per_caller, self._anonymous_part):",
        "if False:",
        STREAMS,
    ),
    # ---- what is stored
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
    Mutant("all have a limit of stored bytes", STORED, "if self._of_all.is_given and", "if False and", QUOTAS),
    Mutant("what will be stored is counted", STORED, "self.add(owner, len(encode(request)), tasks=", "bool(", QUOTAS),
    Mutant(
        "what is stored is looked at twice",
        STORED,
        "if not self._of_caller.takes(self._count_of(quota_key).total, is_new=is_new):",
        "if False:",
        QUOTAS,
    ),
    Mutant(
        "what a run has stored is counted",
        "../engine/runs.py",
        "self.stored.add(run.live.owner, run.output_bytes)",
        "pass",
        QUOTAS,
    ),
    Mutant(
        "a message to a stored task is counted",
        "../engine/intake.py",
        "self._stored.take(context.owner, request, is_new=False)",
        "pass",
        QUOTAS,
    ),
    Mutant(
        "a tenant is no second share of the store",
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
        "owner < $1 || '\\\\x0b'::bytea",
        "FALSE",
        QUOTAS,
    ),
    Mutant(
        "an old count of the store refuses nobody",
        STORED,
        "for interval in (INTERVAL, REFUSAL_INTERVAL):",
        "for interval in (INTERVAL,):",
        QUOTAS,
    ),
    Mutant("a slow store is asked seldom", STORED, "max(interval, PAUSE * count.seconds)", "interval", QUOTAS),
    Mutant("many cause one count of the store", STORED, "async with count.lock:", "if True:", QUOTAS),
    Mutant("counts of the store are few", STORED, "if len(self._counts) > MAX_KNOWN:", "if False:", QUOTAS),
    Mutant("a store's share of many is nobody's own", STORED, "if quota_key == ANONYMOUS:", "if False:", QUOTAS),
    Mutant(
        "a full share of the memory store takes no new task",
        "../storage/memory.py",
        "        if is_share_full and share.quota_key != ANONYMOUS:",
        "        if False:",
        QUOTAS,
    ),
    Mutant(
        "in the memory store one's own tasks make room",
        "../storage/memory.py",
        "self._max_tasks_per_owner:\n            self._evict_of(share)",
        "self._max_tasks_per_owner:\n            self._evict()",
        QUOTAS,
    ),
)
