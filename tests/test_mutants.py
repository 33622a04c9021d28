"""The sources have the guards that the mutation scripts remove, and docs/security.md has the counts of the scripts."""

from itertools import chain

import pytest

from scripts import security_page
from scripts.mutants import HOSTILE, ROOT, Mutant, cases_of, read_counts

MUTANTS = tuple(chain.from_iterable(security_page.TABLES.values()))


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.key for mutant in MUTANTS])
def test_the_source_of_each_guard_occurs_once(mutant: Mutant) -> None:
    for file, old, _ in ((mutant.file, mutant.old, mutant.new), *mutant.also):
        source = (ROOT / "src/apcore_a2a/auth" / file).read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{file}: the text of a guard must occur exactly once"
    assert all((ROOT / path).exists() for path in mutant.tests.split())


def test_every_guard_was_removed_and_made_a_test_fail() -> None:
    failed = read_counts()["failed"]

    assert [mutant.key for mutant in MUTANTS if failed.get(mutant.key, 0) < 1] == []


def test_the_page_is_what_the_counts_give() -> None:
    page = security_page.PAGE.read_text(encoding="utf-8")

    assert page == security_page.render(page, read_counts()), f"run {security_page.REGENERATE}"


def test_the_counted_cases_are_those_that_pytest_collects() -> None:
    assert read_counts()["cases"] == security_page.count_cases(), f"run {security_page.REGENERATE}"


def test_counting_the_cases_of_a_test_that_does_not_exist_fails() -> None:
    with pytest.raises(ValueError, match="has no test whose name begins with test_unknown"):
        list(cases_of(HOSTILE, "test_unknown"))
