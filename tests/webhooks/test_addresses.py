"""Forbidden webhook addresses: the whole list, in every notation."""

import pytest

from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.webhooks.sender import NEEDS_HTTPS, NOT_PUBLIC, check_url, is_public
from tests.requirements import requirement

PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "172.32.0.1", "192.169.0.1", "2606:4700:4700::1111", "2a00:1450::1"]
NOT = {
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12:3456::1"],
    "link-local": ["169.254.1.1", "fe80::1", "fe80::1%eth0"],
    "site-local": ["fec0::1"],
    "metadata": ["169.254.169.254", "fd00:ec2::254", "192.0.0.192", "100.100.100.200", "168.63.129.16"],
    "carrier-grade NAT": ["100.64.0.1", "100.127.255.255"],
    "unspecified and reserved": ["0.0.0.0", "0.1.2.3", "::", "255.255.255.255", "240.0.0.1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "benchmarks": ["198.18.0.1", "198.19.255.255", "2001:2::1"],
    "relays": ["192.88.99.1"],
    "IPv4-mapped": ["::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::ffff:8.8.8.8"],
    "IPv4-compatible": ["::127.0.0.1", "::8.8.8.8"],
    "NAT64": ["64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::808:808", "64:ff9b:1::1"],
    "6to4": ["2002:7f00:1::1", "2002:a9fe:a9fe::1", "2002:808:808::1"],
    "Teredo": ["2001:0:a9fe:a9fe::1", "2001:0:808:808::f7f7:f7f7"],
    "discard": ["100::1"],
    "no address": ["", "localhost", "127.1", "2130706433", "0x7f000001"],
}


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_permitted(address: str) -> None:
    assert is_public(address)


@requirement("NFR-SEC-004")
@pytest.mark.parametrize(("kind", "address"), [(kind, address) for kind, some in NOT.items() for address in some])
def test_an_address_that_is_not_public_is_rejected(kind: str, address: str) -> None:
    assert not is_public(address), kind


REFUSED = {
    "http://example.com/hook": NEEDS_HTTPS,
    "https://127.0.0.1/": NOT_PUBLIC,
    "https://127.0.0.1./": NOT_PUBLIC,
    "https://[::1]/": NOT_PUBLIC,
    "https://localhost/": NOT_PUBLIC,
    "https://LOCALHOST./": NOT_PUBLIC,
    "https://api.localhost/": NOT_PUBLIC,
    "https://metadata.google.internal/": NOT_PUBLIC,
    "https://printer.local/": NOT_PUBLIC,
    "https://10.0.0.1/": NOT_PUBLIC,
    "https://172.16.9.9/": NOT_PUBLIC,
    "https://192.168.0.1/": NOT_PUBLIC,
    "https://169.254.169.254/latest/meta-data": NOT_PUBLIC,
    "https://100.64.0.1/": NOT_PUBLIC,
    "https://[::ffff:169.254.169.254]/": NOT_PUBLIC,
    "https://[64:ff9b::a9fe:a9fe]/": NOT_PUBLIC,
    "https://[2002:a9fe:a9fe::1]/": NOT_PUBLIC,
    "https://2130706433/": NOT_PUBLIC,
    "https://0x7f000001/": NOT_PUBLIC,
    "https://0x7f.1/": NOT_PUBLIC,
    "https://017700000001/": NOT_PUBLIC,
    "https://127.1/": NOT_PUBLIC,
    "https://0/": NOT_PUBLIC,
    "https://example.com:6379/": "Webhook URL must use port 443 or 8443 in production mode",
    "https://example.com:22/": "Webhook URL must use port 443 or 8443 in production mode",
    "https://user@example.com/": "Webhook URL must not hold a user name or a password",
    "https://user:secret@example.com/": "Webhook URL must not hold a user name or a password",
    "https://example.com@127.0.0.1/": "Webhook URL must not hold a user name or a password",
    "https://@example.com/": "Webhook URL must not hold a user name or a password",
    "https://example.com/#part": "Webhook URL must not have a fragment",
    "https://example.com:0/": "Webhook URL must be an absolute http or https URL",
    "https:///hook": "Webhook URL must be an absolute http or https URL",
    "//example.com/hook": "Webhook URL must be an absolute http or https URL",
    "file:///etc/passwd": "Webhook URL must be an absolute http or https URL",
    "gopher://example.com/": "Webhook URL must be an absolute http or https URL",
    "https://example.com:99999/": "Webhook URL is not well-formed",
    "https://[::1/": "Webhook URL is not well-formed",
    "https://example.com\\@127.0.0.1/": "Webhook URL is not well-formed",
    "https://example.com/\r\nX-Injected: 1": "Webhook URL is not well-formed",
    "https://exa\tmple.com/": "Webhook URL is not well-formed",
    " https://example.com/": "Webhook URL is not well-formed",
    "https://example.com/\x00": "Webhook URL is not well-formed",
}


@requirement("FR-PSH-001", "NFR-SEC-004")
@pytest.mark.parametrize(("url", "text"), REFUSED.items())
def test_a_url_is_rejected_with_the_reason(url: str, text: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        check_url(url, allow_insecure=False)
    assert refused.value.message == text
    assert [violation.field for violation in refused.value.violations] == ["url"]


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook",
        "https://example.com:8443/hook?key=value",
        "https://hooks.example.co.uk:443",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]/",
    ],
)
def test_a_public_https_url_is_accepted(url: str) -> None:
    check_url(url, allow_insecure=False)


@pytest.mark.parametrize("url", ["http://localhost:9000/", "http://127.0.0.1:1/", "http://[::1]:8080/", "http://hook/"])
def test_in_development_every_address_is_accepted(url: str) -> None:
    check_url(url, allow_insecure=True)


@pytest.mark.parametrize("url", [url for url, text in REFUSED.items() if "production" not in text])
def test_a_malformed_url_is_rejected_in_development_too(url: str) -> None:
    with pytest.raises(InvalidParamsError):
        check_url(url, allow_insecure=True)
