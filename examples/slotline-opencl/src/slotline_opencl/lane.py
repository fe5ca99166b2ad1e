"""Lane: an OpenCL queue, and what must live until it has passed."""

from __future__ import annotations

from collections import deque

import pyopencl as cl


class Lane:
    """A queue, with the events of the copies on it that touch host memory.

    pyopencl *waits* for such an event when its object is dropped, so each is kept until it has passed.
    """

    def __init__(self, queue: cl.CommandQueue) -> None:
        self.queue = queue
        self.copies: deque[cl.Event] = deque()

    def sweep(self) -> None:
        """Drop the events that have passed; those of a queue pass in order."""
        while self.copies and self.copies[0].command_execution_status <= cl.command_execution_status.COMPLETE:
            self.copies.popleft()
