"""What a Python function finds without being given it: its closure and global variables."""

import inspect
import types


def captured(function):
    """List what a Python function finds in its closure and in global variables."""
    try:
        found = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # not Python, or with a name that is not bound yet
        return []
    return leaves_of([*found.nonlocals.values(), *found.globals.values()])


_NO_HOLDERS = (types.ModuleType, types.FunctionType, type)  # with attributes that are not theirs alone


def reached(values, is_closed):
    """List `values`, and what is in attributes of the objects among them, but for those that `is_closed`."""
    holders = [value for value in values if not isinstance(value, _NO_HOLDERS) and not is_closed(value)]
    return [*values, *leaves_of(x for holder in holders for x in getattr(holder, "__dict__", {}).values())]


_MANY = 1000  # values in a list from which on it is data, not a handful of tensors


def leaves_of(values):
    """List `values` and what is in those that are lists, tuples or dicts."""
    found = []
    for value in values:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            found.extend(value if len(value) < _MANY else ())
        else:
            found.append(value)
    return found
