"""Metal kernels of the engine, and the emulator that runs them on any host."""
