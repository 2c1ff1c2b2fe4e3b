//! Schemas of what the commands over pack sets print with `--json`.

use b70_manifest::schema::{Entry, output};

use crate::{GcReport, Inspection, KeyTable, Prepared, SetList, StageReport, Unpacked, Verification};

/// One entry a command: file name below `docs/schemas`, and the schema.
pub fn output_schemas() -> Vec<Entry> {
    vec![
        output::<Inspection>("pack-inspect"),
        output::<KeyTable>("pack-keys"),
        output::<Prepared>("pack-prepare"),
        output::<Verification>("pack-verify"),
        output::<StageReport>("pack-stage"),
        output::<Unpacked>("pack-unpack"),
        output::<SetList>("pack-list"),
        output::<GcReport>("pack-gc"),
    ]
}
