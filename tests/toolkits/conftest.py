"""The remote agent on a socket, in a thread of its own."""

from collections.abc import Iterator

import pytest

from tests.cli.conftest import elsewhere
from tests.interaction.serving import serving
from tests.toolkits.desk import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def url(desk: Desk) -> Iterator[str]:
    with elsewhere(serving(desk.skills, card=None)) as address:
        yield address
