"""Remote A2A agents as tools of agent frameworks. docs/toolkits.md is the guide."""

from apcore_a2a.toolkits.frameworks import to_adk, to_langchain, to_openai_agents, to_pydantic_ai, to_strands
from apcore_a2a.toolkits.tools import RemoteTool, RemoteTools, ToolOutcome, open_tools

__all__ = [
    "RemoteTool",
    "RemoteTools",
    "ToolOutcome",
    "open_tools",
    "to_adk",
    "to_langchain",
    "to_openai_agents",
    "to_pydantic_ai",
    "to_strands",
]
