// Made into kernels_gfx942.hsaco by another compiler than ours:
//   clang-22 -x cl -cl-std=CL2.0 --target=amdgcn-amd-amdhsa -mcpu=gfx942 -nogpulib -O2 -gline-tables-only
//     -fdebug-prefix-map=$PWD=. -mcode-object-version=5 -c kernels.cl -o kernels.o
//   ld.lld-22 -shared kernels.o -o kernels_gfx942.hsaco
#define KERNEL(n) __attribute__((amdgpu_flat_work_group_size(n, n))) kernel void
#define LANE __builtin_amdgcn_workitem_id_x()
#define WORKGROUP __builtin_amdgcn_workgroup_id_x()
#define BARRIER() do { __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); __builtin_amdgcn_s_barrier(); \
                       __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"); } while (0)

// One wave per row of 256 columns: reductions by permuting and shifting lanes, a division.
KERNEL(256) softmax(global const float *x, global float *y) {
  uint lane = LANE & 63, row = WORKGROUP * 4 + (LANE >> 6);
  float v[4], most = -1e30f, sum = 0;
  for (int i = 0; i < 4; i++) { v[i] = x[row * 256 + i * 64 + lane]; most = __builtin_fmaxf(most, v[i]); }
  for (int d = 32; d >= 1; d >>= 1)
    most = __builtin_fmaxf(most, as_float(__builtin_amdgcn_ds_bpermute((lane ^ d) * 4, as_int(most))));
  for (int i = 0; i < 4; i++) { v[i] = __builtin_amdgcn_exp2f((v[i] - most) * 1.44269504f); sum += v[i]; }
  sum += as_float(__builtin_amdgcn_update_dpp(0, as_int(sum), 0x111, 0xf, 0xf, true));
  sum += as_float(__builtin_amdgcn_update_dpp(0, as_int(sum), 0x112, 0xf, 0xf, true));
  sum += as_float(__builtin_amdgcn_update_dpp(0, as_int(sum), 0x114, 0xf, 0xf, true));
  sum += as_float(__builtin_amdgcn_update_dpp(0, as_int(sum), 0x118, 0xf, 0xf, true));
  sum += as_float(__builtin_amdgcn_update_dpp(0, as_int(sum), 0x142, 0xa, 0xf, false));
  sum += as_float(__builtin_amdgcn_update_dpp(0, as_int(sum), 0x143, 0xc, 0xf, false));
  float total = as_float(__builtin_amdgcn_readlane(as_int(sum), 63));
  for (int i = 0; i < 4; i++) y[row * 256 + i * 64 + lane] = v[i] / total;
}

// Atomics on shared and global memory, and loops of different lengths.
KERNEL(256) histogram(global const uint *x, global uint *h, int n) {
  local uint bins[64];
  if (LANE < 64) bins[LANE] = 0;
  BARRIER();
  for (int i = LANE + WORKGROUP * 256; i < n; i += 512)
    __opencl_atomic_fetch_add((local atomic_uint *)&bins[(x[i] * 2654435761u) >> 26], 1u, __ATOMIC_RELAXED, 1);
  BARRIER();
  if (LANE < 64) __opencl_atomic_fetch_add((global atomic_uint *)&h[LANE], bins[LANE], __ATOMIC_RELAXED, 2);
}

// A call, and private memory.
__attribute__((noinline)) int collatz(int x, private int *seen) {
  int n = 0;
  while (x != 1) { seen[n & 15] = x; x = (x & 1) ? 3 * x + 1 : x >> 1; n++; }
  return n;
}
KERNEL(64) calls(global const int *x, global int *y) {
  private int seen[16];
  for (int i = 0; i < 16; i++) seen[i] = 0;
  int n = collatz(x[LANE], seen), sum = 0;
  for (int i = 0; i < 16; i++) sum += seen[i] * (i + 1);
  y[LANE * 2] = n; y[LANE * 2 + 1] = sum;
}
