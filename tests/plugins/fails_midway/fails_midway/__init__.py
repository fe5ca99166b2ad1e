"""Usable, but fails in the middle of a run: hooks raise once ``left`` calls are used up."""

from hostmem import HostMemory


class Backend(HostMemory):
    name = "midway"
    left = None
    error = RuntimeError("queue 7 is lost")

    def _count(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise self.error

    def _allocate(self, specs):
        self._count()
        return super()._allocate(specs)

    def _write(self, tensor, offset, data):
        self._count()
        super()._write(tensor, offset, data)

    def _read(self, tensor, offset, nbytes):
        self._count()
        return super()._read(tensor, offset, nbytes)
