"""Memory: ``cl_mem`` objects under made-up addresses.

OpenCL 1.2 shows no addresses, and slotline names memory by them. So each object gets a range of whole numbers of its
own, and an address leads back to the object and the offset in it.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator

import pyopencl as cl

from slotline_opencl.failures import failed, native

_CLOSED = ("WRITE_ONLY", "HOST_WRITE_ONLY", "HOST_READ_ONLY", "HOST_NO_ACCESS")
"""Flags of memory that cannot be read and written both by kernels and by the host."""
PAGE = 4096
"""Ranges begin at multiples of it, and at least one lies between two of them."""


class Memory:
    """One ``cl_mem`` object at ``base``.

    ``own``: slotline made it, and gives it back. ``read_only``: kernels must not write it.
    """

    __slots__ = ("__weakref__", "_buffer", "base", "nbytes", "own", "read_only", "space")

    def __init__(self, space: AddressSpace, base: int, buffer: cl.Buffer, nbytes: int, own: bool) -> None:
        self.space, self.base, self.nbytes, self.own = space, base, nbytes, own
        self.read_only = bool(buffer.flags & cl.mem_flags.READ_ONLY)
        self._buffer: cl.Buffer | None = buffer

    @property
    def buffer(self) -> cl.Buffer:
        """The object. ``DeviceError`` once it was given back."""
        if self._buffer is None:
            raise failed("use of memory", -38, "it was given back when the backend was closed")
        return self._buffer

    def release(self) -> None:
        """Give the object back, whoever holds a tensor over it; what is queued with it still runs.

        By dropping it: pyopencl crashes where a buffer is used after its ``release()``.
        """
        self._buffer = None


class AddressSpace:
    """The memory objects of one backend. Holds none of them alive; for several threads."""

    def __init__(self, context: cl.Context) -> None:
        self.context = context
        self._lock = threading.RLock()  # the collector may run inside
        self._next = PAGE
        self._bases: list[int] = []
        self._known: dict[int, weakref.ref[Memory]] = {}
        self._by_handle: dict[int, int] = {}
        self._gone: deque[tuple[int, int]] = deque()

    def make(self, nbytes: int) -> Memory:
        """A new memory object of at least one byte. ``DeviceError`` if the device has no room for it."""
        with native("clCreateBuffer", f"{nbytes} bytes"):
            buffer = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(nbytes, 1))
        return self._add(buffer, max(nbytes, 1), own=True)

    def of(self, buffer: cl.Buffer) -> tuple[Memory, int]:
        """The memory object of somebody else, with the offset in it: a sub-buffer lies in the one it was cut from."""
        with native("clGetMemObjectInfo"):
            if buffer.context != self.context:
                raise ValueError("the buffer belongs to another OpenCL context; make the backend with queue=...")
            whole, offset = buffer.get_info(cl.mem_info.ASSOCIATED_MEMOBJECT), 0
            if whole is None:
                whole = buffer
            else:
                offset = int(buffer.offset)
            closed = [name for name in _CLOSED if whole.flags & getattr(cl.mem_flags, name)]
            if closed:
                raise ValueError(f"the buffer was made with CL_MEM_{closed[0]}, allowed: READ_WRITE, READ_ONLY")
            handle = int(whole.int_ptr)
            with self._lock:
                self._purge()
                known = self._known.get(self._by_handle.get(handle, 0))
                memory = known() if known is not None else None
                if memory is None:
                    memory = self._add(cl.Buffer.from_int_ptr(handle, True), int(whole.size), own=False)
            return memory, offset

    def find(self, address: int) -> tuple[Memory, int]:
        """The memory object that an address lies in, and the offset in bytes. ``DeviceError`` if there is none."""
        with self._lock:
            self._purge()
            at = bisect_right(self._bases, address) - 1
            memory = self._known[self._bases[at]]() if at >= 0 else None
        if memory is None or address - memory.base >= memory.nbytes:
            raise failed("use of memory", -38, f"no memory of this backend lies at {address:#x}")
        return memory, address - memory.base

    def __iter__(self) -> Iterator[Memory]:
        """The memory objects that are alive."""
        with self._lock:
            self._purge()
            found = [ref() for ref in self._known.values()]
        return iter([memory for memory in found if memory is not None])

    def _add(self, buffer: cl.Buffer, nbytes: int, own: bool) -> Memory:
        handle = buffer.int_ptr
        with self._lock:
            self._purge()
            base = self._next
            self._next += (-(-nbytes // PAGE) + 1) * PAGE
            memory = Memory(self, base, buffer, nbytes, own)
            self._known[base] = weakref.ref(memory, self._taking_note(base, handle))
            self._by_handle[handle] = base
            insort(self._bases, base)
        return memory

    def _taking_note(self, base: int, handle: int) -> Callable[[object], None]:
        """Runs wherever the last reference is dropped, in the middle of a method here too: so it takes note only."""
        gone = self._gone
        return lambda _: gone.append((base, handle))

    def _purge(self) -> None:
        while self._gone:
            base, handle = self._gone.popleft()
            del self._known[base]
            self._bases.pop(bisect_right(self._bases, base) - 1)
            if self._by_handle.get(handle) == base:  # the driver may have given the handle to a new object since
                del self._by_handle[handle]
