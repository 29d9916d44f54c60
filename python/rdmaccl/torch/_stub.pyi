from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Backend

class ProcessGroupRdmaccl(Backend):
    class Options(Backend.Options):
        algorithm: str
        transport: str
        @property
        def has_timeout(self) -> bool: ...
        def __init__(
            self,
            *,
            algorithm: str | None = None,
            timeout: timedelta | None = None,
            transport: str | None = None,
        ) -> None: ...

    @property
    def options(self) -> Options: ...  # type: ignore[override]
    def __init__(self, store: dist.Store, rank: int, size: int, options: Options) -> None: ...
    def describe(self) -> str: ...
