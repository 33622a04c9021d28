"""The frameworks whose agents are served, with the environments that the tests run them in."""

from pathlib import Path
from typing import Final, NamedTuple

from tests.peers.table import pinned_version
from tests.sources import ROOT


class Environment(NamedTuple):
    """One version of a framework."""

    title: str
    """The name of the framework for people."""
    package: str
    lock: str
    """The name of the lock file in requirements/frameworks, and of the environment."""
    script: str
    """The module in `agents/` that serves its agent."""
    typed: bool = True
    """Whether its agent of the tests has typed output."""
    prefix: str = "framework"

    @property
    def module(self) -> str:
        return f"tests.frameworks.agents.{self.script}"

    @property
    def python(self) -> Path:
        return ROOT / ".venvs" / f"{self.prefix}-{self.lock}" / "bin" / "python"

    @property
    def version(self) -> str:
        return pinned_version(self.package, f"requirements/frameworks/{self.lock}.txt")

    @property
    def id(self) -> str:
        return self.lock


ENVIRONMENTS: Final = (
    Environment("pydantic-ai", "pydantic-ai-slim", "pydantic-ai", "pydantic_ai_agent"),
    Environment("pydantic-ai", "pydantic-ai-slim", "pydantic-ai-floor", "pydantic_ai_agent"),
    Environment("OpenAI Agents", "openai-agents", "openai-agents", "openai_agent"),
    Environment("OpenAI Agents", "openai-agents", "openai-agents-floor", "openai_agent"),
    Environment("LangGraph", "langgraph", "langgraph", "langgraph_agent", typed=False),
    Environment("LangGraph", "langgraph", "langgraph-floor", "langgraph_agent", typed=False),
    # Where typed output is the only output of an agent, another agent has it.
    Environment("strands", "strands-agents", "strands", "strands_agent", typed=False),
    Environment("strands", "strands-agents", "strands-floor", "strands_agent", typed=False),
    Environment("Google ADK", "google-adk", "adk", "google_adk_agent", typed=False),
    Environment("Google ADK", "google-adk", "adk-floor", "google_adk_agent", typed=False),
    Environment("Microsoft agent-framework", "agent-framework-core", "microsoft", "agent_framework_agent", typed=False),
    Environment(
        "Microsoft agent-framework", "agent-framework-core", "microsoft-floor", "agent_framework_agent", typed=False
    ),
)
FASTMCP: Final = (
    Environment("FastMCP", "fastmcp", "fastmcp", "fastmcp_agent"),
    Environment("FastMCP", "fastmcp", "fastmcp-floor", "fastmcp_agent"),
)
"""Servers of tools, which have no conversation."""
