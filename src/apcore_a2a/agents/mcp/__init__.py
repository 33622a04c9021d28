"""MCP servers as agents: each tool is a skill."""
