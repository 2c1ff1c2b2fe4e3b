"""Quantises f32 values from a file with the package gguf; writes the blocks.

usage: ggml.py Q4_0|Q8_0 VALUES.f32 OUT
"""
import sys

import gguf
import numpy as np

kind, source, out = sys.argv[1:]
values = np.fromfile(source, dtype="<f4").reshape(-1, 32)
with np.errstate(all="ignore"):
    blocks = gguf.quants.quantize(values, getattr(gguf.GGMLQuantizationType, kind))
blocks.astype(np.uint8).tofile(out)
