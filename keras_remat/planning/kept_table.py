"""What is kept of each layer, as a table; in long ones, layers in a row that keep little are one line."""

from typing import List

from keras_remat.planning.kept import totals
from keras_remat.planning.tables import size

_MOST = 60  # lines up to which each call has its own
_LARGEST, _LIKE = 24, 40  # calls with a line of their own in longer tables, and with those that keep as much


def layer_lines(rows):
    """Return the lines of the table of `kept.LayerRow`s.

    Example:
        >>> from keras_remat.planning.kept import LayerRow
        >>> rows = [LayerRow(f"small_{i}", "Dense", 1, 5, 0) for i in range(99)]
        >>> for line in layer_lines([*rows, LayerRow("large", "LSTM", None, 7000, 7000)])[-2:]:
        ...     print(line)
        76 calls from small_23 to small_98                                      1      380 B        0 B
        large                                      LSTM                            7.0 kB     7.0 kB
    """
    lines = [_line("layer", "type", "block", "plain", "now")]
    for run in _folded(rows):
        before, after = map(size, totals(run))
        if len(run) == 1:
            lines.append(_line(_cut(run[0].name, 42), _cut(run[0].kind, 24), _blocks(run), before, after))
        else:
            name = _cut(f"{len(run)} calls from {run[0].name} to {run[-1].name}", 67)
            lines.append(f"{name:<67} {_blocks(run):>7} {before:>10} {after:>10}")
    return lines


def _line(name, kind, block, before, after):
    return f"{name:<42} {kind:<24} {block:>7} {before:>10} {after:>10}"


def _folded(rows):
    """Rows as lists: those that keep the most alone, the others with their neighbours."""
    if len(rows) <= _MOST:
        return [[row] for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (-rows[i].before_bytes, i))
    least = rows[order[_LARGEST - 1]].before_bytes
    alone = {i for i in order if rows[i].before_bytes >= least}
    alone = alone if len(alone) <= _LIKE else set(order[:_LARGEST])
    found: List[list] = []
    for i, row in enumerate(rows):
        if i in alone or not found or i - 1 in alone:
            found.append([])
        found[-1].append(row)
    return found


def _blocks(rows):
    """The numbers of the blocks of rows: one, or the first and the last."""
    numbers = [row.block for row in rows if row.block is not None]
    if not numbers:
        return ""
    return str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]}-{numbers[-1]}"


def _cut(text, most):
    return text if len(text) <= most else text[: most - 3] + "..."
