"""No framework is imported unless an agent of it is served, even if it is installed."""

import os
import subprocess

import pytest

from tests.frameworks.conftest import require
from tests.frameworks.table import ENVIRONMENTS, Environment
from tests.processes import SOURCES

PACKAGES = ("agent_framework", "agents", "google.adk", "langchain_core", "langgraph", "pydantic_ai", "strands")
PROGRAM = """
import sys
before = set(sys.modules)  # an environment may load modules by itself
import apcore_a2a

def shout(text: str) -> str:
    return text.upper()

apcore_a2a.create_app(shout)
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda environment: environment.id)
def test_a_server_of_a_function_imports_no_framework(environment: Environment) -> None:
    require(environment)
    command = [str(environment.python), "-c", PROGRAM]
    variables = {**os.environ, "PYTHONPATH": str(SOURCES)}
    run = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    loaded = run.stdout.split()
    assert "apcore_a2a.agents.frameworks.recognition" in loaded
    assert [name for name in loaded if f"{name}.".startswith(tuple(f"{package}." for package in PACKAGES))] == []
