"""Clocks that are wrong, and that are set while a replica runs: libfaketime, which is loaded before the program."""

from pathlib import Path

HOW_TO_GET_IT = "no libfaketime: apt-get install faketime (Debian), and this runs"
PLACES = ("usr/lib/*/faketime/libfaketime.so.1", "usr/lib*/faketime/libfaketime.so.1")
SKEWS = ("+600s", "-600s", "+0s")
LATER = "-1200s"  # what the last clock is set to in the middle of a round


def find_faketime() -> str:
    """The library; empty where it is not installed."""
    for pattern in PLACES:
        for found in sorted(Path("/").glob(pattern)):
            return str(found)
    return ""


class Clocks:
    """A wrong clock for each of three replicas: the time of day only, as where somebody has set it."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / f"clock{number}" for number in range(len(SKEWS))]
        for file, skew in zip(self._files, SKEWS, strict=True):
            file.write_text(skew)

    def environments(self) -> list[dict[str, str]]:
        always = {
            "LD_PRELOAD": find_faketime(),
            "FAKETIME_NO_CACHE": "1",  # or it would not be noticed that the clock was set
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return [{**always, "FAKETIME_TIMESTAMP_FILE": str(file)} for file in self._files]

    def set_one(self) -> None:
        """The last clock goes wrong in the middle of what it is used for."""
        self._files[-1].write_text(LATER)
