"""What a plan and the costs of a model look like to a person: tables of at most 100 columns."""

from typing import NamedTuple

_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


class Row(NamedTuple):
    """Calls in a row: a block, or calls that are in none.

    Attributes:
      first, last: names of the first and the last layer.
      calls: how many they are.
      is_block: whether they are recomputed together.
      kept_bytes: what is kept of them for the backward pass.
      inner_bytes: what is kept without recomputation, and while the block runs again.
      extra_work: what the second run costs, in FLOP equivalents.
    """

    first: str
    last: str
    calls: int
    is_block: bool
    kept_bytes: int
    inner_bytes: int
    extra_work: float

    @property
    def saves_nothing(self):
        """True for a block that keeps as much as it would without recomputation."""
        return self.is_block and self.kept_bytes >= self.inner_bytes


def size(count):
    """Write a number of bytes for a person.

    Example:
        >>> size(1234567), size(12)
        ('1.2 MB', '12 B')
    """
    unit, factor = unit_of(count)
    return f"{count / factor:.1f} {unit}" if factor > 1 else f"{count} B"


def unit_of(count):
    """Return the unit in which a number of bytes is written, and the bytes that it stands for.

    Example:
        >>> unit_of(1234567)
        ('MB', 1000000)
    """
    return next((unit for unit in _UNITS if count >= unit[1]), ("B", 1))


def plan_table(plan):
    """Write a `Plan` as a table."""
    total = sum(row.extra_work for row in plan.rows) or 1.0
    lines = [f"{'segment':<42} {'calls':>5}  {'how':<10} {'kept':>10} {'plain':>10} {'again':>6}"]
    for row in plan.rows:
        again = f"{100 * row.extra_work / total:.0f} %" if row.is_block else ""
        how = "recompute" if row.is_block else "keep"
        lines.append(
            f"{_names(row):<42} {row.calls:>5}  {how:<10} {size(row.kept_bytes):>10} "
            f"{size(row.inner_bytes):>10} {again:>6}"
        )
    lines += ["", *_summary(plan)]
    lines += [f"This block saves nothing: {_names(row)}" for row in plan.rows if row.saves_nothing]
    return "\n".join(lines + [f"Note: {note}" for note in plan.notes])


def _summary(plan):
    factor = plan.baseline_bytes / max(1, plan.peak_bytes)
    return [
        f"Predicted peak for batch size {plan.batch_size}: {size(plan.peak_bytes)} instead of "
        f"{size(plan.baseline_bytes)} ({factor:.1f}x less).",
        f"Extra work: {100 * plan.extra_work:.0f} % of the forward pass.",
    ]


def _names(row):
    text = row.first if row.calls == 1 else f"{row.first} to {row.last}"
    return text if len(text) <= 42 else text[:39] + "..."
