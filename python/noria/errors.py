"""The errors of noria. Wrong arguments are ValueError or TypeError; out of memory stays the backend's own error."""

from __future__ import annotations


class Error(RuntimeError):
    """Base of noria's own errors."""


class BudgetError(Error):
    """A byte budget that cannot work.

    Attributes:
        smallest_bytes: the smallest budget that does, in bytes.
    """

    smallest_bytes: int = 0


class UnsupportedOperation(Error, NotImplementedError, AttributeError):
    """An operation that this device does not have. An AttributeError too, so that `hasattr` may ask."""


class EvictedWeightError(Error):
    """The bytes of a weight were asked for while they are not on the device."""


class IntegrityError(Error):
    """Bytes on disk are not what they should be."""


class StorageError(Error):
    """Input or output failed.

    Attributes:
        path: the file.
        errno: the system's error number, 0 when it gave none.
    """

    path: str = ""
    errno: int = 0


class PlanError(Error):
    """A plan that cannot be made or that contradicts itself."""


def is_evicted_error(error: BaseException) -> bool:
    """Whether `error` says that the bytes of a weight are not on the device: noria's own class, or PyTorch's text."""
    return isinstance(error, EvictedWeightError) or (
        isinstance(error, RuntimeError) and "EvictedWeightError: " in str(error)
    )
