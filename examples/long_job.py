"""A long job: it says how far it is, can be canceled, and posts its events to a webhook, so that no client has to wait.

apcore-a2a serve examples/long_job.py:index --store sqlite:///tasks.db --push-notifications
apcore-a2a send http://127.0.0.1:8000 pages=20 --async
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from apcore_a2a import Call, serve, skill


class Work:
    """What one page costs. Tests set it to nothing."""

    seconds = 0.5


@contextmanager
def cleaned() -> Iterator[None]:
    """Clean up also if the task is canceled."""
    try:
        yield
    finally:
        pass  # close files, release locks


@skill(annotations={"idempotent": True})  # a run that a crash has interrupted begins again
async def index(pages: int, call: Call) -> dict[str, int]:
    """Index a number of pages."""
    with cleaned():
        for page in range(1, pages + 1):
            await asyncio.sleep(Work.seconds)
            call.progress(page / pages, f"Indexed page {page} of {pages}")
    return {"pages": pages}


if __name__ == "__main__":
    serve(index, host="127.0.0.1", port=8000, push_notifications=True)
