"""Runs ggml's own reference quantisers, from the built libggml-base.so.

usage: real_ggml.py LIBRARY VALUES.f32 OUT   writes OUT.q4_0, OUT.q8_0, OUT.q8_1
"""
import ctypes
import sys

library, source, out = sys.argv[1:]
ggml = ctypes.CDLL(library)
values = open(source, "rb").read()
count = len(values) // 4
blocks = count // 32
for kind, size in ("q4_0", 18), ("q8_0", 34), ("q8_1", 36):
    quantise = getattr(ggml, f"quantize_row_{kind}_ref")
    quantise.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64]
    quantise.restype = None
    packed = ctypes.create_string_buffer(blocks * size)
    quantise(values, packed, count)
    open(f"{out}.{kind}", "wb").write(packed.raw)
