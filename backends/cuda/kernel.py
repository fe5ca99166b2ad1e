"""The apply kernel in CUDA C, for where Triton cannot run. The same work as ``shared.triton_kernel``."""

from slotline.core.image import CELLS

THREADS = 256
NAME = "slotline_apply"

SOURCE = f"""
#define CELLS {CELLS}
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// One block handles one entry of the work list: CELLS cells of rows x extent. The format: docs/packet.md.
extern "C" __global__ void {NAME}(const unsigned char* image, const i64* table,
                                         i64 numbers_at, i64 payload_at, i64 work_at) {{
  const int* work = (const int*)(image + work_at) + 4 * (i64)blockIdx.x;
  const u32* segment = (const u32*)(image + 40) + 8 * (i64)work[0];
  const u32 kind = segment[1] & 0xffff, width = segment[1] >> 16, rows = segment[2];
  const u32* numbers = (const u32*)(image + numbers_at) + segment[3];
  const u64 last = segment[6] | (u64)segment[7] << 32;
  const unsigned char* payload = image + payload_at + last;
  const i64* to = table + 8 * (i64)segment[0];
  const i64 extent = work[2], all = rows * extent;
  for (u32 i = threadIdx.x; i < CELLS; i += blockDim.x) {{
    const i64 flat = (i64)work[1] * CELLS + i;
    if (flat >= all) return;
    const i64 row = flat / extent, j = flat % extent;
    i64 cell = segment[4] + j, from = -1;  // from: the payload's cell; below 0, a fill
    u64 bits = to[7];
    if (kind == 0) {{
      bits = last;
    }} else if (kind == 1) {{
      from = flat;
    }} else {{
      const i64 first = numbers[2 * (i64)rows + row];
      if (first + j >= numbers[4 * (i64)rows + row]) continue;  // behind the row's tail
      cell = first + j;
      if (j < numbers[3 * (i64)rows + row]) from = numbers[(i64)rows + row] + j;
    }}
    unsigned char* at = (unsigned char*)to[0] + numbers[row] * to[1] + cell / (to[3] * to[5]) * to[2]
                        + cell / to[5] % to[3] * to[4] + cell % to[5] * to[6];
    switch (width) {{
      case 1: *at = from < 0 ? (unsigned char)bits : payload[from]; break;
      case 2: *(unsigned short*)at = from < 0 ? (unsigned short)bits : ((const unsigned short*)payload)[from]; break;
      case 4: *(u32*)at = from < 0 ? (u32)bits : ((const u32*)payload)[from]; break;
      default: *(u64*)at = from < 0 ? bits : ((const u64*)payload)[from]; break;
    }}
  }}
}}
"""
