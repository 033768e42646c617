// Test vectors of CUDA's own occupancy calculator, cuda_occupancy.h, a header that needs neither a driver nor a GPU:
//
//     pip download --no-deps nvidia-cuda-runtime && unzip -q nvidia_cuda_runtime-*.whl
//     g++ -I nvidia/cu13/include tests/occupancy_vectors.cc -o vectors && ./vectors 100 > tests/occupancy_vectors.csv
//
// The argument is the number of vectors a generation. Columns: generation, threads of a CTA, registers of a thread,
// bytes of shared memory of a CTA, CTAs an SM holds, and what limits them (a sum: 1 warps, 2 registers, 4 shared
// memory, 8 CTAs).
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "cuda_occupancy.h"

struct Generation {
    const char *name;
    int major, minor, threads, shared_kib;
};

int main(int, char **words) {
    const Generation generations[] = {
        {"sm_80", 8, 0, 2048, 164}, {"sm_86", 8, 6, 1536, 100},  {"sm_89", 8, 9, 1536, 100},
        {"sm_90", 9, 0, 2048, 228}, {"sm_100", 10, 0, 2048, 228}, {"sm_120", 12, 0, 1536, 100},
    };
    std::mt19937 draw(7);
    for (const Generation &each : generations) {
        cudaOccDeviceProp device{};
        device.computeMajor = each.major;
        device.computeMinor = each.minor;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = each.threads;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 << 10;
        device.sharedMemPerMultiprocessor = each.shared_kib << 10;
        device.numSms = 100;
        device.sharedMemPerBlockOptin = (each.shared_kib - 1) << 10;
        device.reservedSharedMemPerBlock = 1 << 10;
        for (int n = 0; n < std::atoi(words[1]); ++n) {
            const int most = static_cast<int>(device.sharedMemPerBlockOptin);
            const bool small = draw() % 4 == 0;  // else the number of CTAs would hardly ever limit
            const int free_threads = 1 + draw() % (small ? 64 : 1024);
            const int threads = draw() % 3 ? (free_threads + 31) / 32 * 32 : free_threads;
            const int registers = 1 + draw() % (small ? 32 : 255);
            // A quarter without, the rest often little: else it would limit nearly always.
            const int shared = small || draw() % 4 == 0 ? 0 : draw() % (draw() % 2 ? most + 1 : 16384);
            cudaOccFuncAttributes kernel{};
            kernel.maxThreadsPerBlock = INT_MAX;
            kernel.numRegs = registers;
            kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
            kernel.maxDynamicSharedSizeBytes = most;
            kernel.numBlockBarriers = 1;
            cudaOccDeviceState state;
            state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
            cudaOccResult found;
            if (cudaOccMaxActiveBlocksPerMultiprocessor(&found, &device, &kernel, &state, threads, shared)) return 1;
            std::printf("%s,%d,%d,%d,%d,%u\n", each.name, threads, registers, shared,
                        found.activeBlocksPerMultiprocessor, found.limitingFactors);
        }
    }
}
