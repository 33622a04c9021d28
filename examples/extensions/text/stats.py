"""Text input and numbers as output: the smallest useful module."""

from typing import Any, ClassVar

from pydantic import BaseModel, Field


class Input(BaseModel):
    text: str = Field(description="What to count")


class Output(BaseModel):
    characters: int
    words: int
    lines: int
    longest_word: str


class Stats:
    """One string property, so that a plain text message is a valid input."""

    description = "Count the characters, words and lines of a text"
    input_schema = Input
    output_schema = Output
    tags: ClassVar = ["text"]
    annotations: ClassVar = {"readonly": True, "idempotent": True}
    examples: ClassVar = [{"title": "A proverb", "inputs": {"text": "Many hands make light work"}}]

    def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        """A plain function: it runs on a thread and does not block the server."""
        text: str = inputs["text"]
        words = text.split()
        return {
            "characters": len(text),
            "words": len(words),
            "lines": len(text.splitlines()),
            "longest_word": max(words, key=len, default=""),
        }
