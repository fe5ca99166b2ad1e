"""slotline: puts the tasks of an LLM engine's scheduler into its device buffers, as one transaction and one packet."""

import typing as _typing
from importlib.metadata import PackageNotFoundError, version

from slotline.core.backend import Abilities, Backend, Download, Event, Probe, TensorInfo
from slotline.core.batch import SlotBatch
from slotline.core.commit import commit_step
from slotline.core.config import BatchConfig
from slotline.core.derived import Difference
from slotline.core.draft_step import Draft, prepare_draft
from slotline.core.drafts import commit_drafts
from slotline.core.errors import (
    BackendUnavailable,
    ConfigError,
    DeviceError,
    Fault,
    LayoutError,
    PacketError,
    SlotlineError,
    TaskError,
)
from slotline.core.fetch import Output
from slotline.core.field import KEEP, Column, Extra, Field, column, extra
from slotline.core.handover import Handover, export_handover
from slotline.core.insert import InsertReceipt, insert_tasks, validate
from slotline.core.layout import BufferLayout
from slotline.core.live import async_set_value
from slotline.core.mtp import Verified, mtp_next_tokens, verify_greedy
from slotline.core.packet import Packet
from slotline.core.padding import pad_stop_sequences
from slotline.core.peer import Peer, check_peer
from slotline.core.quantities import Ended
from slotline.core.recording import record_batch as record
from slotline.core.registry import BackendInfo, list_backends, load_backend
from slotline.core.sampling import SamplingParams
from slotline.core.side import SideTable
from slotline.core.standard import mtp_layout, target_layout
from slotline.core.stats import Stats
from slotline.core.step import Packed, Step, prepare_step
from slotline.core.stop import FinishReason, StopMatch, match_stop
from slotline.core.tasks import AbortTask, DecodeTask, FinishTask, PreemptTask, PrefillTask, Request
from slotline.core.ticket import Ticket

if _typing.TYPE_CHECKING:
    from slotline import testing as testing
else:

    def __getattr__(name: str) -> _typing.Any:
        """``slotline.testing``, imported when it is asked for: engines do not need it."""
        if name == "testing":
            from importlib import import_module

            return import_module("slotline.testing")
        raise AttributeError(f"module 'slotline' has no attribute {name!r}")


try:
    __version__ = version("slotline")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "unknown"

__all__ = [
    "KEEP",
    "Abilities",
    "AbortTask",
    "Backend",
    "BackendInfo",
    "BackendUnavailable",
    "BatchConfig",
    "BufferLayout",
    "Column",
    "ConfigError",
    "DecodeTask",
    "DeviceError",
    "Difference",
    "Download",
    "Draft",
    "Ended",
    "Event",
    "Extra",
    "Fault",
    "Field",
    "FinishReason",
    "FinishTask",
    "Handover",
    "InsertReceipt",
    "LayoutError",
    "Output",
    "Packed",
    "Packet",
    "PacketError",
    "Peer",
    "PreemptTask",
    "PrefillTask",
    "Probe",
    "Request",
    "SamplingParams",
    "SideTable",
    "SlotBatch",
    "SlotlineError",
    "Stats",
    "Step",
    "StopMatch",
    "TaskError",
    "TensorInfo",
    "Ticket",
    "Verified",
    "__version__",
    "async_set_value",
    "check_peer",
    "column",
    "commit_drafts",
    "commit_step",
    "export_handover",
    "extra",
    "insert_tasks",
    "list_backends",
    "load_backend",
    "match_stop",
    "mtp_layout",
    "mtp_next_tokens",
    "pad_stop_sequences",
    "prepare_draft",
    "prepare_step",
    "record",
    "target_layout",
    "validate",
    "verify_greedy",
]
