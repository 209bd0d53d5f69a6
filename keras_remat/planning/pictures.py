"""A plan as a picture: memory over a training step, and which calls are a block.

Drawn with matplotlib, if it is installed, on a figure of its own: no window and no state of pyplot.
"""

import importlib

from keras_remat.errors import RematError
from keras_remat.planning import tables
from keras_remat.planning.timeline import FORWARD, PARTS

_SIZE = (10.0, 6.0)  # inches
_PLAIN, _PLANNED, _KEPT = "#8c8c8c", "#1a1a1a", "#e3e3e3"
_BLOCKS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#9c755f")
_FONT = 7.5  # points, of names in blocks
_CHARACTER = 0.6 * _FONT / 72  # inches


def draw(plan, path=None):
    """Draw a `Plan`, write it to `path` if that is not None, and return the figure."""
    figure = _matplotlib("figure").Figure(figsize=_SIZE, dpi=130, constrained_layout=True)
    grid = figure.add_gridspec(2, 1, height_ratios=(3.4, 1.0))
    _draw_memory(plan, figure.add_subplot(grid[0]))
    _draw_blocks(plan, figure.add_subplot(grid[1]))
    if path is not None:
        _write(figure, str(path))
    return figure


def _matplotlib(module):
    try:
        return importlib.import_module("matplotlib." + module)
    except ImportError as error:
        raise RematError(
            f"Pictures are drawn with matplotlib. Received: a Python without it ({error}). Install it: pip "
            "install matplotlib."
        ) from error


def _write(figure, path):
    kinds = sorted(figure.canvas.get_supported_filetypes())
    if path.rpartition(".")[2].lower() not in kinds:
        raise RematError(
            f"The ending of a picture's file must be one of {', '.join(kinds)}. Received: {path!r}. Call it "
            "plan.png, for example."
        )
    figure.savefig(path)


def _colors(plan):
    """The colour of each row: like ones are never side by side."""
    found, count = [], 0
    for row in plan.rows:
        found.append(_BLOCKS[count % len(_BLOCKS)] if row.is_block else _KEPT)
        count += row.is_block
    return found


def _draw_memory(plan, axes):
    before, after = plan.plain_timeline, plan.timeline
    unit, factor = tables.unit_of(plan.baseline_bytes)
    x, y = _steps(before, factor)
    axes.fill_between(x, y, color=_PLAIN, alpha=0.15, linewidth=0)
    axes.plot(x, y, color=_PLAIN, linewidth=1.4, label="plain")
    _fill_blocks(plan, axes, factor)
    x, y = _steps(after, factor)
    axes.plot(x, y, color=_PLANNED, linewidth=1.2, label="with the plan")
    right = max(before.ends + after.ends + [PARTS]) / PARTS
    _draw_peak(axes, plan.baseline_bytes, factor, "plain", _PLAIN, right)
    less = f"with the plan, {plan.baseline_bytes / max(1, plan.peak_bytes):.1f}x less"
    _draw_peak(axes, plan.peak_bytes, factor, less, _PLANNED, right)
    axes.axvline(1.0, color=_PLAIN, linewidth=0.8, linestyle=":")
    axes.annotate(
        "forward | backward",
        (1.0, 0.985),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="top",
        fontsize=8,
        color="#555555",
        backgroundcolor="white",
    )
    axes.set_xlim(0, right)
    axes.set_ylim(0, 1.17 * plan.baseline_bytes / factor or 1)
    axes.set_xlabel("work done, in forward passes (a gradient counts as two)")
    axes.set_ylabel(f"memory held ({unit})")
    axes.set_title(
        f"Predicted memory of a training step of {plan.name!r}, batch size {plan.batch_size}: tensors that "
        "depend on the batch",
        fontsize=10.5,
    )
    axes.spines["top"].set_visible(False)
    axes.spines["right"].set_visible(False)


def _draw_peak(axes, peak, factor, text, color, right):
    """A line at a peak, with its size above its right end."""
    axes.axhline(peak / factor, color=color, linewidth=0.9, linestyle="--")
    axes.annotate(
        f"peak {tables.size(peak)}, {text}",
        (right, peak / factor),
        xytext=(-4, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=9,
        color=color,
        bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1},
    )


def _steps(line, factor, start=0, stop=None):
    """The corners of moments `start` to before `stop`: each holds the same from its begin to its end."""
    stop = len(line.held) if stop is None else stop
    begins = [0, *line.ends]
    x = [end / PARTS for i in range(start, stop) for end in (begins[i], line.ends[i])]
    return x, [line.held[i] / factor for i in range(start, stop) for _ in range(2)]


def _fill_blocks(plan, axes, factor):
    """Fill what is below the plan's line with the colour of the block that runs, backwards from the loss."""
    colors = [color for color, row in zip(_colors(plan), plan.rows) for _ in range(row.calls)]
    line, start = plan.timeline, 0
    for stop in range(1, len(line.held) + 1):
        is_last = stop == len(line.held)
        if is_last or colors[line.calls[stop]] != colors[line.calls[start]] or _turns(line, stop):
            is_forward = line.kinds[start] == FORWARD
            axes.fill_between(
                *_steps(line, factor, start, stop),
                color=colors[line.calls[start]],
                alpha=0.45 if is_forward else 0.85,
                linewidth=0,
            )
            start = stop


def _turns(line, i):
    return line.kinds[i] != FORWARD and line.kinds[i - 1] == FORWARD


def _draw_blocks(plan, axes):
    """A strip of the calls in order, with the names of what blocks begin and end with, where they fit."""
    total = sum(row.calls for row in plan.rows) or 1
    start, width, height = 0, 0.9 * _SIZE[0] / total, 0.8 * _SIZE[1] / 4.4
    for row, color in zip(plan.rows, _colors(plan)):
        axes.broken_barh([(start, row.calls)], (0, 1), facecolor=color, edgecolor="white", linewidth=0.8)
        text, rotation = _label(row, width * row.calls, height)
        axes.text(
            start + row.calls / 2,
            0.5,
            text,
            ha="center",
            va="center",
            rotation=rotation,
            fontsize=_FONT,
            color="#444444" if color == _KEPT else "white",
            clip_on=True,
        )
        start += row.calls
    axes.set_xlim(0, total)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_xlabel("calls of the model, in order: a colour is a block that runs again, grey is kept")
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)


def _label(row, width, height):
    """What is written on a block of so many inches: names across it, along it, their begins, or nothing."""
    names = [row.first] if row.calls == 1 else [row.first, row.last]
    line = 1.5 * _FONT / 72
    if (len("to ") * (row.calls > 1) + max(map(len, names))) * _CHARACTER <= 0.95 * width:
        return "\nto ".join(names), 0
    most = int(0.95 * height / _CHARACTER)
    if width < line:
        return "", 0
    if len(names) == 2 and width < 2 * line:
        names = names[:1]
    return "\n".join(name if len(name) <= most else name[: most - 2] + ".." for name in names), 90
