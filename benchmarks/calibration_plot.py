"""The plot of eta_calibration.py: the measured coverage of forecast intervals over their nominal coverage."""

from collections.abc import Mapping, Sequence

_COLORS = ("#b60", "#06c")
_DASHES = ("6 3", "none")
_LEFT, _BOTTOM, _SCALE = 60, 400, 3.6


def draw_plot(nominal: Sequence[int], series: Mapping[str, Sequence[float]], title: str) -> str:
    """Return an SVG with one line for each of two series, by name; coverages are percentages."""
    rows = zip(series.items(), _COLORS, _DASHES, strict=True)
    lines = "\n".join(_line(number, nominal, row, color, dash) for number, (row, color, dash) in enumerate(rows))
    ticks = "".join(
        f'<text x="{_x(tick)}" y="420" text-anchor="middle">{tick}</text>'
        f'<text x="50" y="{_y(tick) + 4}" text-anchor="end">{tick}</text>'
        for tick in range(0, 101, 20)
    )
    goal = f"M{_x(75)} {_y(85)}H{_x(85)}V{_y(75)}H{_x(75)}Z"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 460 460" font-family="sans-serif" font-size="12">\n'
        '<rect width="460" height="460" fill="#ffffff"/>\n'
        '<path d="M60 40V400H420" fill="none" stroke="#444"/>\n'
        '<path d="M60 400L420 40" fill="none" stroke="#999" stroke-dasharray="5 4"/>\n'
        f'<path d="{goal}" fill="#2a72" stroke="#2a7"/>\n{lines}\n'
        f'<g fill="#222">{ticks}\n'
        '<text x="240" y="446" text-anchor="middle">nominal coverage of the interval, percent</text>\n'
        '<text x="16" y="220" text-anchor="middle" transform="rotate(-90 16 220)">measured coverage, percent</text>\n'
        f'<text x="240" y="24" text-anchor="middle">{title}</text></g>\n</svg>\n'
    )


def _line(number: int, nominal: Sequence[int], row: tuple[str, Sequence[float]], color: str, dash: str) -> str:
    name, coverages = row
    points = [(_x(expected), _y(measured)) for expected, measured in zip(nominal, coverages, strict=True)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in points)
    legend_y = 60 + 20 * number
    return (
        f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
        f'<g fill="{color}">{marks}<path d="M80 {legend_y}H110" stroke="{color}" stroke-width="2"'
        f' stroke-dasharray="{dash}"/><text x="116" y="{legend_y + 4}">{name}</text></g>'
    )


def _x(percent: float) -> float:
    return round(_LEFT + _SCALE * percent, 1)


def _y(percent: float) -> float:
    return round(_BOTTOM - _SCALE * percent, 1)
