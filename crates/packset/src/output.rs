//! Schemas of what the commands over pack sets print with `--json`.

use b70_manifest::schema::{SchemaEntry, output};

use crate::{GcReport, Inspection, KeyTable, PreparedSet, SetList, StageReport, Unpacked, Verification};

/// One entry a command: file name below `docs/schemas`, and the schema.
pub fn output_schemas() -> Vec<SchemaEntry> {
    vec![
        output::<Inspection>("pack-inspect"),
        output::<KeyTable>("pack-keys"),
        output::<PreparedSet>("pack-prepare"),
        output::<Verification>("pack-verify"),
        output::<StageReport>("pack-stage"),
        output::<Unpacked>("pack-unpack"),
        output::<SetList>("pack-list"),
        output::<GcReport>("pack-gc"),
    ]
}
