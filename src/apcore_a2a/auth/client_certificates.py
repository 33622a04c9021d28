"""Authentication by TLS client certificates (mutual TLS).

Invariant: the server's TLS, or a trusted proxy, has verified the certificate before this module reads it. This
module determines the caller that the certificate names, and checks the validity period.
"""

import binascii
from base64 import b64decode
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from apcore_a2a.agent import Caller

HEADER: Final = "client-cert"
MAX_CERTIFICATE: Final = 32 * 1024  # characters of the header
MAX_CACHED: Final = 1_000  # cached certificates; parsing one takes 60 µs

NameOf = Callable[[x509.Certificate], str | None]


class ClientCertificateAuthenticator:
    """Authenticates callers by their TLS client certificate.

    Either the server requests certificates (`serve(tls=TLS(ca_certs=…))`), or a proxy in `trusted_proxies` requests
    them and forwards them in the header `Client-Cert`, as RFC 9440 writes it or as URL-encoded PEM
    (nginx's `$ssl_client_escaped_cert`).

    The caller's id is the first URI (SPIFFE uses one), else the first DNS name, else the first e-mail address of the
    certificate's alternative names, else its whole subject. The caller's issuer is the issuer of the certificate.

    Args:
        names: The accepted names. None accepts all names that the authorities have certified.
        name_of: A function that returns the name in a certificate, or None to reject the certificate.
        roles: The roles of all callers that are authenticated this way.

    Example:
        >>> from apcore_a2a import ClientCertificateAuthenticator
        >>> auth = ClientCertificateAuthenticator(names=["spiffe://example.org/planner"])
        >>> auth.authenticate({}) is None
        True
    """

    def __init__(
        self, *, names: Collection[str] | None = None, name_of: NameOf | None = None, roles: Collection[str] = ()
    ) -> None:
        if isinstance(names, str) or isinstance(roles, str):
            raise TypeError("names and roles are collections of strings, not one string")
        self._names = None if names is None else frozenset(names)
        self._name_of = name_of or certified_name
        self._roles = tuple(roles)
        self._cached: dict[str, tuple[Caller | None, datetime, datetime]] = {}  # by header

    def authenticate(self, headers: dict[str, str]) -> Caller | None:
        """Return the caller that the certificate in `Client-Cert` names, or None without a currently valid certificate.

        Example:
            >>> from apcore_a2a import ClientCertificateAuthenticator
            >>> ClientCertificateAuthenticator().authenticate({"client-cert": ":bm8gY2VydGlmaWNhdGU=:"}) is None
            True
        """
        sent = headers.get(HEADER, "")
        if not sent or len(sent) > MAX_CERTIFICATE:
            return None
        if sent not in self._cached:
            certificate = parse_certificate(sent)
            if certificate is None:
                return None
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            self._cached[sent] = (
                self._identify(certificate),
                certificate.not_valid_before_utc,
                certificate.not_valid_after_utc,
            )
        caller, begin, end = self._cached[sent]
        # TLS checks the period only at the handshake. A certificate may expire while its connection is open.
        if not begin <= datetime.now(UTC) <= end:
            return None
        return caller

    def security_schemes(self) -> list[dict[str, Any]]:
        """Return the security schemes of the agent card, as OpenAPI writes them.

        Example:
            >>> from apcore_a2a import ClientCertificateAuthenticator
            >>> ClientCertificateAuthenticator().security_schemes()
            [{'type': 'mutualTLS'}]
        """
        return [{"type": "mutualTLS"}]

    def _identify(self, certificate: x509.Certificate) -> Caller | None:
        name = self._name_of(certificate)
        if not name or (self._names is not None and name not in self._names):
            return None
        return Caller(
            id=name,
            type="service",
            issuer=certificate.issuer.rfc4514_string(),
            roles=self._roles,
            attributes={
                "subject": certificate.subject.rfc4514_string(),
                "fingerprint": certificate.fingerprint(SHA256()).hex(),
            },
        )


def certified_name(certificate: x509.Certificate) -> str | None:
    """Return the first URI, DNS name or e-mail address of a certificate, else its subject, else None."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return certificate.subject.rfc4514_string() or None
    for kind in (x509.UniformResourceIdentifier, x509.DNSName, x509.RFC822Name):
        found = names.get_values_for_type(kind)
        if found:
            return str(found[0])
    return certificate.subject.rfc4514_string() or None


def parse_certificate(header: str) -> x509.Certificate | None:
    """Return the certificate in a Client-Cert header, or None if it cannot be parsed."""
    try:
        if header.startswith(":") and header.endswith(":"):
            return x509.load_der_x509_certificate(b64decode(header[1:-1], validate=True))
        text = unquote(header)
        if text.startswith("-----BEGIN CERTIFICATE-----"):
            return x509.load_pem_x509_certificate(text.encode())
    except (ValueError, binascii.Error):
        return None
    return None
