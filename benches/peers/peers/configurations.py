"""How each library is started: the configurations that were found to win somewhere on a host with few cores.

A configuration is `library/variant`. `crowded` says when it is of use: with more ranks than cores, without, or both."""
import dataclasses
import os

from .install import WORK

# Temporary buffers stay mapped: without this, calls of 64 MiB and more take up to 2.6 times as long in the peers.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
# What the user has set for a library would change what is compared.
FOREIGN = ("I_MPI_", "OMPI_", "PRTE_", "PMIX_", "MPIR_", "FI_", "CCL_", "UCC_", "UCX_", "RDMACCL_", "LD_LIBRARY_PATH", "LD_PRELOAD")

OURS = "rdmaccl"


@dataclasses.dataclass(frozen=True)
class Configuration:
    library: str
    variant: str
    launch: object
    """From the number of ranks and whether they are more than the cores, to the words before the driver's arguments."""
    settings: tuple = ()
    arguments: tuple = ()
    crowded: object = None
    """True: only with more ranks than cores. False: only without. None: always."""

    @property
    def name(self):
        return f"{self.library}/{self.variant}"

    def fits(self, ranks):
        return self.crowded in (None, ranks > os.cpu_count())

    def command(self, ranks):
        """The words of the command, up to the cells, and its environment."""
        crowded = ranks > os.cpu_count()
        words, settings = self.launch(ranks, crowded)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
        return [*words, *self.arguments], {**kept, **MALLOC, **settings, **dict(self.settings)}


def driver(name):
    return str(WORK / "bin" / name)


def open_mpi(*options):
    def launch(ranks, crowded):
        words = [str(WORK / "openmpi/bin/mpirun"), "--allow-run-as-root", "-n", str(ranks)]
        if crowded:
            words += "--map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1".split()
        else:
            words += ["--bind-to", "core"]
        return [*words, *" ".join(options).split(), driver("openmpi")], {}

    return launch


def mpich(ranks, crowded):
    words = [str(WORK / "mpich/bin/mpiexec"), "-n", str(ranks)]
    bind = [] if crowded else ["-bind-to", "core"]
    return [*words, *bind, driver("mpich")], {"MPIR_CVAR_POSIX_POLL_FREQUENCY": "1"} if crowded else {}


def intel_with(name):
    def launch(ranks, crowded):
        settings = {"I_MPI_ROOT": str(WORK / "intel"), "I_MPI_FABRICS": "shm", "I_MPI_HYDRA_BOOTSTRAP": "fork"}
        if crowded:
            settings |= {"I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "2"}
        return [str(WORK / "intel/bin/mpiexec.hydra"), "-n", str(ranks), driver(name)], settings

    return launch


def oneccl(ranks, crowded):
    words, settings = intel_with("oneccl")(ranks, crowded)
    settings |= {"CCL_ATL_TRANSPORT": "mpi", "CCL_LOG_LEVEL": "error", "CCL_KVS_IFACE": "lo", "CCL_WORKER_OFFLOAD": "0"}
    if crowded:
        settings |= {"CCL_YIELD": "sched_yield"}
    return words, settings


def forked(name):
    """A driver that starts its own ranks."""
    return lambda ranks, crowded: ([driver(name), "-n", str(ranks), *([] if crowded else ["-p"])], {})


def settings(**values):
    return tuple(values.items())


UCX = "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=self,posix"
COLL_SM = "--mca coll_sm_priority 100 --mca coll_sm_fragment_size 131072"

NO_CMA = settings(MPIR_CVAR_CH4_CMA_ENABLE="0")
CELLS_64K = settings(MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_CELL_SIZE="65536", MPIR_CVAR_CH4_PACK_BUFFER_SIZE="66000")
RING_128K = settings(
    MPIR_CVAR_REDUCE_INTRANODE_BUFFER_TOTAL_SIZE="131072", MPIR_CVAR_BCAST_INTRANODE_BUFFER_TOTAL_SIZE="131072"
)
SCATTER_GATHER = settings(
    MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM="reduce_scatter_allgather",
    MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM="mpir",
    MPIR_CVAR_ALLREDUCE_COMPOSITION="3",
)
# MPICH's default for one host does not yield: with more ranks than cores 8 bytes take 8 ms. This does.
YIELDING = settings(
    MPIR_CVAR_POLLS_BEFORE_YIELD="1",
    MPIR_CVAR_ALLREDUCE_COMPOSITION="2",
    MPIR_CVAR_BARRIER_COMPOSITION="2",
    MPIR_CVAR_BCAST_COMPOSITION="3",
    MPIR_CVAR_REDUCE_COMPOSITION="3",
)

INTEL_NO_CMA = settings(I_MPI_SHM_CMA="0")
INTEL_RING = settings(I_MPI_ADJUST_ALLREDUCE="8")
INTEL_HEAP = settings(I_MPI_SHM_HEAP="1", I_MPI_SHM_HEAP_VSIZE="8192", I_MPI_SHM_HEAP_CSIZE="1024")

UCC_NO_CMA = settings(UCX_TLS="self,posix")

PEERS = [
    Configuration("openmpi", "default", open_mpi()),
    Configuration("openmpi", "coll-sm", open_mpi(COLL_SM)),
    Configuration("openmpi", "ucx", open_mpi(UCX)),
    Configuration("openmpi", "ucx-cma", open_mpi(UCX + ",cma"), crowded=True),
    Configuration("mpich", "default", mpich, crowded=False),
    Configuration("mpich", "ring-128k", mpich, RING_128K, crowded=False),
    Configuration("mpich", "cells-64k", mpich, SCATTER_GATHER + CELLS_64K + NO_CMA, crowded=False),
    Configuration("mpich", "yielding", mpich, YIELDING, crowded=True),
    Configuration("mpich", "yielding-cells-64k", mpich, YIELDING + CELLS_64K + NO_CMA, crowded=True),
    Configuration("intel", "default", intel_with("intel")),
    Configuration("intel", "no-cma", intel_with("intel"), INTEL_NO_CMA),
    Configuration("intel", "no-cma-ring", intel_with("intel"), INTEL_NO_CMA + INTEL_RING, crowded=False),
    Configuration("intel", "heap-ring", intel_with("intel"), INTEL_HEAP + INTEL_RING, ("-a",), crowded=False),
    Configuration("intel", "heap", intel_with("intel"), INTEL_HEAP, ("-a",), crowded=True),
    Configuration("oneccl", "ring", oneccl, settings(CCL_ALLREDUCE="ring", I_MPI_SHM_CMA="0"), crowded=False),
    Configuration("oneccl", "nreduce", oneccl, settings(CCL_ALLREDUCE="nreduce", I_MPI_SHM_CMA="0"), crowded=False),
    Configuration("oneccl", "offload", oneccl, settings(CCL_WORKER_OFFLOAD="1"), crowded=True),
    Configuration("ucc", "default", forked("ucc")),
    Configuration("ucc", "no-cma", forked("ucc"), UCC_NO_CMA),
    Configuration("ucc", "no-cma-persistent", forked("ucc"), UCC_NO_CMA + settings(PEERS_PERSISTENT="1")),
]

ORDINARY = Configuration(OURS, "malloc", forked("rdmaccl"))
PRELOADED = Configuration(OURS, "heap", forked("rdmaccl"), settings(LD_PRELOAD=str(WORK / "ours/lib/librdmaccl_heap.so")))
"""The same program, whose `malloc` is the heap's."""
MAPPED = Configuration(OURS, "cclMemAlloc", forked("rdmaccl"), (), ("-a",))
OUR_CONFIGURATIONS = [ORDINARY, PRELOADED, MAPPED]
LENT = {c.name for c in PEERS if "-a" in c.arguments}
"""The peers' configurations whose buffers are the library's, and mapped by all ranks."""
LIBRARIES = list(dict.fromkeys(c.library for c in PEERS))
