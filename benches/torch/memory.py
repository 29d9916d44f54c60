"""Where a contender's tensors lie."""

from contextlib import AbstractContextManager, nullcontext

# The backend on tensors in memory that the ranks map.
SHARED = "rdmaccl, shared"


def of(contender: str) -> AbstractContextManager[None]:
    """What the contender's tensors are made in."""
    if contender != SHARED:
        return nullcontext()
    from rdmaccl.torch import shared_memory

    # Short ones too: all sizes are compared.
    return shared_memory(1)
