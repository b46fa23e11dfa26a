"""Compiles the kernels of kernel=triton for an NVIDIA GPU that need not be there.

    python tests/compile_triton.py 90    # its compute capability, times ten

Prints for each how many bytes of shared memory it takes.
"""

import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ablate.kernel import additive_triton_kernels as kernels
from ablate.kernel.additive_triton import COLUMNS, ROWS, WARPS, block

INTEGERS = {"queries", "keys", "heads", "width", "value_width", "table_rows"}
WHOLE = {"i_d", "j_d"}  # a multiple of blocks
TYPES = dict.fromkeys(INTEGERS | WHOLE | {"table_b", "table_h", "table_i"}, "i32")
TYPES |= dict.fromkeys(("rows", "begin", "end"), "*i32") | {"stream": "*i64"}
TYPES |= dict.fromkeys(("keep", "apart"), "*i1")
TYPES |= dict.fromkeys(("q", "k", "v", "table", "lse", "delta", "df", "df_dv", "dtable"), "*fp32")
# Type of values; their width; slope; whether there are bias, padding and dropout.
CASES = [
    ("fp32", 64, None, True),
    ("bf16", 64, None, True),
    ("bf16", 128, 0.2, False),
    ("fp16", 16, None, False),
]


def compiled(kernel: Any, dtype: str, width: int, slope: float | None, all: bool) -> Any:
    by_query = kernel is kernels.backward_queries
    given: dict[str, Any] = {
        "SLOPE": slope, "RATE": 0.1 if all else 0.0, "DROPPED": 6554 if all else 0,
        "WIDE": tl.float32, "APART": True,
        "BI": COLUMNS if by_query else ROWS, "BJ": ROWS if by_query else COLUMNS,
        "BV": block(width),
    }  # fmt: skip
    if not all:
        given |= dict.fromkeys(("table", "rows", "keep", "stream", "dtable"))
    given = {name: value for name, value in given.items() if name in kernel.arg_names}
    types = {
        name: "constexpr" if name in given else TYPES.get(name, f"*{dtype}")
        for name in kernel.arg_names
    }
    places = {name: (kernel.arg_names.index(name),) for name in kernel.arg_names}
    constants = {places[name]: value for name, value in given.items()}
    aligned = [name for name, kind in types.items() if kind.startswith("*") or name in WHOLE]
    facts = {places[name]: [["tt.divisibility", 16]] for name in aligned}
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    options = {"num_warps": WARPS, "num_stages": 1}
    return triton.compile(
        ASTSource(kernel, types, constants, facts), target=target, options=options
    )


def main() -> None:
    for case in CASES:
        for kernel in (kernels.forward, kernels.backward_queries, kernels.backward_keys):
            made = compiled(kernel, *case)
            print(*case, kernel.__name__, "shared", made.metadata.shared, flush=True)


if __name__ == "__main__":
    main()
