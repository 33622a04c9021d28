"""Clocks that are wrong, or that are set while a replica runs, by libfaketime, which is preloaded."""

from pathlib import Path

HOW_TO_GET_IT = "libfaketime is missing: install it with apt-get install faketime (Debian)"
PLACES = ("usr/lib/*/faketime/libfaketime.so.1", "usr/lib*/faketime/libfaketime.so.1")
SKEWS = ("+600s", "-600s", "+0s")
LATER = "-1200s"  # the value of the last clock from the middle of a round


def find_faketime() -> str:
    """Return the path of the library, empty if it is not installed."""
    for pattern in PLACES:
        for found in sorted(Path("/").glob(pattern)):
            return str(found)
    return ""


class Clocks:
    """A wrong clock for each of three replicas. Only the time of day is wrong, as after a manual change."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / f"clock{number}" for number in range(len(SKEWS))]
        for file, skew in zip(self._files, SKEWS, strict=True):
            file.write_text(skew)

    def environments(self) -> list[dict[str, str]]:
        always = {
            "LD_PRELOAD": find_faketime(),
            "FAKETIME_NO_CACHE": "1",  # else a change of the clock would not be noticed
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return [{**always, "FAKETIME_TIMESTAMP_FILE": str(file)} for file in self._files]

    def set_one(self) -> None:
        """Change the last clock while a replica uses it."""
        self._files[-1].write_text(LATER)
