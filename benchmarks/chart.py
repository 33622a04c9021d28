"""Bar charts as SVG: our speed relative to each other server, on a logarithmic scale. The line at 1 is ours."""

import math
from collections.abc import Mapping
from xml.sax.saxutils import escape

WIDTH, LABEL, BAR, GAP, TITLE = 860, 250, 18, 8, 30
INK, FASTER, LIMIT = "#57606a", "#2da44e", "#8c959f"


def draw(groups: Mapping[str, Mapping[str, float]]) -> str:
    """Draw one group of bars for each title: green if ours is faster, grey if the other server is."""
    values = [value for group in groups.values() for value in group.values()]
    low, high = math.log10(min([0.1, *values])), math.log10(max([10, *values]))
    scale = (WIDTH - LABEL - 80) / (high - low)
    one = LABEL - low * scale
    lines, top = [], 10
    for title, group in groups.items():
        lines.append(text(10, top + 16, title, bold=True))
        top += TITLE
        for name, value in group.items():
            end = LABEL + (math.log10(value) - low) * scale
            left, width = min(one, end), max(abs(end - one), 1)
            fill = FASTER if value >= 1 else LIMIT
            lines.append(f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{fill}"/>')
            lines.append(text(10, top + 13, name))
            lines.append(text(max(one, end) + 6, top + 13, f"{value:,.0f}" if value >= 10 else f"{value:.2f}"))
            top += BAR + GAP
        top += GAP
    axis = f'<line x1="{one:.1f}" y1="10" x2="{one:.1f}" y2="{top}" stroke="{INK}" stroke-dasharray="2 3"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 10}" role="img">'
    style = f'<g font-family="sans-serif" font-size="13" fill="{INK}">'
    about = "<title>How many times as fast apcore-a2a is as other servers</title>"
    return "\n".join([head, about, style, *lines, axis, "</g>", "</svg>", ""])


def text(x: float, y: float, words: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y}"{weight}>{escape(words)}</text>'
