"""Write a CycloneDX bill of materials of a lock file: each package with its version and the hashes of its files.

Invariant: the same lock gives the same bytes. There is no time and no random number in them.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from apcore_a2a import __version__

PIN: Final = re.compile(r"^([a-z0-9._-]+)==([\w.]+)(.*(?:\n\s+--hash=.*)*)", re.MULTILINE)
HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def component(name: str, version: str, lines: str = "") -> dict[str, Any]:  # Any: JSON
    purl = f"pkg:pypi/{name}@{version}"
    found: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    digests = HASH.findall(lines)
    if digests:
        found["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in digests]
    return found


def bill_of(lock: str) -> str:
    """Return the bill of materials of our package with the pins of a lock, as JSON."""
    ours = component("apcore-a2a", __version__)
    packages = [component(*pin) for pin in PIN.findall(lock)]
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, __version__ + lock)}",
        "version": 1,
        "metadata": {"component": ours},
        "components": packages,
        "dependencies": [{"ref": ours["bom-ref"], "dependsOn": [package["bom-ref"] for package in packages]}],
    }
    return json.dumps(bill, indent=1) + "\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(bill_of(Path(sys.argv[1]).read_text(encoding="utf-8")), encoding="utf-8")
