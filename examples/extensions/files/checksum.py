"""File input: by value or by reference, as the client sent it."""

import base64
import hashlib
from typing import Any, ClassVar

from pydantic import BaseModel, Field


class File(BaseModel):
    name: str = ""
    mimeType: str = ""  # the name in A2A 0.3
    uri: str | None = None
    bytes: str | None = Field(default=None, description="The content, in base64")


class Input(BaseModel):
    file: File


class Output(BaseModel):
    name: str
    size: int
    sha256: str


class Checksum:
    description = "Compute the SHA-256 of a file that comes with the message"
    input_schema = Input
    output_schema = Output
    tags: ClassVar = ["files"]
    annotations: ClassVar = {"readonly": True, "idempotent": True}

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        file = inputs["file"]
        if not file.get("bytes"):
            raise ValueError("send the file's content with the message: this module does not fetch URLs")
        content = base64.b64decode(file["bytes"])
        digest = hashlib.sha256(content).hexdigest()
        return {"name": file.get("name", ""), "size": len(content), "sha256": digest}
