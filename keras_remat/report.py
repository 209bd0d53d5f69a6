"""What autodiff keeps of a model for the backward pass, layer by layer, before and after recomputation."""

from typing import List, NamedTuple

from keras_remat import converted
from keras_remat.engine import recompute_enabled
from keras_remat.planning import models, tables
from keras_remat.planning.kept import BlockRow, LayerRow, kept, totals
from keras_remat.planning.kept_table import layer_lines
from keras_remat.planning.simulate import plain, simulate
from keras_remat.plans import Sizes, family_of_graph

_WARNINGS = 10  # that are printed


class MemoryReport(NamedTuple):
    """What autodiff keeps of a model for the backward pass; made by `memory_report`, printed as a table.

    All sizes are bytes of tensors that depend on the batch, predicted by traces.

    Attributes:
      layers: list of `LayerRow`, one for each call: `name`, `kind` (its class), `block` (its number, from 1,
        or None), `before_bytes` and `after_bytes` (kept without recomputation, and now).
      blocks: list of `BlockRow`: `first` and `last` layer, `calls`, and `saved_bytes`, how much more would be
        kept if this block alone were not recomputed.
      before_bytes, after_bytes: what is kept of all calls without recomputation, and now.
      baseline_bytes, peak_bytes: the most that a training step holds without recomputation, and now.
      batch_size: the batch size that sizes are for.
      warnings: list of str: blocks that save nothing.
      notes: list of str, what to know about the numbers.

    Example:
        >>> import keras
        >>> from keras_remat import Recompute, memory_report
        >>> block = keras.Sequential([keras.layers.Dense(16, name="a"), keras.layers.Dense(4)])
        >>> model = keras.Sequential([keras.Input((4,)), Recompute(block), keras.layers.Dense(1)])
        >>> [(row.before_bytes, row.after_bytes) for row in memory_report(model, batch_size=10).layers]
        [(800, 160), (0, 0)]
    """

    layers: List[LayerRow]
    blocks: List[BlockRow]
    before_bytes: int
    after_bytes: int
    baseline_bytes: int
    peak_bytes: int
    batch_size: int
    warnings: List[str]
    notes: List[str]

    def __str__(self):
        lines = [*layer_lines(self.layers), "", *_summary(self), *self.warnings[:_WARNINGS]]
        if len(self.warnings) > _WARNINGS:
            lines.append(f"So do {len(self.warnings) - _WARNINGS} others.")
        return "\n".join(lines + [f"Note: {note}" for note in self.notes])


def memory_report(model, *, batch_size=None, input_shapes=None):
    """Tells what autodiff keeps of each layer for the backward pass, without recomputation and as it is now.

    It helps to find the layers that fill the memory, and blocks that save nothing. A model that was converted
    by `recompute_all`, or has layers `Recompute` and `RecomputeSequential`, is reported with its blocks; of
    any other, both columns are the same. Each tensor counts once, for the layer that makes it. Nothing is
    computed: each call is traced with its gradient, as for a `plan`. Blocks inside of layers that are no
    models, and those of `recompute_grad`, are not seen.

    Args:
      model: a Sequential or functional model. Where its calls cannot be traced, as for `plan`, sizes are
        estimates by those of outputs, which the report notes.
      batch_size: int, for models whose batch size is open (default 32).
      input_shapes: shape of the input, or a list of shapes of all inputs, batch dimension included, for
        models that leave other dimensions open (they are taken to be 128, which the report notes).

    Returns:
      A `MemoryReport`.

    Raises:
      RematError: if an argument is none of the above.

    Example:
        >>> import keras
        >>> from keras_remat import memory_report, recompute_all
        >>> layers = [keras.layers.Dense(8) for _ in range(9)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> report = memory_report(recompute_all(model, strategy=3), batch_size=100)
        >>> len(report.blocks), report.before_bytes, report.after_bytes, report.warnings
        (3, 25600, 6400, [])
    """
    family = family_of_graph(model)
    sizes = Sizes(batch_size, input_shapes)
    with recompute_enabled(False):  # what is traced is the plain model
        cut, reason = models.with_costs(
            family, model, sizes, lambda tensors: converted.cut_of(family, model, tensors)
        )
    from keras_remat.planning import cutting  # which needs NumPy, as every Keras does

    calls, plan = models.flat(cut.part), cutting.segments(cut)
    found = kept(calls, plan, _kinds(cut.part))
    before, after = totals(found.layers)
    return MemoryReport(
        layers=found.layers,
        blocks=found.blocks,
        before_bytes=before,
        after_bytes=after,
        baseline_bytes=plain(calls).peak,
        peak_bytes=simulate(calls, plan).peak,
        batch_size=sizes.batch_size,
        warnings=[f"This block saves nothing: {_names(b)}" for b in found.blocks if b.saved_bytes <= 0],
        notes=sizes.all_notes(reason),
    )


def _kinds(part):
    """List the classes of the layers of the calls of `models.flat`."""
    found = []
    for i, call in enumerate(part.calls):
        found += _kinds(part.inner[i]) if i in part.inner else [type(call.layer).__name__]
    return found


def _names(block):
    return block.first if block.calls == 1 else f"{block.first} to {block.last}"


def _summary(report):
    kept_now, peak_now = tables.size(report.after_bytes), tables.size(report.peak_bytes)
    kept_before, peak_before = tables.size(report.before_bytes), tables.size(report.baseline_bytes)
    if not report.blocks:
        return [
            f"Kept for the backward pass, for batch size {report.batch_size}: {kept_now}. Predicted peak: "
            f"{peak_now}.",
            "Nothing of this model is recomputed.",
        ]
    factor = report.baseline_bytes / max(1, report.peak_bytes)
    return [
        f"Kept for the backward pass, for batch size {report.batch_size}: {kept_now} instead of "
        f"{kept_before}.",
        f"Predicted peak: {peak_now} instead of {peak_before} ({factor:.1f}x less).",
    ]
