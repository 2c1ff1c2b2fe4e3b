//! Guards for physical GPUs: cards, owners, process identity, ports, leases, files in use.
//!
//! Before a job is started on a card, somebody must answer: which card is that, who uses it, may I have it, and is the
//! process that I am about to signal still the one I started? This crate answers from the kernel's own files, and says
//! *unknown* where it cannot know. It prints nothing, and starts only what [`run_program`] is given.
//!
//! # Words
//! - **card**: a display device of the PCI bus; its [`PciAddress`] is its identity. An *ordinal* is only the position
//!   that Level Zero gives it in one process.
//! - **host**: where facts come from, [`Host::real`] or a recorded tree ([`record()`], [`Host::recorded`]), so that a verdict
//!   can be replayed on another machine.
//! - **use**: memory held through a card's DRM client, engines that work, or a ggml program told to use the card. An
//!   open device node alone does not count as use.
//! - **unknown**: could not be determined; never taken for *free*, *absent* or *ours*.
//! - **lease**: a kernel lock per card that cooperating programs take; **foreign**: a process the kit did not start.
//!
//! # Example
//! ```
//! use b70_procguard::{CardVerdict, Cards, GpuRef, Host, Usage, UsageOptions};
//!
//! let host = Host::real();
//! let cards = Cards::scan(&host)?;
//! let usage = Usage::scan(&host, &cards, &UsageOptions::default());
//! for card in &usage.cards {
//!     if card.verdict != CardVerdict::Free {
//!         println!("{} is {:?}, owners {:?}", card.pci, card.verdict, card.owners);
//!     }
//! }
//! assert!(cards.resolve("ffff:ff:1f.7".parse::<GpuRef>()?).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! - Linux only, 5.14 or later. An ordinary user cannot look into other users' processes, so cards that seem unused read
//!   unknown; root or `CAP_SYS_PTRACE` settles it. Processes outside the pid namespace are invisible, which is said.
//! - An environment is seen as it was at the last `exec`. Threads that left their process's file table by `unshare` are
//!   not looked at. Memory that a driver does not account to a client (shared virtual memory) is not seen.
//! - A lease excludes only who asks for it. Between a verdict and a start another program may still take the card, so
//!   the verdict is asked again after the start.
//! - What leaves a session by `setsid` of its own is not swept with it.
#![forbid(unsafe_code)]

mod affinity;
mod cards;
mod deadline;
mod doctor;
mod explain;
mod fdinfo;
mod files;
mod host;
mod klog;
mod lease;
mod output;
mod ports;
mod process;
mod program;
mod record;
mod secrets;
mod usage;

/// How cards are named, everywhere in the kit.
pub use b70_manifest::{GpuRef, ParsePciError, PciAddress};

pub use crate::{
    affinity::{
        Affinity, AffinityMask, AffinitySource, Backend, DeviceSelection, Hierarchy, LlamaDevices, LlamaProgram,
        PinError, Pinning, Reader, Selector, SelectorError, VulkanVisible, level_zero_variable, llama_program,
        parse_affinity_mask, parse_selector, parse_vulkan_visible, pin_to_card, resolve_affinity,
    },
    cards::{Card, Cards, DeviceOrder, NoSuchCard},
    doctor::{Check, CheckStatus, DoctorReport},
    fdinfo::{FdInfo, FdInfoError, RegionUse},
    files::{FileUse, FileUser, FilesInUse, directory_in_use, path_in_use},
    host::{FsSpace, Host, HostError, MAX_FILE, RecordInfo},
    klog::{KernelEvent, KernelEventKind, KernelLog, has_devcoredump},
    lease::{DEFAULT_LEASE_ROOT, Lease, LeaseError, LeaseKind, LeaseOwner, LeaseReport, LeaseRoot, LeaseStatus},
    output::output_schemas,
    ports::{
        ListenerOwnership, PortOwner, PortState, SocketHolder, TcpSocket, listening_inode_belongs_to, port_owners,
        probe_port,
    },
    process::{
        PidState, ProcStat, ProcessIdentity, ProcessSignal, SESSION_TOKEN_VARIABLE, Session, SessionMembers,
        SignalError, SignalOutcome, SignalRecord, Signaller, StopOutcome, StopPolicy, Unverified, VerifiedProcess,
        VerifyError, ancestors, boot_id, command_line, environment, pid_namespace, stop,
    },
    program::{ProgramEnd, ProgramRun, run_program},
    record::{RecordError, RecordSummary, record},
    secrets::{REDACTED, redact_arguments, redact_variable},
    usage::{CardUsage, CardVerdict, Owner, Unreadable, Usage, UsageOptions, UseEvidence},
};
