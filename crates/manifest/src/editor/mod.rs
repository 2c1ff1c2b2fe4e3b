//! Help for editors: which schema belongs to which file names, in the form VS Code reads.
//!
//! The schemas lie in a folder of the workspace and are named by relative paths, so nothing is fetched.

mod vscode;

pub(crate) use vscode::publish;
pub use vscode::{
    EditorError, EditorOutput, SCHEMA_FOLDER, SchemaAssociation, associations, merge_settings, write_schemas,
    write_vscode,
};
