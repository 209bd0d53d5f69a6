"""A plan as data: which calls of a model become blocks, and what that is predicted to hold and to cost."""

import json

from keras_remat.errors import RematError
from keras_remat.planning import models, pictures, tables
from keras_remat.planning.calls import RECOMPUTED, Segment, between, last_readers
from keras_remat.planning.simulate import plain, simulate, work_again
from keras_remat.planning.timeline import Timeline, timeline

_VERSION = 1


class Plan:
    """Which calls of a model are recomputed together, and what a training step is predicted to hold.

    Made by `plan`, applied by `recompute_all(model, strategy=plan)`. Sizes are bytes of tensors that depend
    on the batch: what is kept for the backward pass, and gradients of it; not weights, their gradients, or
    the optimizer.

    Attributes:
      baseline_bytes: the most that a training step of the plain model holds.
      peak_bytes: the same with this plan.
      extra_work: what runs again, as a part of the forward pass (1.0 is all of it), in FLOPs and bytes moved.
      batch_size: the batch size that sizes are for.
      notes: list of str, what to know about the numbers.
      rows: list of `tables.Row`, one for each block and each row of calls that is in none.
      plain_timeline, timeline: `timeline.Timeline` of a step of the plain model, and of one with this plan.

    Example:
        >>> import keras
        >>> from keras_remat import plan, recompute_all
        >>> layers = [keras.layers.Dense(64, "relu") for _ in range(16)]
        >>> model = keras.Sequential([keras.Input((64,)), *layers])
        >>> chosen = plan(model, batch_size=100)
        >>> chosen.peak_bytes < 0.6 * chosen.baseline_bytes
        True
        >>> model = recompute_all(model, strategy=chosen)
    """

    def __init__(self, tree, baseline_bytes, peak_bytes, extra_work, batch_size, notes, rows, timelines):
        self._tree = tree
        self.baseline_bytes, self.peak_bytes, self.extra_work = baseline_bytes, peak_bytes, extra_work
        self.batch_size, self.notes, self.rows = batch_size, list(notes), list(rows)
        self.plain_timeline, self.timeline = timelines

    def __str__(self):
        return tables.plan_table(self)

    def plot(self, path=None):
        """Draw memory over a training step, plain and with this plan, and what the blocks are.

        Args:
          path: the file to write, whose ending chooses the format (".png", ".pdf", ".svg"); None to write
            none.

        Returns:
          A `matplotlib.figure.Figure`, which notebooks show.

        Raises:
          RematError: if matplotlib is not installed, or does not write such files.
        """
        return pictures.draw(self, path)

    def to_json(self):
        """Return the plan as a string, from which `from_json` makes it again, in any process."""
        return json.dumps(
            {
                "version": _VERSION,
                "model": self._tree,
                "baseline_bytes": self.baseline_bytes,
                "peak_bytes": self.peak_bytes,
                "extra_work": self.extra_work,
                "batch_size": self.batch_size,
                "notes": self.notes,
                "rows": [list(row) for row in self.rows],
                "timelines": [self.plain_timeline, self.timeline],
            }
        )

    @property
    def name(self):
        """The name of the model that the plan was made for."""
        return self._tree["name"]

    @property
    def is_every(self):
        """True if short models inside the model are cut by themselves as well."""
        return self._tree["every"]

    @classmethod
    def from_json(cls, text):
        """Make a plan of what `to_json` returned.

        Raises:
          RematError: if `text` is no plan, or one of a later version.
        """
        try:
            data = json.loads(text)
            version = data.pop("version")
            tree = data.pop("model")
            rows = [tables.Row(*row) for row in data.pop("rows")]
            timelines = [Timeline(*columns) for columns in data.pop("timelines")]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RematError(
                f"A plan is read from the JSON that Plan.to_json wrote. Received: {str(text)[:60]!r} "
                f"({type(error).__name__}: {error}). Write it again."
            ) from error
        if version != _VERSION:
            raise RematError(
                f"This keras_remat reads plans of version {_VERSION}. Received: a plan of version {version}. "
                "Make the plan again."
            )
        return cls(tree, rows=rows, timelines=timelines, **data)

    def cut(self, part):
        """Return the plan as the `models.Cut` of a `models.Part`; raise if it was made for another model."""
        return _cut(part, self._tree, self._tree["name"])


def plan_of(cut, batch_size, notes, is_every=False):
    """Return the `Plan` of a `models.Cut`."""
    from keras_remat.planning import cutting  # which needs NumPy, as every Keras does

    calls, found = models.flat(cut.part), cutting.segments(cut)
    before, step, work = plain(calls), simulate(calls, found), sum(cost.work for cost in calls.costs)
    last = last_readers(calls)
    return Plan(
        tree=dict(_tree(cut), every=is_every),
        baseline_bytes=before.peak,
        peak_bytes=step.peak,
        extra_work=step.extra / work if work else 0.0,
        batch_size=batch_size,
        notes=notes,
        rows=[_row(calls, segment, last) for segment in found],
        timelines=[timeline(calls, [], before), timeline(calls, found, step)],
    )


def _row(calls, segment, last):
    part = between(calls, segment.start, segment.stop, last)
    needed = set().union(*(cost.needs for cost in part.costs))
    needed &= {key for cost in part.costs for key in cost.outputs}
    plainly = sum(cost.inner for cost in part.costs) + sum(calls.sizes[key] for key in needed)
    is_block = segment.how == RECOMPUTED
    return tables.Row(
        part.costs[0].name,
        part.costs[-1].name,
        len(part.costs),
        is_block,
        sum(calls.sizes[key] for key in part.results) if is_block else plainly,
        plainly,
        work_again(calls, segment),
    )


def _tree(cut):
    return {
        "name": cut.part.model.name,
        "calls": [type(call.layer).__name__ for call in cut.part.calls],
        "blocks": [_listed(block) for block in cut.blocks],
        "inner": {str(i): _tree(inner) for i, inner in cut.inner.items()},
    }


def _listed(segment):
    return [segment.start, segment.stop, [_listed(s) for s in segment.inside if s.how == RECOMPUTED]]


def _segment(listed):
    start, stop, inside = listed
    return Segment(start, stop, RECOMPUTED, tuple(map(_segment, inside)))


def _cut(part, tree, name):
    kinds = [type(call.layer).__name__ for call in part.calls]
    for i, (expected, received) in enumerate(zip(tree["calls"] + [None], kinds + [None])):
        if expected != received:
            raise RematError(
                f"A plan fits models of the architecture that it was made for. Received: "
                f"{part.model.name!r}, whose call {i} is {_named(received)} where {name!r} has "
                f"{_named(expected)}. Make a plan of this model."
            )
    inner, blocks = {int(i): sub for i, sub in tree["inner"].items()}, list(map(_segment, tree["blocks"]))
    ends = [0, *(end for block in blocks for end in (block.start, block.stop)), len(part.calls)]
    if set(inner) != set(part.inner) or ends != sorted(ends):
        raise RematError(
            "A plan fits models of the architecture that it was made for. Received: "
            f"{part.model.name!r} with models at calls {sorted(part.inner)}, where {name!r} has them at "
            f"{sorted(inner)}, and blocks {tree['blocks']}. Make a plan of this model."
        )
    return models.Cut(part, blocks, {i: _cut(part.inner[i], sub, sub["name"]) for i, sub in inner.items()})


def _named(kind):
    return "missing" if kind is None else f"a {kind}"
