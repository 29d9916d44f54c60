"""rdmaccl: collective communication over RDMA and shared memory.

`version()` and `info()` ask the library that this package carries. PyTorch's backend is in `rdmaccl.torch`;
`torch.distributed.init_process_group("rdmaccl")` finds it without an import.
"""

from rdmaccl._library import info, version

__all__ = ["info", "version"]
