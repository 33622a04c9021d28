"""Every module of examples/extensions, called with data parts by the official Python clients, on a socket.

Those of 1.x, and those of 0.3 over REST, send every number as a double: 5 arrives as 5.0.
"""

import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

import apcore
import pytest

from tests.interaction.conftest import Serve
from tests.interaction.peers.sdk03 import Sdk03
from tests.interaction.peers.sdk1 import Sdk1
from tests.requirements import requirement
from tests.sources import ROOT

CLIENTS = [(name, binding) for name in ("1.x", "1.x as 0.3", "0.3.x") for binding in ("JSONRPC", "HTTP+JSON")]
TAKE_FILES_FOR_TEXT = [("1.x as 0.3", "HTTP+JSON"), ("0.3.x", "HTTP+JSON")]
FILE = {"name": "a", "bytes": base64.b64encode(b"hello").decode()}
CALLS: dict[str, tuple[Any, Any]] = {  # by skill: its inputs, and the data of the answer
    "demo.flaky": ({"fail": False}, {"result": "fine"}),
    "files.chart": ({"values": [3, 5.5, 2]}, {"bars": 3}),
    "files.checksum": ({"file": FILE}, {"name": "a", "size": 5, "sha256": hashlib.sha256(b"hello").hexdigest()}),
    "jobs.simulate": ({"steps": 2, "seconds": 0.01}, {"step": 2, "percent": 100, "note": "step 2 of 2"}),
    "payments.transfer": ({"to": "Ada", "amount": 1250}, {"receipt": "12.50 sent to Ada"}),
    "text.stats": ({"text": "a bc"}, {"characters": 4, "words": 2, "lines": 1, "longest_word": "bc"}),
    "text.story": ({"hero": "Ada"}, None),
    "units.convert": ({"value": 5, "source": "km", "target": "m"}, {"value": 5000, "unit": "m"}),
}


class Client(Protocol):
    async def send_data(self, skill: str, data: Any) -> list[Any]: ...
    async def close(self) -> None: ...


@pytest.fixture
def examples() -> Any:
    registry = apcore.Registry(extensions_dir=str(ROOT / "examples" / "extensions"))
    registry.discover()
    return registry


@pytest.fixture(params=CLIENTS, ids=lambda client: " ".join(client))
async def client(request: pytest.FixtureRequest, serve: Serve, examples: Any) -> AsyncIterator[Client]:
    version, binding = request.param
    mode = "0.3" if version == "1.x as 0.3" else "auto"  # it uses the version that the card offers
    executor = apcore.Executor(examples, approval_handler=apcore.AutoApproveHandler())
    url = await serve(executor, card=None, card_mode=mode)
    made: Client
    if version == "0.3.x":
        made = Sdk03(request.getfixturevalue("sdk03"), url, binding)
    else:
        made = Sdk1(url, binding)
    yield made
    await made.close()


def test_every_example_is_called(examples: Any) -> None:
    assert set(examples.list()) == set(CALLS)


@requirement("NFR-CMP-005", "FR-MSG-003")
@pytest.mark.parametrize("skill", CALLS)
async def test_an_example_takes_data_parts(client: Client, skill: str, request: pytest.FixtureRequest) -> None:
    if skill == "files.chart" and request.node.callspec.params["client"] in TAKE_FILES_FOR_TEXT:
        pytest.skip("this client reads the bytes of a file as text: docs/decisions/0044")
    inputs, expected = CALLS[skill]
    parts = await client.send_data(skill, inputs)
    (data,) = [part["data"] for part in parts if "data" in part]
    if expected is not None:
        assert data == expected
    files = [base64.b64decode(part["raw"]) for part in parts if "raw" in part]
    assert [file[:4] for file in files] == [b"\x89PNG"] * (skill == "files.chart")
