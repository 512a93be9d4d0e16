"""CUDA kernels on any host: `cuda_kernel` takes what `mx.fast.cuda_kernel` takes and runs the very text."""

from kernels.host.cuda.kernel import HostCudaKernel, cuda_kernel

__all__ = ["HostCudaKernel", "cuda_kernel"]
