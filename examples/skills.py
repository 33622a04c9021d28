"""Functions as skills: typed inputs, progress, a request for input, and an approval.

python examples/skills.py
apcore-a2a skills http://127.0.0.1:8000
apcore-a2a send http://127.0.0.1:8000 --skill forecast Rome
apcore-a2a send http://127.0.0.1:8000 --skill plan --data '{"days": 2}'
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

from apcore_a2a import Call, serve, skill


@dataclass
class Day:
    city: str
    number: int
    degrees: int


@skill(tags=["weather"], examples=["Rome", {"city": "Rome", "days": 3}], annotations={"readonly": True})
async def forecast(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> list[Day]:
    """Returns a weather forecast.

    Args:
        city: The city.
        days: Number of days, beginning today.
        unit: Celsius or Fahrenheit.
    """
    degrees = 21 if unit == "C" else 70
    return [Day(city, number, degrees) for number in range(1, days + 1)]


@skill(tags=["travel"], examples=[{"days": 2}])
async def plan(days: int, call: Call) -> str:
    """Plans a journey, and asks for the destination.

    Args:
        days: Number of days.
    """
    city = call.ask("Where to?").text
    for day in range(days):
        call.progress(day / days, f"Planning day {day + 1}")
        await asyncio.sleep(0)
    return f"{days} days in {city}"


@skill(tags=["travel"], annotations={"requires_approval": True, "destructive": True})
def cancel_journey(city: str, refund: bool = False) -> str:
    """Cancels a journey, after approval.

    Args:
        city: Destination of the journey.
        refund: Whether to request a refund.
    """
    return f"No journey to {city}" + (", but the money" if refund else "")


SKILLS = [forecast, plan, cancel_journey]

if __name__ == "__main__":
    serve(SKILLS, host="127.0.0.1", port=8000)
