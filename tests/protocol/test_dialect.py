"""Which version a request speaks, and that each version says all that a version has to say."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.errors import VersionNotSupportedError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.dialect import DIALECTS, REST_DIALECTS, VERSION_HEADER, Dialect, choose
from apcore_a2a.protocol.model import Event
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.protocol import strategies

MEMBERS = [name for name in vars(Dialect) if not name.startswith("_")]
FORMS = {
    **{f"{version} JSON-RPC": dialect for version, dialect in DIALECTS.items()},
    **{f"{version} REST": dialect for version, dialect in REST_DIALECTS.items()},
}


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


def test_every_version_has_a_form_for_rest_with_the_same_names_and_rules() -> None:
    assert list(REST_DIALECTS) == list(DIALECTS)
    for version, rest in REST_DIALECTS.items():
        dialect = DIALECTS[version]
        assert (rest.VERSION, rest.METHODS, rest.RULES) == (dialect.VERSION, dialect.METHODS, dialect.RULES)


@pytest.mark.parametrize("dialect", FORMS.values(), ids=FORMS.keys())
@given(event=strategies.events())
def test_a_dialect_that_sends_events_as_stored_writes_them_as_stores_keep_them(dialect: Dialect, event: Event) -> None:
    if dialect.SENDS_EVENTS_AS_STORED:
        assert dialect.encode_event(event) == v1.encode_record(event)


def test_events_are_stored_as_the_newest_version_sends_them() -> None:
    assert [version for version, dialect in DIALECTS.items() if dialect.SENDS_EVENTS_AS_STORED] == ["1.0"]


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("form", FORMS)
def test_a_dialect_has_every_member_with_the_parameters_promised(form: str, member: str) -> None:
    promised, kept = inspect.getattr_static(Dialect, member), getattr(FORMS[form], member)
    if isinstance(promised, property):
        assert not callable(kept)
    else:
        assert list(inspect.signature(kept).parameters) == list(inspect.signature(promised).parameters)[1:]
