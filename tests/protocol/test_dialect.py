"""Which version a request speaks, and that each version says all that a version has to say."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.errors import VersionNotSupportedError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.dialect import DIALECTS, VERSION_HEADER, Dialect, choose
from apcore_a2a.protocol.v03 import jsonrpc as v03

MEMBERS = [name for name in vars(Dialect) if not name.startswith("_")]


@pytest.mark.parametrize("version", ["1.0", "1.0.0", "1.0.17"])
def test_a_client_that_asks_for_1_0_gets_it_whatever_the_patch(version: str) -> None:
    assert choose(version) is v1


@pytest.mark.parametrize("version", ["", "0.3", "0.3.0", "0.3.26"])
def test_a_client_that_asks_for_nothing_speaks_0_3(version: str) -> None:
    assert choose(version) is v03


@pytest.mark.parametrize(
    "version",
    [
        "2.0",
        "1",
        "1.1",
        "0.2.5",
        "10.0",
        "01.0",
        " 1.0",
        "1.0 ",
        "1.0,1.0",
        "1.0.",
        "1.0.0.0",
        "v1.0",
        "1.0\n",
        "\N{ARABIC-INDIC DIGIT ONE}.0",
    ],
)
def test_any_other_version_is_refused_with_those_we_speak(version: str) -> None:
    with pytest.raises(VersionNotSupportedError) as refused:
        choose(version)
    assert (refused.value.version, refused.value.supported) == (version, "1.0, 0.3")
    assert refused.value.metadata["supportedVersions"] == "1.0, 0.3"


@given(st.text(min_size=1))
def test_any_text_is_a_version_we_speak_or_refused(version: str) -> None:
    try:
        assert choose(version) in DIALECTS.values()
    except VersionNotSupportedError as error:
        assert len(error.version) <= 64


def test_a_long_version_is_not_said_back_in_full() -> None:
    with pytest.raises(VersionNotSupportedError) as refused:
        choose("9" * 10_000)
    assert len(refused.value.message) < 200


def test_the_header_has_its_official_name() -> None:
    assert VERSION_HEADER == "A2A-Version"


@pytest.mark.parametrize("version", DIALECTS)
def test_a_dialect_is_filed_under_its_own_version(version: str) -> None:
    assert DIALECTS[version].VERSION == version


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("version", DIALECTS)
def test_a_dialect_has_every_member_with_the_parameters_promised(version: str, member: str) -> None:
    promised, kept = inspect.getattr_static(Dialect, member), getattr(DIALECTS[version], member)
    if isinstance(promised, property):
        assert not callable(kept)
    else:
        assert list(inspect.signature(kept).parameters) == list(inspect.signature(promised).parameters)[1:]
