"""Runs in .venvs/sdk03: reads JSON values with the types of a2a-sdk 0.3.x and writes them again.

Each line in is `["TypeName", value]`; each line out is the value as the SDK understood it.
"""

import json
import sys

import a2a.types

if __name__ == "__main__":
    for line in sys.stdin:
        name, value = json.loads(line)
        read = getattr(a2a.types, name).model_validate(value)
        print(json.dumps(read.model_dump(mode="json", by_alias=True, exclude_none=True)))
