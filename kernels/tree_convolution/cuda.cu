// A depthwise causal convolution over a tree: the algorithm of metal.metal, which explains it.
//
// Grid: (C, N, 1) threads, of which the last block of a row may have more than there are channels.
    const int channel = int(blockIdx.x * blockDim.x + threadIdx.x);
    const int node = int(blockIdx.y);
    const int channels = x_shape[2];
    if (channel < channels) {
        float sum = BIAS ? float(bias[channel]) : 0.0f;
#pragma unroll
        for (int k = 0; k < K; ++k) {
            sum += float(weight[channel * K + k]) * float(x[windows[node * K + k] * channels + channel]);
        }
        out[node * channels + channel] = T(sum);
    }
