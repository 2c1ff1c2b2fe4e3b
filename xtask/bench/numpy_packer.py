"""A packer in numpy that does what `b70-pack prepare` does, for comparison: the model's SHA-256, each Q4_0 tensor's SHA-256,
packing into q4_0-xe2-dpas-v2, the payload's SHA-256, writing, fsync; keys and manifest as the format has them.

usage: numpy_packer.py MODEL OUT_FOLDER; prints one JSON document with the set key and every payload's digest.
"""

import hashlib
import json
import os
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader

LAYOUT = {"pack_layout_version": 2, "target_architecture": "bmg-g31"}


def canonical(document):
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def file_sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pack(blocks, k, n):
    """`blocks` is (n, k / 32, 18): an fp16 scale and sixteen bytes, element i in the low half of byte i, i + 16 in the high."""
    k_blocks = k // 32
    codes = blocks[:, :, 2:] ^ np.uint8(0x88)
    low, high = codes & np.uint8(0x0F), codes >> np.uint8(4)
    packed = np.empty((n, k_blocks, 16), dtype=np.uint8)
    np.bitwise_or(low[:, :, 0::2], low[:, :, 1::2] << np.uint8(4), out=packed[:, :, :8])
    np.bitwise_or(high[:, :, 0::2], high[:, :, 1::2] << np.uint8(4), out=packed[:, :, 8:])
    # One 32-bit word holds the eight nibbles of a row's group of eight columns.
    words = packed.view("<u4").reshape(n // 16, 16, k_blocks, 4)
    quants = np.ascontiguousarray(words.transpose(2, 0, 3, 1))
    scales = np.ascontiguousarray(np.ascontiguousarray(blocks[:, :, :2]).view("<u2")[:, :, 0].T)
    return quants, scales


def sync_folder(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def publish(path, parts):
    with open(path + ".part", "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".part", path)


def main():
    model, out = sys.argv[1:]
    model_sha256 = file_sha256(model)
    tensors_folder = os.path.join(out, "tensors")
    os.makedirs(tensors_folder)
    entries = []
    for tensor in GGUFReader(model).tensors:
        shape = [int(size) for size in tensor.shape]
        if tensor.tensor_type != GGMLQuantizationType.Q4_0 or len(shape) != 2:
            continue
        k, n = shape
        if k % 32 or n % 16:
            continue
        identity = {
            "target_model_sha256": model_sha256,
            "tensor_name": tensor.name,
            "tensor_shape": shape,
            "tensor_type": "GGML_TYPE_Q4_0",
            **LAYOUT,
        }
        key = canonical(identity)
        source = np.ascontiguousarray(tensor.data).reshape(n, k // 32, 18)
        source_sha256 = hashlib.sha256(source).hexdigest()
        quants, scales = pack(source, k, n)
        digest = hashlib.sha256(quants)
        digest.update(scales)
        path = os.path.join(tensors_folder, key + ".bin")
        publish(path, (quants, scales))
        entry = {"key": key, "identity": identity, "source_sha256": source_sha256, "payload_sha256": digest.hexdigest()}
        publish(os.path.join(tensors_folder, key + ".json"), (json.dumps(entry).encode(),))
        entries.append(entry)
    sync_folder(tensors_folder)
    set_key = canonical(
        {
            "target_model_sha256": model_sha256,
            "tensor_keys": [entry["key"] for entry in entries],
            "format_prefix": "xe2-dpas",
            "layout_name": "q4_0-xe2-dpas-v2",
            **LAYOUT,
        }
    )
    manifest = {"key": set_key, "model_sha256": model_sha256, "tensors": entries}
    publish(os.path.join(out, "manifest.json"), (json.dumps(manifest).encode(),))
    sync_folder(out)
    print(json.dumps(manifest))


main()
