"""Metal kernels on any host: the text that MLX would compile, executed, metered and checked."""
