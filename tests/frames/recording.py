"""An in-process HTTP transport that keeps what was said. For the recorders, which run where the SDK to record is."""

import json
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent


class Recorder(httpx.AsyncBaseTransport):
    """Calls ASGI applications by host name and notes each exchange."""

    def __init__(self, **applications: Any) -> None:
        self.frames: list[dict[str, Any]] = []
        self._applications = {name: httpx.ASGITransport(app) for name, app in applications.items()}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        binding, _, _ = request.url.host.partition(".")
        response = await self._applications[binding].handle_async_request(request)
        body = await response.aread()
        frame: dict[str, Any] = {"binding": binding, "http": f"{request.method} {request.url.raw_path.decode()}"}
        if request.content:
            frame["request"] = json.loads(request.content)
        frame["status"] = response.status_code
        if "event-stream" in response.headers.get("content-type", ""):
            frame["events"] = read_events(body.decode())
        else:
            frame["response"] = json.loads(body)
        self.frames.append(frame)
        return httpx.Response(response.status_code, headers=response.headers, content=body)

    def save(self, name: str) -> None:
        text = json.dumps(self.frames, indent=1, ensure_ascii=False)
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def read_events(text: str) -> list[Any]:
    """The data of each server-sent event. Not `splitlines`: it splits at U+2028, which JSON may contain."""
    blocks = [block.split("\n") for block in text.replace("\r\n", "\n").split("\n\n")]
    data = ["\n".join(line[5:] for line in block if line.startswith("data:")) for block in blocks]
    return [json.loads(one) for one in data if one]
