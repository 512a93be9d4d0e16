#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
