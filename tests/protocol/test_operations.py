"""The operations: a table that names eleven, and the rules by which versions differ in meaning."""

import msgspec
import pytest

from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.dialect import DIALECTS, Dialect
from apcore_a2a.protocol.model import SHAPES, Operation, Rules, Value


def test_every_operation_has_a_shape_and_there_are_eleven() -> None:
    assert len(Operation) == 11
    assert set(SHAPES) == set(Operation)


@pytest.mark.parametrize("operation", Operation)
def test_what_an_operation_takes_is_a_value_of_the_model_that_can_be_read(operation: Operation) -> None:
    assert issubclass(SHAPES[operation].request, Value)
    msgspec.json.Decoder(SHAPES[operation].request)


def test_two_operations_stream() -> None:
    assert {operation for operation in Operation if SHAPES[operation].streams} == {
        Operation.STREAM,
        Operation.SUBSCRIBE,
    }


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
def test_a_dialect_has_one_name_for_each_operation_it_knows(dialect: Dialect) -> None:
    assert {dialect.METHODS[name]: name for name in dialect.NAMES.values()} == dialect.NAMES
    assert set(dialect.METHODS.values()) == set(dialect.NAMES)


def test_the_rules_of_the_newest_version_are_the_plain_ones() -> None:
    assert DIALECTS["1.0"].RULES == Rules()
    assert issubclass(Rules().without_extended_card, A2AError)
    assert not any(rule for rule in Rules() if isinstance(rule, bool))


def test_only_0_3_answers_a_stream_that_is_refused_with_an_event() -> None:
    assert [version for version, dialect in DIALECTS.items() if dialect.RULES.stream_errors_as_events] == ["0.3"]
