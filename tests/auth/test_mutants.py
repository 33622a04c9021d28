"""The guards that scripts/mutants.py takes away are still where it looks for them."""

import pytest

from scripts.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.guard for mutant in MUTANTS])
def test_every_guard_is_where_it_was(mutant: Mutant) -> None:
    for file, old, _ in ((mutant.file, mutant.old, mutant.new), *mutant.also):
        assert old in (ROOT / "src/apcore_a2a/auth" / file).read_text(encoding="utf-8")
    assert all((ROOT / path).exists() for path in mutant.tests.split())
