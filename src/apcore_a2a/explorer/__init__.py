"""The Explorer: one page that shows an agent's skills and lets a person try them. It asks nobody but the agent.

`page.html` is built from the sources in `explorer/` (`make explorer`) and committed, so that nobody needs Node.
"""
