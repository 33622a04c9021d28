"""What an import loads. Each half of the package is paid for by those who use it."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

HEAVY = {"a2a", "apcore", "google", "grpc", "pydantic", "starlette", "uvicorn"}
LIGHT_MODULES = [name for name in ("apcore_a2a", "apcore_a2a.client") if find_spec(name)]


def loaded_by(module: str) -> set[str]:
    """Top-level packages that a fresh interpreter loads for the module."""
    program = f"import sys; before = set(sys.modules); import {module}; print(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20)
    return {name.partition(".")[0] for name in run.stdout.split()}


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_the_import_loads_no_server_framework(module: str) -> None:
    assert loaded_by(module) & HEAVY == set()


def test_the_root_loads_no_other_package_at_all() -> None:
    assert loaded_by("apcore_a2a") - sys.stdlib_module_names == {"apcore_a2a"}
