"""Operators of PyTorch's own database that are not compared with the CPU, and why.

The list is a test itself: an operator that is named here and does compare equal fails `test_op_db.py`.
"""

from __future__ import annotations

# Names that do not apply: code compiled by the CUDA driver, and layouts other than strided.
EXCLUDED = {
    "jiterator_unary",
    "jiterator_binary",
    "jiterator_binary_return_by_ref",
    "jiterator_2inputs_2outputs",
    "jiterator_4inputs_with_extra_args",
    "sparse_mm_reduce",
    "sparse_sampled_addmm",
    "to_sparse",
}

# Forward: operators whose result is not exactly the CPU's.
DIFFERENT: dict[str, str] = {
    "empty": "its values are undefined",
    "empty_like": "its values are undefined",
    "empty_permuted": "its values are undefined",
    "empty_strided": "its values are undefined",
    "new_empty": "its values are undefined",
    "new_empty_strided": "its values are undefined",
    "tensor_split": "a tensor of split points must be on the cpu, on every accelerator",
}

# Operators that read memory before they write it, on the CPU itself; compared with fresh memory filled alike.
READS_FRESH_MEMORY: dict[str, str] = {
    "linalg_lstsq": "the driver gelsy takes the columns to keep in place from a fresh tensor: two CPU runs differ",
    "linalg_lstsq_grad_oriented": "as linalg_lstsq",
}

# Backward: operators whose gradient is not close to the CPU's, or which have none on an accelerator.
GRADIENT_DIFFERENT: dict[str, str] = {
    "tensor_split": "a tensor of split points must be on the cpu, on every accelerator",
}
