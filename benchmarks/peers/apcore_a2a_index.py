# mypy: ignore-errors
# Typed against apcore-a2a 0.8.5, which is installed in its own environment.
"""apcore-a2a 0.8.5 from the package index, with the same module as ours."""

import asyncio

from apcore_a2a import async_serve
from benchmarks.peers.modules import registry
from benchmarks.peers.serving import arguments, serve


def main() -> None:
    given = arguments()
    serve(asyncio.run(async_serve(registry(), url=f"http://127.0.0.1:{given.port}")), given.port)


if __name__ == "__main__":
    main()
