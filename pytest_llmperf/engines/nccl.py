"""NCCL's environment variables: ``{"proto": "LL"}`` becomes ``{"NCCL_PROTO": "LL"}``, and a typing error is an error.

Names are those of NCCL's user guide ("Environment Variables") up to 2.28, with the ones that its sources read besides
and the few that older releases had. A variable that is newer than this table goes into ``env={"NCCL_...": ...}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pytest_llmperf.errors import ConfigError, did_you_mean

PREFIX = "NCCL_"

#: Names without the prefix, by what they act on.
_TOPICS: Mapping[str, str] = {
    "choice of algorithm, channels, buffers": """
        ALGO PROTO BUFFSIZE NTHREADS MAX_NCHANNELS MIN_NCHANNELS MAX_CTAS MIN_CTAS MAX_P2P_NCHANNELS
        MIN_P2P_NCHANNELS NCHANNELS_PER_NET_PEER UNPACK_DOUBLE_NCHANNELS LL_BUFFSIZE LL128_BUFFSIZE
        LL128_NTHREADS LL128_C2C CHUNK_SIZE THREAD_THRESHOLDS CGA_CLUSTER_SIZE CTA_POLICY NET_OVERHEAD
        ALLGATHERV_ENABLE PAT_ENABLE WORK_FIFO_BYTES WORK_ARGS_BYTES GRAPH_FILE GRAPH_DUMP_FILE
        GRAPH_DUMP_FILE_RANK TUNER_PLUGIN TUNER_CONFIG_FILE L1_SHARED_MEMORY_CARVEOUT SINGLE_RING_THRESHOLD
        LL_THRESHOLD TREE_THRESHOLD RINGS MAX_NRINGS MIN_NRINGS
    """,
    "between the GPUs of one host": """
        P2P_DISABLE P2P_LEVEL P2P_DIRECT_DISABLE P2P_READ_ENABLE P2P_USE_CUDA_MEMCPY P2P_LL_THRESHOLD
        P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_NET_CHUNKSIZE P2P_SCHEDULE_GROUP_SIZE P2P_MAX_PEERS
        P2P_EPOCH_ENABLE P2P_PER_CHANNEL_NET_BW P2P_PXN_LEVEL IGNORE_DISABLED_P2P ALLOC_P2P_NET_LL_BUFFERS
        SHM_DISABLE SHM_LOCALITY SHM_USE_CUDA_MEMCPY SHM_MEMCPY_MODE NVB_DISABLE NVB_PRECONNECT NVLS_ENABLE
        NVLS_NCHANNELS NVLS_CHUNKSIZE NVLSTREE_MAX_CHUNKSIZE NVLINK_UTIL_CENTRIC_SCHED_ENABLE CUMEM_ENABLE
        CUMEM_HOST_ENABLE PXN_DISABLE PXN_C2C MNNVL_ENABLE MNNVL_UUID MNNVL_CLIQUE_ID MNNVL_CROSS_CLIQUE
        MNNVL_RAIL_PER_HOST MNNVL_SCATTER_NETS_ENABLE MULTI_RANK_GPU_ENABLE
    """,
    "symmetric memory, device API, registration": """
        WIN_ENABLE WIN_STRIDE SYM_KERNEL SYM_CTAS SYM_CE_THRESHOLD SYM_GIN_KERNELS_ENABLE SYM_NOWIN_ENABLE
        SYM_TMA_ENABLE SYM_REUSE_SYSMEM_HANDLES SYM_RS_GIN_CHUNK_SIZE DEV_API_JIT LSA_TEAM_SIZE GIN_ENABLE
        GIN_TYPE GIN_PLUGIN GIN_IB_TC GIN_NCONNECTIONS GIN_PROXY_QUEUE_SIZE GIN_ERROR_QUERY_SEC
        GIN_GDAKI_QP_DEPTH GIN_GDAKI_NIC_HANDLER GIN_GDAKI_MAX_DEST_RD_ATOMIC GIN_GDAKI_MAX_QP_RD_ATOMIC
        GDAKI_USE_RELIABLE_DB LOCAL_REGISTER GRAPH_REGISTER LEGACY_CUDA_REGISTER ELASTIC_BUFFER_REGISTER
        MULTI_SEGMENT_REGISTER SINGLE_PROC_MEM_REG_ENABLE SHADOW_MEMPOOL_MAX_SIZE DISABLE_MEM_MANAGER
        RMA_DISABLE RMA_PLUGIN RMA_PROXY_QUEUE_SIZE NUM_RMA_CTX
    """,
    "networks": """
        NET NET_PLUGIN NET_GDR_LEVEL NET_GDR_READ NET_GDR_C2C NET_GDR_MLOPART NET_SHARED_BUFFERS
        NET_SHARED_COMMS NET_MERGE_LEVEL NET_MERGE_POLICY NET_FORCE_MERGE NET_FORCE_FLUSH NET_DISABLE_INTRA
        NET_OPTIONAL_RECV_COMPLETION NETDEVS_POLICY IGNORE_NET_MISMATCH CROSS_NIC SOCKET_IFNAME SOCKET_FAMILY
        SOCKET_NTHREADS NSOCKS_PERTHREAD SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SOCKET_POLL_TIMEOUT_MSEC
        SOCKET_MIN_TASKSIZE SOCKET_INLINE SOCKET_RCVBUF SOCKET_SNDBUF SOCKET_MAGIC OOB_NET_ENABLE
        OOB_NET_IFNAME COMM_ID HOSTID IB_DISABLE IB_HCA IB_TIMEOUT IB_RETRY_CNT IB_GID_INDEX IB_ADDR_FAMILY
        IB_ADDR_RANGE IB_ROCE_VERSION_NUM IB_SL IB_TC IB_FIFO_TC IB_PKEY IB_AR_THRESHOLD IB_ADAPTIVE_ROUTING
        IB_QPS_PER_CONNECTION IB_SPLIT_DATA_ON_QPS IB_PCI_RELAXED_ORDERING IB_USE_INLINE IB_ECE_ENABLE
        IB_MERGE_NICS IB_MERGE_VFS IB_DATA_DIRECT IB_DEVICE_PCI_ORDER IB_RETURN_ASYNC_EVENTS IB_OOO_RQ
        IB_QUERY_PORT_SPEED IB_PREPOST_RECEIVE_WORK_REQUESTS IB_RECEIVER_SIDE_MATCHING_SCHEME
        IB_ROUTABLE_FLID_GID_INDEX IB_SUBNET_AWARE_ROUTING IB_SUBNET_PREFIX_LEN IB_WARN_RAIL_LOCAL
        IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC IB_RESILIENCY_PORT_FAILOVER
        IB_RESILIENCY_PORT_RECOVERY IB_CUDA_SUPPORT IB_GDR_LEVEL IBVERBS_LIB DMABUF_ENABLE GDR_FLUSH_DISABLE
        GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE COLLNET_ENABLE
        COLLNET_NODE_THRESHOLD IGNORE_COLLNET_MISMATCH
    """,
    "communicators, launching, CUDA": """
        COMM_BLOCKING COMM_SPLIT_SHARE_RESOURCES COMM_SHRINK_SHARE_RESOURCES RUNTIME_CONNECT
        CONNECT_ROUND_MAX_PEERS REPORT_CONNECT_PROGRESS LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL
        GROUP_CUDA_STREAM GRAPH_MIXING_SUPPORT GRAPH_HELPER_DISABLE GRAPH_STREAM_ORDERING MEM_SYNC_DOMAIN
        SET_STACK_SIZE SET_CPU_STACK_SIZE SET_THREAD_NAME IGNORE_CPU_AFFINITY PROXY_CPUSET
        PROXY_APPEND_BATCH_SIZE PROGRESS_APPENDOP_FREQ IPC_USE_ABSTRACT_SOCKET UID_STAGGER_RATE
        UID_STAGGER_THRESHOLD TOPO_FILE TOPO_SPLIT_MLOPART MLOPART_RDMA_ENABLE CONF_FILE ENV_PLUGIN
    """,
    "looking inside": """
        DEBUG DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS WARN_ENABLE_DEBUG_INFO
        TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK CHECK_MODE CHECK_POINTERS CHECKS_DISABLE PROFILER_PLUGIN
        PROFILE_EVENT_MASK NVTX_DISABLE RAS_ENABLE RAS_ADDR RAS_TIMEOUT_FACTOR PROXY_DUMP_SIGNAL
        RMA_PROXY_DUMP_SIGNAL ENABLE_VERSION_CHECK
    """,
}
VARIABLES = frozenset(name for names in _TOPICS.values() for name in names.split())

_PATHS = frozenset({"LOC", "NVL", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"})
#: Closed sets of values, compared without regard to case; a number (the older notation of paths) always passes.
_CHOICES: Mapping[str, frozenset[str]] = {
    "PROTO": frozenset({"LL", "LL128", "SIMPLE"}),
    "ALGO": frozenset({"TREE", "RING", "COLLNET", "COLLNETDIRECT", "COLLNETCHAIN", "NVLS", "NVLSTREE", "PAT"}),
    "P2P_LEVEL": _PATHS,
    "NET_GDR_LEVEL": _PATHS,
    "DEBUG": frozenset({"VERSION", "WARN", "INFO", "ABORT", "TRACE"}),
}
_PLAIN_LIST = re.compile(r"\^?\w+(,\w+)*")


def variables(mapping: Mapping[str, Any], where: str) -> dict[str, str]:
    """Full names and text values for the environment of a server.

    Names may be in either case, with or without ``NCCL_``; booleans become ``1`` and ``0``, numbers their text.
    ``where`` names the place of the declaration in messages. Raises ConfigError for a name or a value that NCCL does
    not know, and for a name given twice.
    """
    out: dict[str, str] = {}
    for given, value in mapping.items():
        name = str(given).upper().removeprefix(PREFIX)
        if name not in VARIABLES:
            raise ConfigError(
                f"{where}: nccl={{{given!r}: ...}} is not a variable of NCCL{_near(str(given), VARIABLES)}. "
                f"One that is newer than this plugin goes into env={{'{PREFIX}{name}': ...}}"
            )
        full = PREFIX + name
        if full in out:
            raise ConfigError(f"{where}: nccl names {full} twice; keep one")
        out[full] = _text(given, name, value, where)
    return out


def _text(given: str, name: str, value: Any, where: str) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: nccl={{{given!r}: {value!r}}} must be a text, a whole number or a boolean")
    text = value.strip()
    choices = _CHOICES.get(name)
    # per-function forms ("allreduce:tree;broadcast:ring") are left to NCCL, whose versions differ in them
    if choices and _PLAIN_LIST.fullmatch(text):
        for part in text.lstrip("^").split(","):
            if not part.isdecimal() and part.upper() not in choices:
                raise ConfigError(
                    f"{where}: nccl={{{given!r}: {value!r}}}: {part!r} is not one of {', '.join(sorted(choices))}"
                    f"{_near(part, choices)}"
                )
    return text


def _near(given: str, known: frozenset[str]) -> str:
    """In the case in which it was given."""
    name = given.upper().removeprefix(PREFIX)
    return did_you_mean(name.lower(), map(str.lower, known)) if given.islower() else did_you_mean(name, known)
