"""What the PyPI package gguf sees in a file, and files written by it.

referee.py read FILE             -> JSON: metadata and tensors as the package reads them
referee.py write FILE            -> writes a file of every value type and some tensor types
referee.py write-split FILE      -> writes a split model of two tensors per shard beside FILE
"""

import json
import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFReader, GGUFWriter, quants


def scalar(kind, value):
    """A value as text that does not depend on how a language prints numbers."""
    if kind == "STRING":
        return value.encode().hex()
    if kind == "BOOL":
        return "true" if value else "false"
    if kind in ("FLOAT32", "FLOAT64"):
        return struct.pack(">d", float(value)).hex()
    return str(int(value))


def read(path):
    reader = GGUFReader(path)
    metadata = {}
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        kinds = [kind.name for kind in field.types]
        contents = field.contents()
        if kinds[0] == "ARRAY":
            # An empty array has no element type for the package.
            values = [scalar(kinds[1], value) for value in contents] if contents else []
        else:
            values = scalar(kinds[0], contents)
        metadata[key] = {"type": kinds[0], "element": kinds[1] if len(kinds) > 1 else None, "value": values}
    tensors = [
        {
            "name": tensor.name,
            "shape": [int(n) for n in tensor.shape],
            "type_id": int(tensor.tensor_type),
            "type_name": tensor.tensor_type.name,
            "offset": int(tensor.data_offset),
            "size": int(tensor.n_bytes),
            "data": np.ascontiguousarray(tensor.data).tobytes().hex(),
        }
        for tensor in reader.tensors
    ]
    return {"alignment": int(reader.alignment), "data_offset": int(reader.data_offset), "metadata": metadata, "tensors": tensors}


def add_tensors(writer):
    rng = np.random.default_rng(270036)
    values = rng.standard_normal((3, 64)).astype(np.float32)
    writer.add_tensor("f32", values)
    writer.add_tensor("f16", values[:, :5].astype(np.float16))
    writer.add_tensor("i8", np.arange(24, dtype=np.int8).reshape(2, 3, 4))
    for kind in (Q.Q4_0, Q.Q8_0, Q.BF16):
        writer.add_tensor(kind.name.lower(), quants.quantize(values, kind), raw_dtype=kind)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(path):
    writer = GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_uint8("k.u8", 255)
    writer.add_int8("k.i8", -128)
    writer.add_uint16("k.u16", 65535)
    writer.add_int16("k.i16", -32768)
    writer.add_uint32("k.u32", 4294967295)
    writer.add_int32("k.i32", -2147483648)
    writer.add_float32("k.f32", 0.1)
    writer.add_bool("k.bool", True)
    writer.add_string("k.string", "größer\n")
    writer.add_uint64("k.u64", 2**64 - 1)
    writer.add_int64("k.i64", -(2**63))
    writer.add_float64("k.f64", 0.1)
    writer.add_array("k.strings", ["", "a", "日本"])
    writer.add_array("k.ints", [1, -2, 3])
    writer.add_array("k.floats", [0.5, -0.25])
    writer.add_array("k.bools", [True, False, True])
    add_tensors(writer)
    finish(writer)


def write_split(path):
    writer = GGUFWriter(path, "llama", split_max_tensors=2)
    writer.add_string("general.name", "split")
    add_tensors(writer)
    finish(writer)


if __name__ == "__main__":
    action, path = sys.argv[1:]
    if action == "read":
        json.dump(read(path), sys.stdout)
    else:
        {"write": write, "write-split": write_split}[action](path)
