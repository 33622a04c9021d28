"""The options of `serve` for TLS, and for the signature of the card."""

from typing import Final, get_args

import click

from apcore_a2a.cli.options import combine
from apcore_a2a.http.tls import ClientCertificates
from apcore_a2a.settings import Settings

TLS_SETTINGS: Final = frozenset(
    {"ssl_certfile", "ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs", "ssl_client_certs"}
)
tls_options: Final = combine(
    click.option(
        "--ssl-certfile",
        envvar="A2A_SSL_CERTFILE",
        metavar="FILE",
        help="Serve https with this certificate (PEM, those between it and its authority after it).",
    ),
    click.option(
        "--ssl-keyfile",
        envvar="A2A_SSL_KEYFILE",
        metavar="FILE",
        help="The key of the certificate.  [default: in the same file]",
    ),
    click.option(
        "--ssl-keyfile-password",
        envvar="A2A_SSL_KEYFILE_PASSWORD",
        help="Passphrase of the key. Others can see arguments: prefer A2A_SSL_KEYFILE_PASSWORD.",
    ),
    click.option(
        "--ssl-ca-certs",
        envvar="A2A_SSL_CA_CERTS",
        metavar="FILE",
        help="Ask callers for certificates of these authorities (PEM).",
    ),
    click.option(
        "--ssl-client-certs",
        envvar="A2A_SSL_CLIENT_CERTS",
        type=click.Choice(get_args(ClientCertificates)),
        default=Settings().ssl_client_certs,
        show_default=True,
        help="Whether a caller without one is refused by TLS, or only where authentication is asked for.",
    ),
)
signing_option: Final = click.option(
    "--card-signing-key",
    envvar="A2A_CARD_SIGNING_KEY",
    metavar="FILE",
    help="Sign the card with this private key (PEM or JSON Web Key).",
)
