"""Compares unpacked Q4_0 blocks with a model's own tensors, as the package gguf dequantises both.

usage: dequantise.py MODEL LIST; a line of LIST is a tensor's name, a tab, and the file with its unpacked blocks.
"""

import importlib.metadata
import json
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

assert importlib.metadata.version("gguf") == "0.19.0", "the referee is gguf 0.19.0"

model, listing = sys.argv[1:]
tensors = {tensor.name: tensor for tensor in GGUFReader(model).tensors}
count = elements = different = 0
for line in open(listing, encoding="utf-8"):
    name, path = line.rstrip("\n").split("\t")
    tensor = tensors[name]
    assert tensor.tensor_type == GGMLQuantizationType.Q4_0, name
    ours = dequantize(np.fromfile(path, dtype=np.uint8).reshape(tensor.data.shape), GGMLQuantizationType.Q4_0)
    theirs = dequantize(tensor.data, GGMLQuantizationType.Q4_0)
    assert ours.shape == theirs.shape, name
    # Bit by bit, so that a NaN equals itself and the sign of zero counts.
    different += int(np.count_nonzero(ours.view(np.uint32) != theirs.view(np.uint32)))
    elements += ours.size
    count += 1
print(json.dumps({"tensors": count, "elements": elements, "different": different}))
