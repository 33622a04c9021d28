"""Verification of signed notifications."""

import base64
import hashlib
import hmac
from typing import Any

import pytest

from apcore_a2a.webhooks import WebhookVerificationError, verify_webhook
from apcore_a2a.webhooks.signatures import parse_secret, sign

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
NOW = 1_700_000_000
BODY = b'{"task":{"id":"t"}}'


def headers(**changed: str) -> dict[str, str]:
    given = {
        "Webhook-Id": "t/1",
        "Webhook-Timestamp": str(NOW),
        "Webhook-Signature": sign(KEY, "t/1", NOW, BODY),
    }
    return given | {name.replace("_", "-"): value for name, value in changed.items()}


def test_a_valid_signature_returns_the_event_id() -> None:
    assert verify_webhook(SECRET, headers(), BODY, now=NOW) == "t/1"


def test_the_signature_conforms_to_standard_webhooks() -> None:
    expected = hmac.new(KEY, b"t/1.%d.%b" % (NOW, BODY), hashlib.sha256).digest()
    assert sign(KEY, "t/1", NOW, BODY) == "v1," + base64.b64encode(expected).decode()


def test_one_of_several_signatures_is_enough() -> None:
    several = "v1a,other v1,AAAA " + sign(KEY, "t/1", NOW, BODY)
    assert verify_webhook(SECRET, headers(Webhook_Signature=several), BODY, now=NOW) == "t/1"


@pytest.mark.parametrize(
    "changed",
    [
        {"Webhook_Id": "t/2"},
        {"Webhook_Id": ""},
        {"Webhook_Timestamp": str(NOW + 1)},
        {"Webhook_Timestamp": "now"},
        {"Webhook_Timestamp": ""},
        {"Webhook_Signature": ""},
        {"Webhook_Signature": "v1,AAAA"},
        {"Webhook_Signature": sign(KEY, "t/1", NOW, BODY).removeprefix("v1,")},
        {"Webhook_Signature": sign(b"another secret" * 3, "t/1", NOW, BODY)},
        {"Webhook_Signature": " ".join(["v1,AAAA"] * 16 + [sign(KEY, "t/1", NOW, BODY)])},
    ],
)
def test_a_changed_header_fails_the_verification(changed: dict[str, str]) -> None:
    with pytest.raises(WebhookVerificationError):
        verify_webhook(SECRET, headers(**changed), BODY, now=NOW)


def test_a_changed_body_fails_the_verification() -> None:
    with pytest.raises(WebhookVerificationError, match="does not match this secret and this body"):
        verify_webhook(SECRET, headers(), BODY + b" ", now=NOW)


@pytest.mark.parametrize("apart", [-301, 301])
def test_a_timestamp_out_of_tolerance_fails_the_verification(apart: int) -> None:
    with pytest.raises(WebhookVerificationError, match="too old"):
        verify_webhook(SECRET, headers(), BODY, now=NOW + apart)
    assert verify_webhook(SECRET, headers(), BODY, now=NOW + apart, tolerance=400)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_no base64!", "plain text"])
def test_the_error_for_an_invalid_secret_does_not_repeat_it(secret: Any) -> None:
    with pytest.raises(ValueError, match="a webhook secret") as refused:
        parse_secret(secret)
    assert not secret or secret not in str(refused.value)
