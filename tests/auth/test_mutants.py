"""The guards that scripts/mutants.py and scripts/http_mutants.py take away are still where they look for them."""

import pytest

from scripts import http_mutants, mutants
from scripts.mutants import ROOT, Mutant

MUTANTS = (*mutants.MUTANTS, *http_mutants.MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.guard for mutant in MUTANTS])
def test_every_guard_is_where_it_was(mutant: Mutant) -> None:
    for file, old, _ in ((mutant.file, mutant.old, mutant.new), *mutant.also):
        assert old in (ROOT / "src/apcore_a2a/auth" / file).read_text(encoding="utf-8")
    assert all((ROOT / path).exists() for path in mutant.tests.split())
