"""CUDA kernels on any host: `cuda_kernel` runs the text that `mx.fast.cuda_kernel` is given."""

from kernels.host.cuda.kernel import HostCudaKernel, cuda_kernel

__all__ = ["HostCudaKernel", "cuda_kernel"]
