"""File output: bytes in the output become a file part, here a PNG created without a library."""

import struct
import zlib
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

HEIGHT = 120
BAR = 16
GAP = 8
WHITE = b"\xff\xff\xff"
BLUE = b"\x2f\x6f\xde"


class Input(BaseModel):
    values: list[float] = Field(min_length=1, max_length=50, description="One bar for each")


class Output(BaseModel):
    model_config = ConfigDict(extra="allow")  # the file, by its name
    bars: int


class Chart:
    description = "Draw a bar chart and send it as a PNG file"
    input_schema = Input
    output_schema = Output
    tags: ClassVar = ["files"]
    annotations: ClassVar = {"readonly": True, "idempotent": True}
    examples: ClassVar = [{"title": "A week", "inputs": {"values": [3, 5, 2, 8, 7, 4, 6]}}]

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"bars": len(inputs["values"]), "chart.png": draw(inputs["values"])}


def draw(values: list[float]) -> bytes:
    """Draw a PNG with one bar per value, scaled to the largest."""
    top = max(*values, 0.0) or 1.0
    heights = [round(max(value, 0.0) / top * HEIGHT) for value in values]
    rows = bytearray()
    for y in range(1, HEIGHT + 1):
        rows += b"\0"  # a PNG row begins with its filter type: none
        for height in heights:
            colour = BLUE if height > HEIGHT - y else WHITE
            rows += WHITE * GAP + colour * BAR
        rows += WHITE * GAP
    width = len(values) * (BAR + GAP) + GAP
    header = struct.pack(">IIBBBBB", width, HEIGHT, 8, 2, 0, 0, 0)
    content = zlib.compress(rows)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", content) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
