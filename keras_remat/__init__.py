"""Train bigger Keras models and batches in the same memory, exactly and with one line."""

from keras_remat.batches import max_batch_size
from keras_remat.callbacks import memory_callback
from keras_remat.convert import recompute_all, restore
from keras_remat.decorator import recompute_grad
from keras_remat.engine import is_recomputing, recompute_enabled
from keras_remat.errors import (
    BudgetError,
    RecomputeMismatchError,
    RematError,
    UnsupportedFamilyError,
)
from keras_remat.layers import Recompute, RecomputeSequential
from keras_remat.planning.plan import Plan
from keras_remat.plans import plan
from keras_remat.report import MemoryReport, memory_report

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "MemoryReport",
    "Plan",
    "Recompute",
    "RecomputeMismatchError",
    "RecomputeSequential",
    "RematError",
    "UnsupportedFamilyError",
    "is_recomputing",
    "max_batch_size",
    "memory_callback",
    "memory_report",
    "plan",
    "recompute_all",
    "recompute_enabled",
    "recompute_grad",
    "restore",
]
