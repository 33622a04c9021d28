"""The guards that scripts/mutants.py and scripts/http_mutants.py take away are still where they look for them."""

import re

import pytest

from scripts import http_mutants, mutants
from scripts.mutants import ROOT, Mutant

MUTANTS = (*mutants.MUTANTS, *http_mutants.MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.guard for mutant in MUTANTS])
def test_every_guard_is_where_it_was(mutant: Mutant) -> None:
    for file, old, _ in ((mutant.file, mutant.old, mutant.new), *mutant.also):
        source = (ROOT / "src/apcore_a2a/auth" / file).read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{file}: the text of a guard must occur exactly once"
    assert all((ROOT / path).exists() for path in mutant.tests.split())


def test_the_page_lists_every_guard_and_how_many_tests_noticed() -> None:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (.+?) \| `(.+?)` \| (\d+) \|$", page, re.MULTILINE)
    expected = [(mutant.guard, f"auth/{mutant.file}".replace("auth/../", "")) for mutant in MUTANTS]
    assert [(guard, file) for guard, file, _ in listed] == expected
    assert all(int(failed) > 0 for _, _, failed in listed)
    assert f"Each of the {len(MUTANTS)} guards below" in page
