"""What an error of a PostgreSQL connection means: one table, by SQLSTATE.

Invariant: an error that is not in the table means that the connection is lost. That is the worst case, because it is
unknown whether the server executed the statement. So an unforeseen error is retried, and a caller receives no error
but "the task store is not available".
"""

from enum import Enum
from typing import Final

import asyncpg


class DatabaseFailure(Enum):
    """The meaning of an error, which decides what happens to the statement."""

    LOST = "the connection is unusable, and it is unknown whether the server executed the statement: connect, repeat"
    BUSY = "the server did not execute the statement, and may execute it later: repeat"
    REFUSED = "the server rejects the values of the statement, or the privileges of this user: give up"
    BUG = "the server does not understand the statement: give up"


# The longest prefix of a code decides. https://www.postgresql.org/docs/current/errcodes-appendix.html
BY_STATE: Final = {
    "08": DatabaseFailure.LOST,  # connection exceptions. Poolers also use 08P01 for all of their own errors
    "0A": DatabaseFailure.BUG,  # feature not supported
    "0A000": DatabaseFailure.BUSY,  # also the plan of a prepared statement after a migration
    "21": DatabaseFailure.REFUSED,  # cardinality
    "22": DatabaseFailure.REFUSED,  # invalid values
    "23": DatabaseFailure.REFUSED,  # constraints
    "25006": DatabaseFailure.LOST,  # read-only: a standby that was not promoted yet, or a primary that was demoted
    "25P03": DatabaseFailure.LOST,  # the transaction was idle for too long
    "28": DatabaseFailure.LOST,  # user or password: only connecting fails with it, as while a password is changed
    "3D": DatabaseFailure.LOST,  # no such database: the same, for example while it is restored
    "3F": DatabaseFailure.BUG,  # no such schema
    "40": DatabaseFailure.BUSY,  # serialization failure, deadlock
    "40003": DatabaseFailure.LOST,  # unknown whether the statement was completed
    "42": DatabaseFailure.BUG,  # syntax, no such table
    "42501": DatabaseFailure.REFUSED,  # privileges
    "42P05": DatabaseFailure.LOST,  # the prepared statement of another client of a pooler
    "53": DatabaseFailure.BUSY,  # disk full, too many connections, out of memory
    "54": DatabaseFailure.REFUSED,  # limits of PostgreSQL
    "55": DatabaseFailure.BUSY,  # lock timeout, object in use
    "57014": DatabaseFailure.BUSY,  # statement timeout, or canceled by an administrator
    "57P": DatabaseFailure.LOST,  # the server shuts down, starts up, has crashed, or ended the session
    "P0": DatabaseFailure.BUG,  # an error in a trigger
}


def classify(error: BaseException) -> DatabaseFailure:
    """Return the meaning of an error."""
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return DatabaseFailure.REFUSED  # asyncpg cannot encode a value, and has sent nothing
    state = sqlstate(error)
    for length in range(len(state), 1, -1):
        found = BY_STATE.get(state[:length])
        if found is not None:
            return found
    return DatabaseFailure.LOST


def sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE that the server sent, or ""."""
    if isinstance(error, asyncpg.PostgresError):
        return error.sqlstate or ""
    return ""


def is_starting_or_stopping(error: BaseException) -> bool:
    """Return whether the server itself reports that it is starting up or shutting down, and so serves no client."""
    return sqlstate(error) == "57P03"
