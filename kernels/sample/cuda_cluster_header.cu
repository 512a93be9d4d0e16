// Clusters of thread blocks (sm_90 and later), behind cuda_header.cu.

// MLX writes the kernel's first line; this puts the size of the cluster into it.
#undef __global__
#define __global__ __attribute__((global)) __cluster_dims__(SAMPLE_BLOCKS, 1, 1)

namespace cidermill_sample {

// Blocks that were launched as one cluster: SAMPLE_BLOCKS, or 1.
__device__ inline uint cluster_blocks() {
    uint blocks;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
    return blocks;
}

__device__ inline void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

__device__ inline void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

__device__ inline void cluster_barrier() {
    cluster_arrive();
    cluster_wait();
}

// The same array in the shared memory of another block of the cluster.
template <typename N> __device__ inline N* distant(N* here, uint block) {
    N* there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(block));
    return there;
}

template <typename T> __device__ inline bool starts_at_fours(const T* row) {
    return reinterpret_cast<ulong>(row) % (4 * sizeof(T)) == 0;
}

// four_logprobs, read at once where the row allows it.
template <typename T>
__device__ inline void quad_logprobs(
    const T* row, uint quad, uint vocabulary, float normaliser, bool aligned, float* values) {
    if (aligned && quad * 4 + 4 <= vocabulary) {
        struct alignas(4 * sizeof(T)) Four {
            T of[4];
        };
        const Four four = *reinterpret_cast<const Four*>(row + quad * 4);
        for (uint j = 0; j < 4; ++j) values[j] = float(T(float(four.of[j]) - normaliser));
    } else {
        four_logprobs<T>(row, quad, vocabulary, normaliser, values);
    }
}

}  // namespace cidermill_sample
