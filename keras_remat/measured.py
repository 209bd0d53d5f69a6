"""Of a few plans, the one whose training step really takes the least memory.

What kernels take for themselves while they run depends on the device, and no trace tells it. Where that is
much, as for convolutions, the plan with the least predicted peak need not be the best one.
"""

from keras_remat import conversion
from keras_remat.errors import BudgetError
from keras_remat.planning import models
from keras_remat.planning.simulate import simulate

_SHARES = (1.15, 1.4, 1.8)  # budgets that are tried, as parts of the least peak: less work, other blocks
_CLOSE = 1.02  # plans that measure so much more than the best are as good, and may repeat less work


def best(family, model, part, specs):
    """Return the `models.Cut` under which a step takes the least memory, measured on this device.

    Args:
      model: a model; its variables and blocks are afterwards what they were.
      part: the `models.Part` of it, with costs.
      specs: list of (shape, dtype) of what it takes.

    Raises:
      RematError: nothing can be measured here.
    """
    family.memory().check_steps()
    cuts = list(_candidates(part))
    with conversion.plain(family, model):
        peaks = [_peak(family, model, cut, specs) for cut in cuts]
    close = [cut for cut, peak in zip(cuts, peaks) if peak <= _CLOSE * min(peaks)]
    return min(close, key=_work)


def _candidates(part):
    """Yield cuts that are predicted to be good, each once."""
    from keras_remat.planning import cutting  # which needs NumPy, as every Keras does

    seen = set()
    least = cutting.by_strategy(part, "auto")
    budgets = [int(share * cutting.peak(least)) for share in _SHARES]
    for cut in [least, cutting.by_strategy(part, "sqrt"), *(_within(part, budget) for budget in budgets)]:
        key = str(cutting.segments(cut)) if cut is not None else None
        if key is not None and key not in seen:
            seen.add(key)
            yield cut


def _within(part, budget):
    from keras_remat.planning import cutting

    try:
        return cutting.by_budget(part, budget)
    except BudgetError:  # of parts that are cut by themselves, a share may not do
        return None


def _work(cut):
    from keras_remat.planning import cutting

    return simulate(models.flat(cut.part), cutting.segments(cut)).extra


def _peak(family, model, cut, specs):
    """Measure one step with the blocks of a cut, and let the model be what it was."""
    variables = family.all_variables([model])
    values = [family.number_of(v) for v in variables]
    conversion.apply(family, cut)
    try:
        return family.memory().peak_of_step(model, specs)
    finally:
        conversion.undo(family, model)
        for variable, value in zip(variables, values):
            variable.assign(value)
