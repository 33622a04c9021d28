"""What every test runs under: hypothesis without wall-clock deadlines, and the same examples on each CI run."""

import os

from hypothesis import settings

settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")
