# mypy: ignore-errors
"""agno: the content that its A2AClient returns over JSON-RPC."""

from agno.client.a2a import A2AClient
from lines import serve


async def ask(url: str, text: str, talk: str) -> dict:
    result = await A2AClient(url, protocol="json-rpc").send_message(text)
    return {"shown": [result.content]}


async def ask_with_stream(url: str, text: str, talk: str) -> dict:
    client = A2AClient(url, protocol="json-rpc")
    return {"shown": ["".join([event.content or "" async for event in client.stream_message(text)])]}


serve(ask=ask, ask_with_stream=ask_with_stream)
