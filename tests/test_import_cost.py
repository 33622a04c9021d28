"""What an import loads. Each half of the package is paid for by those who use it."""

import subprocess
import sys

from tests.requirements import requirement

SERVERS = {"a2a", "apcore", "google", "grpc", "pydantic", "starlette", "uvicorn"}
OF_CALLS = {"aiohttp", "httpx", "joserfc"}  # loaded by the first call, or by keys to check cards with


def loaded_by(module: str) -> set[str]:
    """Top-level packages that a fresh interpreter loads for the module."""
    program = f"import sys; before = set(sys.modules); import {module}; print(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20)
    return {name.partition(".")[0] for name in run.stdout.split()}


def test_the_root_loads_no_other_package_at_all() -> None:
    assert loaded_by("apcore_a2a") - sys.stdlib_module_names == {"apcore_a2a"}


@requirement("FR-CLI-001")
def test_the_client_loads_neither_a_server_nor_an_http_library() -> None:
    assert loaded_by("apcore_a2a.client") & (SERVERS | OF_CALLS) == set()
