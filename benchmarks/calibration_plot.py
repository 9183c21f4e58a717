"""The plot of `eta_calibration.py`: what intervals should hold, and what they held."""

from collections.abc import Mapping, Sequence

_COLOURS = ("#b60", "#06c")
_DASHES = ("6 3", "none")
_LEFT, _BOTTOM, _SCALE = 60, 400, 3.6


def drawn(nominal: Sequence[int], shares: Mapping[str, Sequence[float]], title: str) -> str:
    """An SVG with a line for each of the two rows of shares, of a hundred, by name."""
    rows = zip(shares.items(), _COLOURS, _DASHES, strict=True)
    lines = "\n".join(_line(number, nominal, row, colour, dash) for number, (row, colour, dash) in enumerate(rows))
    ticks = "".join(
        f'<text x="{_x(each)}" y="420" text-anchor="middle">{each}</text>'
        f'<text x="50" y="{_y(each) + 4}" text-anchor="end">{each}</text>'
        for each in range(0, 101, 20)
    )
    aim = f"M{_x(75)} {_y(85)}H{_x(85)}V{_y(75)}H{_x(75)}Z"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 460 460" font-family="sans-serif" font-size="12">\n'
        '<rect width="460" height="460" fill="#ffffff"/>\n'
        '<path d="M60 40V400H420" fill="none" stroke="#444"/>\n'
        '<path d="M60 400L420 40" fill="none" stroke="#999" stroke-dasharray="5 4"/>\n'
        f'<path d="{aim}" fill="#2a72" stroke="#2a7"/>\n{lines}\n'
        f'<g fill="#222">{ticks}\n'
        '<text x="240" y="446" text-anchor="middle">the interval should hold the start in so many of 100 cases</text>\n'
        '<text x="16" y="220" text-anchor="middle" transform="rotate(-90 16 220)">it held it in so many</text>\n'
        f'<text x="240" y="24" text-anchor="middle">{title}</text></g>\n</svg>\n'
    )


def _line(number: int, nominal: Sequence[int], row: tuple[str, Sequence[float]], colour: str, dash: str) -> str:
    name, shares = row
    points = [(_x(each), _y(share)) for each, share in zip(nominal, shares, strict=True)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in points)
    place = 60 + 20 * number
    return (
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        f'<g fill="{colour}">{marks}<path d="M80 {place}H110" stroke="{colour}" stroke-width="2"'
        f' stroke-dasharray="{dash}"/><text x="116" y="{place + 4}">{name}</text></g>'
    )


def _x(share: float) -> float:
    return round(_LEFT + _SCALE * share, 1)


def _y(share: float) -> float:
    return round(_BOTTOM - _SCALE * share, 1)
