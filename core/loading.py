"""Importing one backend's class and holding it to the interface (rules B4, B7)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from slotline.core.backend import Backend
from slotline.core.device import Abilities
from slotline.core.discovery import Plugin, load_target
from slotline.core.errors import BackendUnavailable
from slotline.core.hooks import Hooks


class MissingPackage(BackendUnavailable):
    """A package that the backend wants is not installed: a line in ``doctor``, not a broken plugin (B7)."""


class BrokenPlugin(BackendUnavailable):
    """The plugin fails where it should not."""


def load_backend_class(plugin: Plugin) -> type[Backend]:
    """The backend's class, checked. ``BackendUnavailable`` with the cause chained."""
    if plugin.problem:
        raise BackendUnavailable(f"backend {plugin.name!r} ({plugin.origin}): {plugin.problem}")
    try:
        found = load_target(plugin)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        kind = MissingPackage if missing and missing not in (plugin.package, "slotline") else BrokenPlugin
        raise kind(f"{who(plugin)} cannot be imported: {said(error)}") from error
    except BackendUnavailable:
        raise
    except (Exception, SystemExit) as error:
        raise BrokenPlugin(f"{who(plugin)} cannot be imported: {said(error)}") from error
    problem = interface_problem(plugin, found)
    if problem:
        raise BrokenPlugin(f"{who(plugin)}: {problem}")
    checked: type[Backend] = found
    return checked


def require_made(plugin: Plugin, made: Any) -> None:
    """``BrokenPlugin`` unless the object is whole."""
    if not isinstance(made, Backend) or not hasattr(made, "stats"):
        name = type(made).__name__
        raise BrokenPlugin(f"{who(plugin)}: {name}.__init__ must call super().__init__(**options) first")


def who(plugin: Plugin) -> str:
    return f"backend {plugin.name!r} of {plugin.origin}"


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def interface_problem(plugin: Plugin, found: Any) -> str:
    """What keeps an object from being the backend that its entry point says; empty if nothing does."""
    if not inspect.isclass(found) or not issubclass(found, Backend):
        return f"{plugin.target} is {found!r}, needed: a subclass of slotline.Backend"
    named = getattr(found, "name", None)
    wanted = plugin.entry_point.name if plugin.entry_point else plugin.name
    if named != wanted:
        return f"{found.__name__}.name is {named!r}, needed: its entry point's name {wanted!r}"
    if not isinstance(found.abilities, Abilities):
        return f"{found.__name__}.abilities is {type(found.abilities).__name__}, needed: slotline.Abilities(...)"
    if found.priority is not None and (isinstance(found.priority, bool) or not isinstance(found.priority, int)):
        return f"{found.__name__}.priority is {found.priority!r}, needed: a whole number or None"
    if found.vendor is not None and not isinstance(found.vendor, str):
        return f"{found.__name__}.vendor is {found.vendor!r}, needed: a name or None"
    count = found.device_count
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        return f"{found.__name__}.device_count is {count!r}, needed: a whole number of at least 1, or None"
    for words in ("frameworks", "vendors"):
        given = getattr(found, words)
        if not isinstance(given, tuple) or not all(isinstance(word, str) for word in given):
            return f"{found.__name__}.{words} is {given!r}, needed: a tuple of names"
    if not found.frameworks:
        return f"{found.__name__}.frameworks is empty, needed: whose tensors it takes"
    for special in ("__len__", "__bool__"):
        if hasattr(found, special):
            return f"{found.__name__} has {special}; a falsy backend is taken for a missing one, remove it"
    for hook in sorted(found.__abstractmethods__):
        return f"{found.__name__} lacks {hook}{inspect.signature(getattr(Backend, hook))}"
    for method in (*_methods(), "__init__"):
        problem = _signature_problem(found, method)
        if problem:
            return problem
    return ""


def _methods() -> list[str]:
    """Everything that a device may write: hooks, and the checked methods around them."""
    names = (n for base in (Hooks, Backend) for n in vars(base) if not n.startswith(("__", "_abc")))
    return [n for n in dict.fromkeys(names) if callable(getattr(Backend, n))]


def _signature_problem(found: type[Backend], name: str) -> str:
    """A method that cannot be called as the base class calls it."""
    wanted: inspect.Signature = inspect.signature(getattr(Backend, name))
    method: Callable[..., Any] = getattr(found, name)
    if not callable(method):
        return f"{found.__name__}.{name} is {method!r}, needed: a method {name}{wanted}"
    for kind, test in _LATER.items():
        if test(method):
            needed = f"a plain method {name}{wanted}; a call runs nothing of it"
            return f"{found.__name__}.{name} is {kind}, needed: {needed}"
    try:
        given = inspect.signature(method)
    except ValueError:
        return ""  # compiled code that tells no signature
    if _of_class(Backend, name) and not _of_class(found, name):
        return f"{found.__name__}.{name}{given} cannot be called as {name}{wanted} on the class; make it a classmethod"
    for optional in (True, False):
        called = [p for p in wanted.parameters.values() if optional or p.default is p.empty]
        positional = [None for p in called if p.kind is not p.KEYWORD_ONLY]
        keywords = {p.name: None for p in called if p.kind is p.KEYWORD_ONLY}
        try:
            given.bind(*positional, **keywords)
        except TypeError:
            return f"{found.__name__}.{name}{given} cannot be called as {name}{wanted}"
    return ""


def _of_class(owner: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(owner, name), (classmethod, staticmethod))


_LATER = {
    "a coroutine function": inspect.iscoroutinefunction,
    "an asynchronous generator": inspect.isasyncgenfunction,
    "a generator": inspect.isgeneratorfunction,
}
"""Functions whose call only makes an object."""
