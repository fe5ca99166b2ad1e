"""paddle's array namespace: the array API standard's functions that step functions use, and ours beside them (X5).

Names, arguments and results are the standard's, dtypes as NumPy 2 gives them: whole numbers of two widths meet in the
wider one, a Python number takes the other side's dtype. Only functions promote: paddle's own operators refuse int32
beside int64 and bool beside numbers, ``x += y`` makes a new tensor instead of writing into ``x`` (``x[...] = x + y``
writes), and ``//`` or ``%`` by 0 ends the process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

Tensor = Any
Axis = int | tuple[int, ...] | None

DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64")
_KINDS: dict[type, tuple[str, ...]] = {
    bool: DTYPES,
    int: tuple(d for d in DTYPES if d != "bool"),
    float: tuple(d for d in DTYPES if "float" in d),
}
_DEFAULT: dict[type, str] = {bool: "bool", int: "int64", float: "float64"}


class _Functions:
    """The functions; every public method is one name of the namespace."""

    def __init__(self, paddle: ModuleType) -> None:
        self._paddle = paddle
        self._names = {getattr(paddle, name): name for name in DTYPES}

    # -- dtypes

    def _meet(self, *values: Any) -> Any:
        """The dtype that tensors and Python numbers meet in."""
        names = {self._names[v.dtype] for v in values if isinstance(v, self._paddle.Tensor)}
        if len(names) > 1:
            found = "bfloat16" if names <= {"bfloat16", "bool"} else np.result_type(*names).name
        else:
            (found,) = names
        for value in values:
            kind = type(value)
            if kind in _KINDS and found not in _KINDS[kind]:
                found = _DEFAULT[kind]
        return getattr(self._paddle, found)

    def _joined(self, *values: Any, dtype: Any = None) -> list[Tensor]:
        dtype = dtype or self._meet(*values)
        return [self._as(v, dtype) for v in values]

    def _as(self, value: Any, dtype: Any) -> Tensor:
        if isinstance(value, self._paddle.Tensor):
            return value if value.dtype == dtype else self._paddle.cast(value, dtype)
        return self._paddle.full([], value, dtype)

    # -- making

    def asarray(self, obj: Any, dtype: Any = None, copy: bool | None = None) -> Tensor:
        if isinstance(obj, self._paddle.Tensor):
            if dtype is not None and obj.dtype != dtype:
                return self._paddle.cast(obj, dtype)
            return obj.clone() if copy else obj
        if isinstance(obj, (bool, int, float)) and dtype is None:
            dtype = getattr(self._paddle, _DEFAULT[type(obj)])
        return self._paddle.to_tensor(np.asarray(obj), dtype=dtype)

    def astype(self, x: Tensor, dtype: Any, copy: bool = True) -> Tensor:
        if x.dtype == dtype:
            return x.clone() if copy else x
        return self._paddle.cast(x, dtype)

    def arange(self, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Tensor:
        first, last = (0, start) if stop is None else (start, stop)
        return self._paddle.arange(first, last, step, dtype=dtype or self._paddle.int64)

    def empty(self, shape: Any, dtype: Any = None) -> Tensor:
        return self.full(shape, 0, dtype or self._paddle.float64)

    def zeros(self, shape: Any, dtype: Any = None) -> Tensor:
        return self.full(shape, 0, dtype or self._paddle.float64)

    def ones(self, shape: Any, dtype: Any = None) -> Tensor:
        return self.full(shape, 1, dtype or self._paddle.float64)

    def full(self, shape: Any, fill_value: Any, dtype: Any = None) -> Tensor:
        kind = getattr(self._paddle, _DEFAULT[type(fill_value)]) if dtype is None else dtype
        return self._paddle.full([shape] if isinstance(shape, int) else list(shape), fill_value, kind)

    def zeros_like(self, x: Tensor, dtype: Any = None) -> Tensor:
        return self.full(x.shape, 0, dtype or x.dtype)

    def ones_like(self, x: Tensor, dtype: Any = None) -> Tensor:
        return self.full(x.shape, 1, dtype or x.dtype)

    def full_like(self, x: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
        return self.full(x.shape, fill_value, dtype or x.dtype)

    # -- shapes

    def reshape(self, x: Tensor, shape: Sequence[int], copy: bool | None = None) -> Tensor:
        """-1 counts the rest; a tensor without cells has no rest, so paddle is given the number."""
        known = math.prod(n for n in shape if n != -1)
        whole = [(x.size // known if known else 0) if n == -1 else n for n in shape]
        found = self._paddle.reshape(x, whole)
        return found.clone() if copy else found

    def broadcast_to(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        np.broadcast_shapes(tuple(x.shape), tuple(shape))
        return self._paddle.expand(x, list(shape))

    def expand_dims(self, x: Tensor, axis: int = 0) -> Tensor:
        return self._paddle.unsqueeze(x, axis)

    def squeeze(self, x: Tensor, axis: int | tuple[int, ...]) -> Tensor:
        return self._paddle.squeeze(x, axis)

    def moveaxis(self, x: Tensor, source: Any, destination: Any) -> Tensor:
        return self._paddle.moveaxis(x, source, destination)

    def permute_dims(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return self._paddle.transpose(x, list(axes))

    def concat(self, arrays: Sequence[Tensor], axis: int | None = 0) -> Tensor:
        joined = self._joined(*arrays)
        if axis is None:
            joined, axis = [self.reshape(x, [-1]) for x in joined], 0
        if any(x.size for x in joined):
            return self._paddle.concat(joined, axis)
        shape = list(joined[0].shape)  # 3.0 joins nothing to an error
        shape[axis] = sum(x.shape[axis] for x in joined)
        return self.zeros(shape, joined[0].dtype)

    def stack(self, arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
        return self._paddle.stack(self._joined(*arrays), axis)

    # -- by element

    def where(self, condition: Tensor, x: Any, y: Any) -> Tensor:
        """One branch may be a Python number: it takes the other's dtype."""
        left, right = self._joined(x, y)
        shape = np.broadcast_shapes(tuple(condition.shape), tuple(left.shape), tuple(right.shape))
        return self._paddle.where(*(self._paddle.expand(t, shape) for t in (condition, left, right)))

    def clip(self, x: Tensor, min: Any = None, max: Any = None) -> Tensor:
        low = x if min is None else self._binary("maximum", x, min)
        return low if max is None else self._binary("minimum", low, max)

    def _binary(self, name: str, x: Any, y: Any) -> Tensor:
        left, right = self._joined(x, y)
        if left.size and right.size:
            return getattr(self._paddle, name)(left, right)
        shape = np.broadcast_shapes(tuple(left.shape), tuple(right.shape))  # 3.0 refuses some of these
        return self.zeros(shape, left.dtype if name in _ARITHMETIC else self._paddle.bool)

    # -- along axes

    def sum(self, x: Tensor, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
        wide = self._as(x, dtype or self._wide(x))
        return self._paddle.sum(wide, axis=axis, dtype=self._names[wide.dtype], keepdim=keepdims)

    def cumulative_sum(
        self, x: Tensor, axis: int | None = None, dtype: Any = None, include_initial: bool = False
    ) -> Tensor:
        axis = 0 if axis is None else axis % x.ndim
        wide = self._as(x, dtype or self._wide(x))
        total = self._paddle.cumsum(wide, axis, dtype=self._names[wide.dtype])
        if not include_initial:
            return total
        first = self.zeros([1 if i == axis else n for i, n in enumerate(x.shape)], wide.dtype)
        return self.concat([first, total], axis)

    def _wide(self, x: Tensor) -> Any:
        """What a sum counts in: whole numbers in int64, as NumPy."""
        return x.dtype if "float" in self._names[x.dtype] else self._paddle.int64

    def any(self, x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return self._paddle.any(self._as(x, self._paddle.bool), axis=axis, keepdim=keepdims)

    def all(self, x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return self._paddle.all(self._as(x, self._paddle.bool), axis=axis, keepdim=keepdims)

    def min(self, x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return self._extreme("min", x, axis, keepdims, x.dtype)

    def max(self, x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return self._extreme("max", x, axis, keepdims, x.dtype)

    def argmax(self, x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The first of the greatest; masks too, which paddle refuses."""
        numbers = self._as(x, self._paddle.int32) if x.dtype == self._paddle.bool else x
        return self._extreme("argmax", numbers, axis, keepdims, self._paddle.int64)

    def _extreme(self, name: str, x: Tensor, axis: Axis, keepdims: bool, dtype: Any) -> Tensor:
        if isinstance(axis, int) and not x.size and x.shape[axis]:  # no rows: 3.0 refuses it
            at = axis % x.ndim
            return self.zeros([*x.shape[:at], *[1] * keepdims, *x.shape[at + 1 :]], dtype)
        return getattr(self._paddle, name)(x, axis=axis, keepdim=keepdims)

    # -- by index

    def take(self, x: Tensor, indices: Tensor, axis: int | None = None) -> Tensor:
        axis = 0 if axis is None else axis % x.ndim
        if not indices.size:  # of a row count of 1 it would make the wrong shape
            return self.zeros([0 if i == axis else n for i, n in enumerate(x.shape)], x.dtype)
        return self._carried(lambda carrier: self._paddle.index_select(carrier, indices, axis), x)

    def take_along(self, x: Tensor, index: Tensor, axis: int) -> Tensor:
        """``x`` at ``index`` along ``axis``. A new tensor."""
        return self._carried(lambda carrier: self._paddle.take_along_axis(carrier, index, axis, broadcast=False), x)

    def _carried(self, move: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """``move(x)`` by a dtype for which paddle has the kernel; every bit arrives."""
        name = self._names[x.dtype]
        if name in ("bool", "int8", "uint8", "int16"):
            return self._as(move(self._as(x, self._paddle.int32)), x.dtype)
        if name == "float16":
            return move(x.view("bfloat16")).view("float16")
        return move(x)

    # Writes by index go by ``index_put_``: ``x[index] = values`` writes outside of ``x`` where ``x`` is a view that
    # does not begin where its tensor does (3.3.1).

    def scatter_rows(self, array: Tensor, index: Tensor, values: Tensor, mask: Tensor) -> None:
        """In place: ``array[s, index[s, j]] = values[s, j]`` where ``mask[s, j]``."""
        if not index.size:
            return
        rows = self.broadcast_to(self.arange(array.shape[0], dtype=index.dtype)[:, None], index.shape)
        old = self.take_along(array, index, 1)
        array.index_put_((rows, index), self._paddle.where(mask, self._as(values, array.dtype), old))

    def searchsorted(self, sorted_1d: Tensor, values: Tensor, side: str = "left") -> Tensor:
        """Where ``values`` belong in an ascending vector, int64."""
        vector, wanted = self._joined(sorted_1d, values)
        return self._paddle.searchsorted(vector, wanted, right=side == "right")

    def put_rows(self, array: Tensor, rows: Tensor, values: Tensor, axis: int) -> None:
        """In place: row ``rows[i]`` along ``axis`` becomes row ``i`` of ``values``."""
        if rows.size and array.size:
            rows_first = self.moveaxis(array, axis, 0)
            rows_first.index_put_((rows,), self.moveaxis(self._as(values, array.dtype), axis, 0))


_ARITHMETIC = ("add", "subtract", "multiply", "minimum", "maximum")
_BINARY = {
    **{name: name for name in _ARITHMETIC},
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "less_than",
    "less_equal": "less_equal",
    "greater": "greater_than",
    "greater_equal": "greater_equal",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
}
"""The standard's functions of two tensors, with paddle's names."""


def make(paddle: ModuleType) -> Any:
    """The namespace, over the module ``paddle``."""
    functions = _Functions(paddle)

    def binary(name: str) -> Callable[[Any, Any], Tensor]:
        return lambda x, y: functions._binary(name, x, y)

    names: dict[str, Any] = {name: getattr(paddle, name) for name in DTYPES}
    names |= {name: getattr(functions, name) for name in dir(functions) if not name.startswith("_")}
    names |= {name: binary(theirs) for name, theirs in _BINARY.items()}
    names |= {"logical_not": paddle.logical_not, "abs": paddle.abs, "negative": paddle.neg}
    return SimpleNamespace(**names)
