"""Mutation tests of the guards: remove one guard, run the tests that should fail. `python -m scripts.mutants [NAME…]`.

A mutant is a place in the sources, its replacement, and the tests that should fail. Each run works on a copy of the
sources. The number of failed tests goes into `scripts/mutants.json`, from which `scripts.security_page` writes
docs/security.md. The last lines name the cases of the hostile suite that no mutant broke.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
COUNTS: Final = ROOT / "scripts" / "mutants.json"
HOSTILE: Final = "tests/hostile/test_jwt_forgeries.py"
FORGED: Final = "test_a_forged_token"
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)


class Mutant(NamedTuple):
    guard: str
    file: str
    old: str
    new: str
    tests: str = HOSTILE
    also: tuple[tuple[str, str, str], ...] = ()
    """Further guards against the same input: they are removed together."""

    @property
    def path(self) -> str:
        """The file, relative to the package. `file` is relative to its folder `auth`."""
        return f"auth/{self.file}".replace("auth/../", "")

    @property
    def key(self) -> str:
        """The name in `scripts/mutants.json`; two files may have guards of the same name."""
        return f"{self.path}: {self.guard}"


def read_counts() -> dict[str, dict[str, int]]:
    """Return `failed`, the failed tests by key of a mutant, and `cases`, the sizes of the hostile suites."""
    counts: dict[str, dict[str, int]] = json.loads(COUNTS.read_text(encoding="utf-8"))
    return counts


def write_counts(counts: dict[str, dict[str, int]]) -> None:
    COUNTS.write_text(json.dumps(counts, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


ISSUER_TESTS: Final = "tests/auth/test_issuer_keys.py"
OIDC_TESTS: Final = "tests/auth/test_oidc.py"
ISOLATION: Final = "tests/interaction/test_isolation.py"
KEY_TESTS: Final = "tests/auth/test_api_keys.py"
DECODE: Final = "jws.deserialize_compact(token, key.key, registry=registry).payload"
CAUGHT: Final = "except _BAD_TOKEN as error:\n            reason"
READ_ONLY: Final = "jws.extract_compact(token.encode()).payload"

MUTANTS: Final = (
    # ---- tokens
    Mutant("the signature is checked", "jwt.py", DECODE, READ_ONLY),
    Mutant(
        "a key is for its own algorithms",
        "keys.py",
        "if is_named and algorithm in key.algorithms:",
        "if is_named:",
    ),
    Mutant("a kid selects one key", "keys.py", "kid is None or key.kid == kid", "True"),
    Mutant("a kid of two keys selects neither", "keys.py", "if len(fitting) != 1:", "if not fitting:", ISSUER_TESTS),
    Mutant("critical headers are refused", "jwt.py", 'if "crit" in header:', "if False:"),
    Mutant("other types of token are refused", "jwt.py", "not in _TYPES:", "not in _TYPES and False:"),
    Mutant("exp must be there", "jwt.py", 'required["exp"] = {"essential": True}', "pass"),
    Mutant("the issuer is compared", "jwt.py", 'required["iss"] = {"essential": True, "value": issuer}', "pass"),
    Mutant("the audience is compared", "jwt.py", 'required["aud"] = {"essential": True, "value": audience}', "pass"),
    Mutant("times and claims are checked", "jwt.py", "**self._required).validate(claims)", "**self._required)"),
    Mutant(
        "claims are read strictly",
        "jwt.py",
        "    return check_and_decode(payload, _CLAIMS)",
        "    return __import__('json').loads(payload)",
    ),
    Mutant("a long token is rejected unread", "jwt.py", "or len(token) > MAX_TOKEN", ""),
    Mutant(
        "text that is not a token is rejected",
        "jwt.py",
        CAUGHT,
        "except ZeroDivisionError as error:\n            reason",
    ),
    Mutant(
        "keys in a token are ignored",
        "jwt.py",
        "    if key is None:\n",
        "    if 'jwk' in header:\n"
        "        from apcore_a2a.auth.keys import import_published_keys\n"
        "        key = import_published_keys({'keys': [header['jwk']]}).find(None, 'ES256')\n"
        "    if key is None:\n",
    ),
    Mutant(
        "a subject is not empty",
        "jwt.py",
        "    if isinstance(claim, str) and claim:\n        return claim",
        "    return str(claim)",
        also=(("jwt.py", "**self._required).validate(claims)", "**self._required)"),),
    ),
    Mutant(
        "an error of the JWT library rejects the token",
        "jwt.py",
        CAUGHT,
        "except JoseError as error:\n            reason",
    ),
    Mutant(
        "an id is a string or a number",
        "jwt.py",
        "    if isinstance(claim, str) and claim:\n        return claim",
        "    return str(claim)",
        "tests/auth/test_jwt.py",
    ),
    Mutant("no token has the type system", "jwt.py", "if kind == SYSTEM:", "if False:"),
    Mutant("a type is a string", "jwt.py", 'raise TokenRefused(f"{name} must be a string")', "return str(claim)"),
    Mutant("a role is a string or a number", "jwt.py", "if isinstance(role, bool) or not", "if False and not"),
    Mutant(
        "a scope is a string",
        "jwt.py",
        'raise TokenRefused(f"{name} must be a string or a list of strings")',
        "return []",
    ),
    Mutant("a secret is strong", "keys.py", "if len(secret) < MIN_SECRET or", "if False and"),
    Mutant("a secret has enough different characters", "keys.py", "or len(set(secret)) < MIN_DIFFERENT", ""),
    Mutant(
        "a public key is not used as a secret",
        "keys.py",
        "public = _import_public(text)",
        "public = None",
        "tests/auth",
    ),
    Mutant("an RSA key has 2048 bits", "keys.py", "if bits < MIN_RSA_BITS:", "if False:"),
    Mutant("a cached token expires", "jwt.py", "if checked.until <= now:", "if False:", "tests/auth"),
    Mutant(
        "a cached token needs its key",
        "jwt.py",
        "if generation != self._generation:",
        "if False:",
        "tests/auth/test_token_cache.py tests/auth/test_oidc.py",
    ),
    Mutant(
        "cached tokens are limited",
        "jwt.py",
        "while self._characters > self._max_characters:",
        "while False:",
        "tests/auth/test_token_cache.py",
    ),
    # ---- authentication
    Mutant(
        "two sets of credentials are rejected",
        "../app/access.py",
        "if name_text in headers and name_text in self._credential_headers:",
        "if False:",
        f"{HOSTILE} tests/auth/test_auth_middleware.py",
    ),
    Mutant(
        "REST requires authentication",
        "../app/routes.py",
        "rest = _with_auth(rest, served)",
        "pass",
        "tests/auth/test_open_routes.py",
    ),
    Mutant(
        "unauthenticated requests are rejected",
        "../app/access.py",
        'await self._refuse_with_503(scope, send, "the authenticator failed")\n            return\n        if caller',
        "caller = None\n        if False",
        "tests/hostile/test_http_auth.py",
    ),
    Mutant(
        "invalid credentials do not make a caller anonymous",
        "authenticator.py",
        "in addressed or self._authenticators:",
        "in self._authenticators:",
        "tests/auth/test_any_of.py",
    ),
    # ---- published keys
    Mutant("a published key is public", "keys.py", "if not _PRIVATE.isdisjoint(jwk):", "if False:", ISSUER_TESTS),
    Mutant("a key is for signatures", "keys.py", 'if jwk.get("use", "sig") != "sig":', "if False:", ISSUER_TESTS),
    Mutant(
        "a key is for verification", "keys.py", '"verify" not in jwk.get("key_ops", ["verify"])', "False", ISSUER_TESTS
    ),
    Mutant("a key keeps to the algorithm it names", "keys.py", "algorithms &= {declared}", "pass", ISSUER_TESTS),
    Mutant(
        "the number of published keys is limited",
        "keys.py",
        'if len(document["keys"]) > MAX_KEYS:',
        "if False:",
        ISSUER_TESTS,
    ),
    Mutant("keys are fetched once a minute", "keys.py", "self._fetched_again_at < pause:", "-1 > 0:", ISSUER_TESTS),
    Mutant("concurrent waiters share one fetch", "keys.py", "if self.generation != before:", "if False:", ISSUER_TESTS),
    Mutant(
        "keys stay when a fetch fails",
        "keys.py",
        "            self._failures += 1\n",
        "            self._failures += 1\n            self.current = None\n",
        f"{ISSUER_TESTS} {OIDC_TESTS}",
    ),
    Mutant("the document is the issuer's", "keys.py", "if named != self._issuer:", "if False:", ISSUER_TESTS),
    Mutant(
        "https does not lead to http",
        "keys.py",
        'urlsplit(self._issuer).scheme == "https" and',
        "False and",
        ISSUER_TESTS,
    ),
    Mutant(
        "http is only for the loopback interface",
        "keys.py",
        "and is_loopback(parts.hostname or",
        "and (parts.hostname or",
        ISSUER_TESTS,
    ),
    Mutant("the size of a document is limited", "keys.py", "if len(body) > MAX_DOCUMENT:", "if False:", OIDC_TESTS),
    Mutant("the time of a fetch is limited", "keys.py", "total=TIMEOUT", "total=3600", OIDC_TESTS),
    Mutant("redirects are not followed", "keys.py", "allow_redirects=False", "allow_redirects=True", OIDC_TESTS),
    # ---- API keys
    Mutant(
        "only hashes of API keys are stored", "api_keys.py", "if not _HASH.fullmatch(key.hash):", "if False:", KEY_TESTS
    ),
    Mutant("an API key belongs to one caller", "api_keys.py", "if key.hash in found:", "if False:", KEY_TESTS),
    Mutant(
        "a deleted file revokes all keys",
        "api_keys.py",
        "isinstance(error.__cause__, FileNotFoundError)",
        "False",
        KEY_TESTS,
    ),
    Mutant(
        "a broken file changes nothing",
        "api_keys.py",
        '                raise ValueError(f"the file of API keys {path}, line {number}: {error}") from error',
        "                continue",
        KEY_TESTS,
    ),
    Mutant("a pipe is not read for API keys", "api_keys.py", "if not stat.S_ISREG(", "if False and (", KEY_TESTS),
    # ---- rights
    Mutant(
        "scopes are required",
        "scopes.py",
        "            if missing:",
        "            if False:",
        "tests/auth/test_scopes.py",
    ),
    Mutant(
        "an agent that does not route requires all scopes",
        "scopes.py",
        "            return self._skills\n",
        "            return ()\n",
        "tests/auth/test_scopes.py",
    ),
    Mutant(
        "another owner's live task is unknown",
        "../engine/runs.py",
        "if live is None or live.owner != owner:",
        "if live is None:",
        ISOLATION,
    ),
    Mutant(
        "another owner's stored task is unknown",
        "../storage/memory.py",
        "if stored is None or stored.owner != owner:",
        "if stored is None:",
        ISOLATION,
    ),
    Mutant(
        "another owner's task cannot be referred to",
        "../engine/conversation.py",
        "self._store.load(task_id, context.owner)",
        'self._store.load(task_id, "*")',
        ISOLATION,
    ),
    Mutant(
        "another owner's messages are not in the history",
        "../engine/conversation.py",
        "query = Query(owner=owner,",
        'query = Query(owner="*",',
        ISOLATION,
    ),
    Mutant(
        "another owner's tasks are not listed",
        "../engine/engine.py",
        "owner=ALL_OWNERS if self._is_admin(context) else context.owner",
        "owner=ALL_OWNERS",
        ISOLATION,
    ),
    Mutant("a caller without an id is rejected", "authenticator.py", "if not caller.id:", "if False:", "tests/auth"),
    Mutant(
        "an authenticated caller is not treated as anonymous",
        "authenticator.py",
        "if identity.id != ANONYMOUS and not identity.is_authenticated:",
        "if False:",
        "tests/auth",
    ),
    Mutant(
        "an administrator sees no message contents",
        "../engine/engine.py",
        "tasks.append(_outline(task, record.owner))",
        "tasks.append(task)",
        "tests/interaction/test_callers.py",
    ),
    Mutant(
        "a denial looks like an unknown task",
        "../errors.py",
        "        self.kind = TaskNotFoundError.__name__\n",
        "",
        "tests/auth/test_scopes.py",
    ),
)


def run(mutant: Mutant) -> list[str]:
    """Return the tests that fail without the guard."""
    with tempfile.TemporaryDirectory() as directory:
        sources = Path(directory) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        for file, old, new in ((mutant.file, mutant.old, mutant.new), *mutant.also):
            path = sources / "apcore_a2a" / "auth" / file
            text = path.read_text(encoding="utf-8")
            if old not in text:
                raise SystemExit(f"{mutant.guard}: {file} has no {old!r}")
            path.write_text(text.replace(old, new, 1), encoding="utf-8")
        line = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-rfE"]
        environment = {"PYTHONPATH": str(sources), "PATH": "/usr/bin:/bin", "COLUMNS": "1000"}
        environment["TESTED_SOURCES"] = str(sources)  # for servers in processes of their own
        ran = subprocess.run(
            [*line, *mutant.tests.split()], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
        )
    return FAILED.findall(ran.stdout)


def cases_of(tests: str, name: str) -> Iterator[str]:
    """Yield the cases of one test, or all cases if the name is empty.

    Raises:
        ValueError: there is no case, for example because the test has another name now.
    """
    line = [sys.executable, "-m", "pytest", "-q", "--collect-only", tests]
    listed = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    cases = [case for case in listed.stdout.splitlines() if f"::{name}" in case]
    if not cases:
        raise ValueError(f"{tests} has no test whose name begins with {name}")
    yield from cases


def run_all(mutants: Sequence[Mutant], cases: Iterable[str], names: list[str]) -> int:
    """Run each mutant, or those whose guards are named. Return 1 if one survived, else 0."""
    counts = read_counts()
    unbroken = list(cases)
    survivors = 0
    for mutant in mutants:
        if names and not any(name in mutant.guard for name in names):
            continue
        failed = run(mutant)
        survivors += not failed
        counts["failed"][mutant.key] = len(failed)
        unbroken = [case for case in unbroken if case not in failed]
        print(f"{len(failed):4} {mutant.guard} ({mutant.path})", flush=True)
    write_counts(counts)
    print(f"{survivors} mutants survived")
    if not names:  # else most were not tried
        print(f"{len(unbroken)} cases that no mutant accepted")
        for case in unbroken:
            print(f"     {case.partition('::')[2]}")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(run_all(MUTANTS, cases_of(HOSTILE, FORGED), sys.argv[1:]))
