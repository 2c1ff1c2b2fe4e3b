# Reads a golden manifest as upstream's tools do: `tensors` is a list, a case has a width and the names of two tensors.
import hashlib
import json
import pathlib
import sys

folder = pathlib.Path(sys.argv[1])
manifest = json.loads((folder / "manifest.json").read_text())
assert manifest["schema_version"] == 1 and manifest["status"] == "ready"
assert manifest["format"] == "qwen27-mmvp-q4_0-q8_1-golden-v1"
assert manifest["evidence_class"] == "synthetic-kernel-contract-diagnostic-only"
assert manifest["promotion_eligible"] is False
assert manifest["generator"]["path"] and isinstance(manifest["generator"]["revision"], int) and manifest["note"]
by_path = {tensor["path"]: tensor for tensor in manifest["tensors"]}
assert len(by_path) == len(manifest["tensors"])
assert [case["width"] for case in manifest["cases"]] == manifest["required_widths"]
for case in manifest["cases"]:
    given, expected = case["tensors"]
    assert by_path[given]["shape"] == [case["width"], manifest["k"]]
    assert by_path[expected]["shape"] == [case["width"], manifest["n"]]
for path, tensor in by_path.items():
    data = (folder / path).read_bytes()
    assert len(data) == tensor["size_bytes"] and tensor["dtype"]
    assert hashlib.sha256(data).hexdigest() == tensor["sha256"]
    print(path, tensor["sha256"])
