"""Fixtures for tests of A2A agents.

Invariant: pytest loads this file in every project, so it imports nothing else of the package at import time.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from apcore_a2a.client import A2AClient
    from apcore_a2a.testing import WebhookReceiver


@pytest.fixture
def a2a_app_client() -> "Callable[..., AbstractAsyncContextManager[A2AClient]]":
    """For `async with`: a client of an application, or of anything that `serve` accepts."""
    from apcore_a2a.testing import app_client  # not at the top, because it loads the server

    return app_client


@pytest.fixture
def a2a_webhook() -> "Callable[..., WebhookReceiver]":
    """For `async with`: a webhook receiver on its own socket."""
    from apcore_a2a.testing import WebhookReceiver

    return WebhookReceiver
