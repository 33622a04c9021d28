"""What a rule is, and what is found when an agent is held against it.

A check looks for problems, and says each in a sentence; the rule that it is for makes findings of them. So a check
knows nothing of clauses and severities, and a rule nothing of cards and requests.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import Struct

Result = Literal["pass", "fail", "warn", "skip"]


class Finding(Struct, frozen=True):
    """What was found about one rule: a line of the report, and an object of the report in JSON."""

    id: str
    clause: str
    result: Result
    message: str


class Rule(NamedTuple):
    """Something that the A2A specification 1.0 asks of an agent."""

    id: str
    clause: str
    statement: str
    """What is true of an agent that keeps the rule."""
    if_broken: Result = "fail"
    """`warn` where the specification says SHOULD."""

    def judge(self, problems: Iterable[str]) -> list[Finding]:
        """One finding for each problem; that the rule is kept, if there is none."""
        findings = [Finding(self.id, self.clause, self.if_broken, problem) for problem in problems]
        if not findings:
            findings.append(Finding(self.id, self.clause, "pass", self.statement))
        return findings

    def skip(self, reason: str) -> Finding:
        """That the rule was not tried."""
        return Finding(self.id, self.clause, "skip", f"{self.statement}: {reason}")
