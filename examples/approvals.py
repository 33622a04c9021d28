"""Approvals: one before a call, by an annotation, and one in the middle of the work, with arguments that are shown.

apcore-a2a serve examples/approvals.py --store sqlite:///tasks.db
printf '{"to": "Ada", "amount": 50}\\ny\\n' | apcore-a2a chat http://127.0.0.1:8000 --skill transfer
"""

from apcore_a2a import Call, Question, serve, skill

LIMIT = 100


@skill(annotations={"destructive": True, "requires_approval": True}, examples=[{"to": "Ada", "amount": 50}])
async def transfer(to: str, amount: int) -> str:
    """Send money. It asks before each call."""
    return f"{amount} sent to {to}"


@skill(examples=[{"item": "a lamp", "price": 250}])
async def order(item: str, price: int, call: Call) -> str:
    """Order something. It asks only above a limit, and for how many."""
    if price <= LIMIT:
        return f"Ordered: {item} for {price}"
    question = Question(
        id="order", text=f"{item} costs {price}. Order it?", kind="approval", tool="order", arguments={"price": price}
    )
    pieces = Question(id="pieces", text="How many?", schema={"type": "integer", "minimum": 1, "maximum": 9})
    answers = call.ask_all(question, pieces)
    if not answers["order"]:
        return "Not ordered"
    return f"Ordered: {answers['pieces']} x {item} for {answers['pieces'] * price}"


if __name__ == "__main__":
    serve([transfer, order], host="127.0.0.1", port=8000)
