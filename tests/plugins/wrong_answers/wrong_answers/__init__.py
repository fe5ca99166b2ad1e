"""Hooks that do their work and give back something of a wrong type: what ``wrong`` says, by hook."""

from hostmem import HostMemory


def answering(hook):
    def method(self, *args):
        found = getattr(HostMemory, hook)(self, *args)
        return self.wrong.get(hook, found)

    return method


class Backend(HostMemory):
    name = "wronganswers"
    wrong = {}  # noqa: RUF012  (tests set it)

    _allocate = answering("_allocate")
    _inspect = answering("_inspect")
    _read = answering("_read")
    _set = answering("_set")
    _apply = answering("_apply")
    _launch = answering("_launch")
    _download = answering("_download")
