// How an H200's L2 evicts: read a buffer over and over, write new lines in between, and let Nsight Compute count.
//
//   nvcc -O3 -arch=sm_90a -o probe_l2 benchmarks/probe_l2_h200.cu
//   ncu --clock-control none -k probe --csv --print-units base --log-file counters.csv \
//       --metrics dram__bytes_read.sum,dram__bytes_write.sum ./probe_l2 > launches.csv
//
// Launch i of launches.csv is ID i of counters.csv; together they are h200_l2_probe.csv, which fit_l2.py reads.
// In each cycle, every chunk of 4 KiB is read by one SM, or by two; then each SM writes its part of the new bytes.
#include <cstdio>
#include <cuda_runtime.h>

constexpr int SMS = 132, THREADS = 256, CYCLES = 12;
constexpr long CHUNK = THREADS * sizeof(uint4);
__device__ unsigned arrived;

__device__ void all_meet(unsigned so_far) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&arrived, 1);
        while (atomicAdd(&arrived, 0) < so_far) __nanosleep(100);
        __threadfence();
    }
    __syncthreads();
}

__global__ void probe(const uint4* read, uint4* written, long chunks, long new_chunks, int readers, unsigned* never) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (int cycle = 0; cycle < CYCLES; ++cycle) {
        for (int reader = 0; reader < readers; ++reader)
            for (long i = (blockIdx.x + cycle * 37 + reader * 53) % SMS; i < chunks; i += SMS) {
                uint4 v = __ldcg(read + i * THREADS + threadIdx.x);
                sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
            }
        all_meet((2 * cycle + 1) * SMS);
        for (long i = blockIdx.x; i < new_chunks; i += SMS)
            __stcg(written + (cycle * new_chunks + i) * THREADS + threadIdx.x, sum);
        all_meet((2 * cycle + 2) * SMS);
    }
    if (sum.x == 0x12345678u) never[0] = sum.y;  // or the compiler leaves the reads out
}

int main() {
    uint4 *read, *written;
    unsigned *never, none = 0;
    cudaMalloc(&read, 64l << 20), cudaMalloc(&written, 256l << 20), cudaMalloc(&never, 4);
    cudaMemset(read, 1, 64l << 20);
    printf("read_mb,written_mb,cycles,readers\n");
    for (int readers : {1, 2})
        for (int read_mb : {2, 4, 8, 12, 16, 20, 24, 28, 34, 40})
            for (int written_mb : {0, 2, 4, 8, 16}) {
                cudaMemcpyToSymbol(arrived, &none, sizeof none);
                probe<<<SMS, THREADS>>>(read, written, read_mb * 1000000l / CHUNK, written_mb * 1000000l / CHUNK, readers, never);
                if (cudaError_t error = cudaDeviceSynchronize()) return fprintf(stderr, "%s\n", cudaGetErrorString(error)), 1;
                printf("%d,%d,%d,%d\n", read_mb, written_mb, CYCLES, readers);
            }
}
