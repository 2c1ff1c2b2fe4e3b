//! Schemas of what the commands over cards and leases print with `--json`.

use b70_manifest::schema::{SchemaEntry, output};

use crate::{Cards, DoctorReport, LeaseReport, RecordSummary, Usage};

/// One entry a command: file name below `docs/schemas`, and the schema.
pub fn output_schemas() -> Vec<SchemaEntry> {
    vec![
        output::<Cards>("gpu-list"),
        output::<Usage>("gpu-owners"),
        output::<LeaseReport>("gpu-lease-status"),
        output::<DoctorReport>("gpu-doctor"),
        output::<RecordSummary>("gpu-record"),
    ]
}
