"""Files: one that is received, and one that is returned.

apcore-a2a serve examples/files.py --port 8000
apcore-a2a send http://127.0.0.1:8000 --skill count --file README.md
apcore-a2a send http://127.0.0.1:8000 --skill draw values=3 values=5 values=2
"""

from apcore_a2a import Part, serve, skill


@skill
async def count(document: bytes) -> dict[str, int]:
    """Count the bytes and the lines of a file."""
    return {"bytes": len(document), "lines": len(document.splitlines())}


@skill(examples=[{"values": [3, 5, 2]}])
async def draw(values: list[int]) -> Part:
    """Draw a bar chart, as a picture."""
    highest = max(values, default=1) or 1
    bars = "".join(
        f'<rect x="{20 * number}" y="{100 - 100 * value // highest}" width="16" height="100" fill="#2b59c3"/>'
        for number, value in enumerate(values)
    )
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {20 * len(values)} 100">{bars}</svg>'
    return Part(raw=picture.encode(), filename="chart.svg", media_type="image/svg+xml")


if __name__ == "__main__":
    serve([count, draw], host="127.0.0.1", port=8000)
