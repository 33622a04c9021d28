"""The remote agent of the tests: typed skills, of which some ask, need an approval, fail, wait or return a file."""

from apcore_a2a import AgentError, Call, Question, skill
from apcore_a2a.protocol.model import Part
from tests.fakes import Gate

PNG = b"\x89PNG\r\n\x1a\n1"


@skill(annotations={"readonly": True})
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
    """
    return a + b


@skill(id="trip.book")
async def book(seats: int, call: Call) -> str:
    """Book seats."""
    call.progress(0.5, "Looking")
    city = call.ask("Which city?").text
    return f"{seats} seats in {city}"


async def tour(call: Call) -> str:
    """Plan a tour, with two questions one after the other."""
    city = call.ask("Which city?").text
    days = call.ask_all(Question(id="days", text="How many days?", schema={"type": "integer", "minimum": 1}))["days"]
    return f"{days} days in {city}"


@skill(annotations={"requires_approval": True, "destructive": True})
async def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


async def refuse(why: str) -> str:
    """Fail."""
    raise AgentError(f"Refused: {why}")


async def crash() -> str:
    """Fail with an exception."""
    raise RuntimeError("a secret of the agent")


async def draw() -> Part:
    """Draw a picture."""
    return Part(raw=PNG, filename="picture.png", media_type="image/png")


class Desk:
    """The skills, and the gate at which `wait` waits."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def wait(self, call: Call) -> str:
        """Wait."""
        call.progress(None, "Waiting")
        await self.gate.wait()
        return "No longer"

    @property
    def skills(self) -> list[object]:
        return [add, book, tour, pay, refuse, crash, draw, self.wait]
