"""The two kernels in OpenCL C 1.2, without any extension: the packed apply, and copies between views.

Cells are moved by their width; floats are converted by their bits, so that a device without float16, bfloat16 or
float64, or one that flushes small numbers to zero, gives the same bytes as every other (rule B8).
"""

from __future__ import annotations

import functools
import threading

import pyopencl as cl

from slotline.device import CELLS
from slotline_opencl.failures import failed, native

MEMORIES = 16
"""Memory objects that one launch of the apply writes into."""
AXES = 8
"""Axes that one launch of a copy walks over."""
THREADS = 64
"""Of a work-group. One size for all launches: PoCL compiles anew for each."""

_COMMON = """
// In uchar, the smallest cell: a pointer to a wider type is made where its width is known.
inline ulong load(__global const uchar* at, int width) {
  switch (width) {
    case 1: return *at;
    case 2: return *(__global const ushort*)at;
    case 4: return *(__global const uint*)at;
    default: return *(__global const ulong*)at;
  }
}

inline void store(__global uchar* at, int width, ulong bits) {
  switch (width) {
    case 1: *at = (uchar)bits; break;
    case 2: *(__global ushort*)at = (ushort)bits; break;
    case 4: *(__global uint*)at = (uint)bits; break;
    default: *(__global ulong*)at = bits; break;
  }
}
"""

_NAMES = [f"m{i}" for i in range(MEMORIES)]

_APPLY = f"""
// One work-group handles one entry of the work list: {CELLS} cells of rows x extent. The format: docs/packet.md, with
// an offset in place of the address, since a kernel sees memory only through its arguments. `owners` says for each
// field which memory object it lies in; this launch has those from `first` on.
__kernel void slotline_apply(__global const uchar* ring, long image_at, long numbers_at, long payload_at, long work_at,
                             __global const long* table, __global const int* owners, int first,
                             {", ".join(f"__global uchar* {n}" for n in _NAMES)}) {{
  __global const uchar* image = ring + image_at;
  __global const int* work = (__global const int*)(image + work_at) + 4 * (long)get_group_id(0);
  __global const uint* segment = (__global const uint*)(image + 40) + 8 * (long)work[0];
  const int owner = owners[segment[0]] - first;
  if (owner < 0 || owner >= {MEMORIES}) return;
  __global uchar* memories[{MEMORIES}] = {{{", ".join(_NAMES)}}};
  __global uchar* memory = memories[owner];
  const uint kind = segment[1] & 0xffff, width = segment[1] >> 16, rows = segment[2];
  __global const uint* numbers = (__global const uint*)(image + numbers_at) + segment[3];
  const ulong last = segment[6] | (ulong)segment[7] << 32;
  __global const uchar* payload = image + payload_at + last;
  __global const long* to = table + 8 * (long)segment[0];
  const long extent = work[2], all = rows * extent;
  for (uint i = get_local_id(0); i < {CELLS}; i += get_local_size(0)) {{
    const long flat = (long)work[1] * {CELLS} + i;
    if (flat >= all) return;
    const long row = flat / extent, j = flat % extent;
    long cell = segment[4] + j, from = -1;  // from: the payload's cell; below 0, a fill
    ulong bits = kind == 0 ? last : (ulong)to[7];
    if (kind == 1) {{
      from = flat;
    }} else if (kind == 2) {{
      const long begin = numbers[2 * (long)rows + row];
      if (begin + j >= numbers[4 * (long)rows + row]) continue;  // behind the row's tail
      cell = begin + j;
      if (j < numbers[3 * (long)rows + row]) from = numbers[(long)rows + row] + j;
    }}
    if (from >= 0) bits = load(payload + from * width, width);
    store(memory + to[0] + numbers[row] * to[1] + cell / (to[3] * to[5]) * to[2] + cell / to[5] % to[3] * to[4]
          + cell % to[5] * to[6], width, bits);
  }}
}}
"""

_COPY = f"""
// A format: bytes of a cell, kind (0 unsigned, 1 signed, 2 float), bits of the exponent, bits of the mantissa.
ulong converted(ulong bits, int4 from, int4 to) {{
  ulong sign = 0, m;
  int e = 0;
  const ulong infinity = ((1UL << to.z) - 1) << to.w;
  if (from.y == 1) {{  // extend the sign
    const int unused = 64 - 8 * from.x;
    bits = (ulong)((long)(bits << unused) >> unused);
  }}
  if (to.y != 2) return bits;
  if (from.y != 2) {{
    sign = from.y == 1 ? bits >> 63 : 0;
    m = sign ? 0 - bits : bits;
  }} else {{
    const int most = (1 << from.z) - 1, biased = (int)(bits >> from.w) & most;
    sign = bits >> (from.z + from.w) & 1;
    m = bits & ((1UL << from.w) - 1);
    if (biased == most) {{
      ulong payload = from.w > to.w ? m >> (from.w - to.w) : m << (to.w - from.w);
      // NaN as NumPy and ml_dtypes have it on x86: bfloat16 knows one; else its bits stay, and some become quiet.
      const ulong quiet = 1UL << (to.w - 1);
      if (m && (from.w == 7 ? to.x != 4 : from.x >= 4 && to.x >= 4)) payload |= quiet;
      if (m) payload = to.w == 7 || (from.w == 7 && to.w == 10) ? quiet : max(payload, 1UL);
      return sign << (to.z + to.w) | infinity | payload;
    }}
    m |= biased ? 1UL << from.w : 0;
    e = max(biased, 1) - (most >> 1) - from.w;
  }}
  if (m == 0) return sign << (to.z + to.w);
  // The value is m * 2^e. Its last bit that is kept has the exponent `lowest`; round to nearest, ties to even.
  const int bias = (1 << (to.z - 1)) - 1;
  const int lowest = max(e + 63 - (int)clz(m) - to.w, 1 - bias - to.w), drop = lowest - e;
  if (drop <= 0) {{
    m <<= -drop;
  }} else if (drop > 63) {{
    m = 0;
  }} else {{
    const ulong rest = m & ((1UL << drop) - 1), half_way = 1UL << (drop - 1);
    m >>= drop;
    m += rest > half_way || (rest == half_way && (m & 1));
  }}
  // A carry out of the mantissa adds one to the exponent, as it should.
  const ulong one = 1UL << to.w, out = m < one ? m : ((ulong)(lowest + to.w + bias) << to.w) + (m - one);
  return sign << (to.z + to.w) | min(out, infinity);
}}

// into[...] = out_of[...] over `rank` axes, the last the fastest; steps and offsets in bytes.
__kernel void slotline_copy(__global uchar* into, long to_at, int4 to, __global const uchar* out_of, long from_at,
                            int4 from, int same, long cells, int rank, long{AXES} sizes, long{AXES} to_steps,
                            long{AXES} from_steps) {{
  long n[{AXES}], a[{AXES}], b[{AXES}];
  vstore{AXES}(sizes, 0, n);
  vstore{AXES}(to_steps, 0, a);
  vstore{AXES}(from_steps, 0, b);
  for (long flat = get_global_id(0); flat < cells; flat += get_global_size(0)) {{
    long rest = flat, x = to_at, y = from_at;
    for (int axis = rank - 1; axis >= 0; axis--) {{
      const long i = rest % n[axis];
      rest /= n[axis];
      x += i * a[axis];
      y += i * b[axis];
    }}
    const ulong bits = load(out_of + y, from.x);
    store(into + x, to.x, same ? bits : converted(bits, from, to));
  }}
}}
"""

SOURCE = _COMMON + _APPLY + _COPY
_OPTIONS = ["-cl-std=CL1.2", "-w"]


class Kernels:
    """The kernels compiled for one context. ``DeviceError`` with the compiler's log where it refuses them."""

    def __init__(self, context: cl.Context, device: cl.Device) -> None:
        try:
            self._program = cl.Program(context, SOURCE).build(_OPTIONS)
        except cl.Error as error:
            raise failed("clBuildProgram", error.code, str(error).strip()) from error
        self.lock = threading.Lock()
        """Held from the setting of a kernel's arguments to its launch."""
        with native("clGetKernelWorkGroupInfo"):
            kind = cl.kernel_work_group_info.WORK_GROUP_SIZE
            self.threads = min(THREADS, *(k.get_work_group_info(kind, device) for k in (self.apply(), self.copy)))

    def apply(self) -> cl.Kernel:
        """A new apply kernel, with arguments of its own."""
        with native("clCreateKernel"):
            return cl.Kernel(self._program, "slotline_apply")

    @functools.cached_property
    def copy(self) -> cl.Kernel:
        with native("clCreateKernel"):
            return cl.Kernel(self._program, "slotline_copy")
