"""The limits: the speed of uvicorn without any work, and the cost of a bare call of apcore on it.

`--kind raw` sends constant bytes from an ASGI application, `starlette` from a Starlette route. `call_async` awaits
apcore's executor in the raw application, and sends the module's output.
"""

import json
from typing import Any

from benchmarks.peers.serving import arguments, serve


def raw(answer: bytes, executor: Any = None) -> Any:
    headers = [(b"content-type", b"application/json")]
    length = [(b"content-length", b"%d" % len(answer))]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        body, size = answer, length
        if executor is not None:
            body = json.dumps(await executor.call_async("math.add", {"a": 1.5, "b": 2.5})).encode()
            size = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, *size]})
        await send({"type": "http.response.body", "body": body})

    return app


def starlette(answer: bytes) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def endpoint(request: Request) -> Response:
        await request.body()
        return Response(answer, media_type="application/json")

    return Starlette(routes=[Route("/{path:path}", endpoint, methods=["GET", "POST"])])


def main() -> None:
    given = arguments()
    answer = b"x" * given.answer
    if given.kind == "call_async":
        import apcore

        from benchmarks.peers.modules import registry

        app = raw(answer, apcore.Executor(registry()))
    else:
        app = starlette(answer) if given.kind == "starlette" else raw(answer)
    serve(app, given.port)


if __name__ == "__main__":
    main()
