"""Dequantises Q4_0 blocks with ggml's own function.

usage: dequantise.py LIBRARY BLOCKS OUT.f32
"""
import ctypes
import sys

library, source, out = sys.argv[1:]
blocks = open(source, "rb").read()
count = len(blocks) // 18 * 32
dequantise = ctypes.CDLL(library).dequantize_row_q4_0
dequantise.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64]
dequantise.restype = None
plain = ctypes.create_string_buffer(count * 4)
dequantise(blocks, plain, count)
open(out, "wb").write(plain.raw)
