// A depthwise causal convolution over a tree: out[n, c] = bias[c] + sum over k of weight[c, k] x[windows[n, k], c].
//
// A thread computes one channel of one node, neighbouring threads neighbouring channels. Bytes: each row of x once for
// every window that it is in, weights once for every node, out once. All of it is a few hundred KB, which caches hold:
// what the call costs is its launch.
//
// Template: T is the type of x, weight, bias and out; K rows of x are a window; without BIAS, bias is not read.
// Grid: (C, N, 1) threads.
    const int channel = int(thread_position_in_grid.x);
    const int node = int(thread_position_in_grid.y);
    const int channels = int(x_shape[2]);
    if (channel < channels) {
        float sum = BIAS ? float(bias[channel]) : 0.0f;
#pragma unroll
        for (int k = 0; k < K; ++k) {
            sum += float(weight[channel * K + k]) * float(x[windows[node * K + k] * channels + channel]);
        }
        out[node * channels + channel] = T(sum);
    }
