"""Recomputes a contract set with CPython's own generator, struct and float arithmetic; prints name and SHA-256.

usage: contract.py K N SEED M[,M...]
Nothing but the standard library, and no formula shared with the Rust code.
"""
import hashlib
import random
import struct
import sys


def stream(seed, bound, count):
    source = random.Random()
    source.seed(seed)
    return [source.uniform(-bound, bound) for _ in range(count)]


def half(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def q4_0(values):
    """Blocks as (bytes, d as stored, codes)."""
    for at in range(0, len(values), 32):
        block = values[at : at + 32]
        largest = max(abs(x) for x in block)
        d = largest / 7.0 if largest else 1.0 / 7.0
        q = [min(7, max(-8, round(x / d))) for x in block]
        packed = struct.pack("<e", d) + bytes((q[j] + 8) | (q[j + 16] + 8) << 4 for j in range(16))
        yield packed, half(d), q


def q8_1(values):
    for at in range(0, len(values), 32):
        block = values[at : at + 32]
        largest = max(abs(x) for x in block)
        d = largest / 127.0 if largest else 1.0 / 127.0
        q = [min(127, max(-128, round(x / d))) for x in block]
        packed = struct.pack("<ee", d, half(d) * sum(q)) + struct.pack("<32b", *q)
        yield packed, half(d), q


def main():
    k, n, seed = (int(a) for a in sys.argv[1:4])
    widths = [int(m) for m in sys.argv[4].split(",")]
    blocks = k // 32
    weights = list(q4_0(stream(seed, 0.75, n * k)))

    def show(name, parts):
        print(name, hashlib.sha256(b"".join(parts)).hexdigest())

    show("weights.q4_0.bin", (w[0] for w in weights))
    for m in widths:
        inputs = list(q8_1(stream(seed + m, 1.25, m * k)))
        show(f"input-m{m}.q8_1.bin", (x[0] for x in inputs))
        out = []
        for row in range(m):
            for column in range(n):
                total = 0.0
                for b in range(blocks):
                    _, dw, qw = weights[column * blocks + b]
                    _, dx, qx = inputs[row * blocks + b]
                    total += dw * dx * sum(a * c for a, c in zip(qw, qx))
                out.append(struct.pack("<f", total))
        show(f"expected-m{m}.f32.bin", out)


main()
