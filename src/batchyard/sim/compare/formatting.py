"""Formatting of figures for display."""

from batchyard.sim.compare.sections import BetterDirection, Both, Figure, Unit, difference

NOTHING = "-"


def format_figure(unit: Unit, value: float | None) -> str:
    """Format a figure with its unit; `-` for None."""
    if value is None:
        return NOTHING
    match unit:
        case Unit.SECONDS:
            return _time(value)
        case Unit.SHARE:
            return f"{value:.1%}"
        case Unit.DOLLARS:
            return f"${value:,.2f}"
        case Unit.HOURS:
            return f"{value:,.2f}h"
        case Unit.INDEX:
            return f"{value:.3f}"
        case Unit.COUNT:
            return f"{value:,.2f}".rstrip("0").rstrip(".")


def _time(seconds: float) -> str:
    """Format seconds, below ten with one decimal: `1h4m30s`, `2.5s`."""
    if seconds < 10:
        return f"{round(seconds, 1):g}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{rest}s" if rest else ""]
    return "".join(parts)


def format_change(figure: Figure, both: Both) -> str:
    """Format the change from the first to the second, with its sign; empty if it is zero or rounds to zero."""
    change = difference(both)
    if not change:
        return ""
    if figure.unit is Unit.SHARE:
        return f"{change * 100:+.1f} pp"
    amount = format_figure(figure.unit, abs(change))
    return "" if amount == format_figure(figure.unit, 0) else f"{'+' if change > 0 else '-'}{amount}"


def verdict(figure: Figure, both: Both) -> str:
    """Return whether the second figure is `better` or `worse`; '' for equal, unknown and neutral ones."""
    change = difference(both)
    if not change or figure.good is BetterDirection.NEITHER:
        return ""
    return "better" if (change > 0) == (figure.good is BetterDirection.MORE) else "worse"
