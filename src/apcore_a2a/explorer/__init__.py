"""The Explorer: one page that shows an agent's skills and lets users try them. It sends requests only to the agent.

`page.html` is built from the sources in `explorer/` (`make explorer`) and committed, so that users do not need Node.
"""
