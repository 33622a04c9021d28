"""Runs in .venvs/sdk03: what a2a-sdk 0.3 signs of the card on its standard input."""

import json
import sys
from importlib import import_module

if __name__ == "__main__":
    read = import_module("a2a.types").AgentCard.model_validate(json.load(sys.stdin))
    print(import_module("a2a.utils.helpers").canonicalize_agent_card(read))
