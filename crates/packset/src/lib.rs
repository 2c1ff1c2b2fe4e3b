//! Layout-neutral pack sets: plans, keys, set directories, runtime index, verification, RAM stage.
#![forbid(unsafe_code)]

mod layout;

pub use layout::{Layout, LayoutDescriptor, LayoutError, MatrixShape, Segment, SourceType, Threads};
