//! The layout q4_0-xe2-dpas-v2: reference, kernels, unpacking and an emulation of its DPAS consumer.
