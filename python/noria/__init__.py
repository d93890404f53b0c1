"""noria runs PyTorch models larger than device memory: weights stream in just before they are used."""

from __future__ import annotations

import torch as _torch

from noria._load import load_extension as _load_extension

_load_extension(_torch.__version__)

from noria._C import __version__ as __version__  # noqa: E402
from noria.errors import (  # noqa: E402
    BudgetError,
    Error,
    EvictedWeightError,
    IntegrityError,
    PlanError,
    StorageError,
    UnsupportedOperation,
)

__all__ = [
    "BudgetError",
    "Error",
    "EvictedWeightError",
    "IntegrityError",
    "PlanError",
    "StorageError",
    "UnsupportedOperation",
    "__version__",
]
