"""The table of options: each setting is in it once, with its flag, its variable and its documentation."""

from pathlib import Path
from typing import Any

import pytest

from apcore_a2a import TLS, Limits, Settings, async_serve, serve
from apcore_a2a.app.serve import build
from apcore_a2a.settings import TABLE, Setting, new_keyword
from scripts import option_tables


async def echo(text: str) -> str:
    """Says it again."""
    return text


def test_each_field_of_settings_limits_and_tls_is_in_the_table_once() -> None:
    fields = {*Settings.__struct_fields__, *Limits.__struct_fields__, *TLS.__struct_fields__}
    names = [setting.name for setting in TABLE]
    assert sorted(names) == sorted(fields - {"limits", "tls", "platform_url"})


@pytest.mark.parametrize("what", ["parameter", "flags", "variables"])
def test_no_two_settings_share_a_name_a_flag_or_a_variable(what: str) -> None:
    names = [getattr(setting, what) for setting in TABLE]
    given = [name for name in names if name]
    assert len(given) == len(set(given))


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: str(setting.parameter))
def test_each_setting_is_documented_with_its_default(setting: Setting) -> None:
    assert setting.option.help.endswith(".")
    assert option_tables.default_of(setting), "say in `unset` what holds if nothing is given"


def test_the_tables_of_options_are_current() -> None:
    page = Path(option_tables.PAGE).read_text(encoding="utf-8")
    assert page == option_tables.render(page), "docs/operations.md is stale: run python -m scripts.option_tables"


def test_a_page_without_a_place_for_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no place for the table keywords"):
        option_tables.render("# Running it\n")


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("max_streams", "limits=Limits(max_streams=…)"),
        ("request_burst", "limits=Limits(request_burst=…)"),
        ("ssl_keyfile_password", "tls=TLS(keyfile_password=…)"),
    ],
)
async def test_a_keyword_that_moved_is_rejected_with_its_new_place(name: str, moved: str) -> None:
    options: dict[str, Any] = {name: 5}
    with pytest.raises(TypeError) as caught:
        await async_serve(echo, **options)
    assert str(caught.value) == f"{name} is now {moved}"


@pytest.mark.parametrize("name", ["port", "certfile", "nonsense"])
def test_only_keywords_that_moved_have_a_new_place(name: str) -> None:
    assert new_keyword(name) == ""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"limits": Limits(max_streams="5")}, "max_streams has the wrong type: Expected `int`, got `str`"),  # type: ignore[arg-type]
        ({"limits": {"max_streams": 5}}, "limits has the wrong type: expected Limits, got dict"),
        ({"tls": "server.pem"}, "tls has the wrong type: expected TLS, got str"),
        ({"tls": TLS(certfile=5)}, "tls.certfile has the wrong type: Expected `str`, got `int`"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_limits_and_tls_of_another_type_are_rejected_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        serve(echo, **options)
    assert str(caught.value) == text


def test_client_certificates_are_required_or_optional() -> None:
    tls = TLS(certfile="a.pem", client_certs="maybe")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(ValueError, match=r"tls\.client_certs must be one of required, optional, not 'maybe'"):
        Settings(tls=tls).check()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"port": 65536}, "port must be between 0 and 65535, not 65536"),
        ({"shutdown_timeout": float("inf")}, "shutdown_timeout must be positive and finite, not inf"),
        ({"drain_delay": -1}, "drain_delay must be finite, and 0 or more, not -1"),
        (
            {"limits": Limits(max_requests_per_second=float("inf"))},
            "max_requests_per_second must be positive and finite",
        ),
        ({"keep_alive_interval": 0}, "keep_alive_interval must be positive, not 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_number_out_of_bounds_is_rejected_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Settings(**options).check()


def test_numbers_at_their_bounds_are_valid() -> None:
    settings = Settings(port=65535, drain_delay=0, execution_timeout=float("inf"), shutdown_timeout=0.001)
    assert settings.check() is settings


async def test_async_serve_takes_no_tls() -> None:
    with pytest.raises(TypeError, match="an application binds nothing: give tls to the server"):
        await async_serve(echo, tls=TLS(certfile="server.pem"))


def test_files_of_tls_may_be_paths() -> None:
    path: Any = Path("server.pem")
    assert build(echo, {"tls": TLS(certfile=path)}).settings.tls == TLS(certfile="server.pem")
