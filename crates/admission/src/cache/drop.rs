//! Removing entries: a plan first.

use std::path::PathBuf;
use std::time::Duration;

use b70_procguard::{FileUser, FilesInUse, Host, directory_in_use};
use b70_store::{Error, Expected, Progress, Sha256, fault_step, is_immutable, probe_immutable};
use serde::Serialize;

use super::folder::{ModelCache, constant};
use crate::error::AdmissionError;

/// One entry of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct DropAction {
    /// SHA-256 of the model.
    pub key: Sha256,
    /// Role, where the entry says it.
    pub role: Option<String>,
    /// The folder that would be removed.
    #[serde(serialize_with = "crate::documents::lossy::path")]
    pub path: PathBuf,
    /// Bytes that would be freed.
    pub size_bytes: u64,
    /// Whether it may be removed.
    pub allowed: bool,
    /// What stands against it: every process that has a file of it open or mapped.
    pub reasons: Vec<String>,
    /// Those processes.
    pub users: Vec<FileUser>,
    /// Processes that could not be looked at (other users'); they do not stand against it, since a file that is
    /// removed while it is mapped stays whole for whoever has it.
    pub unreadable: Vec<u32>,
}

/// What [`ModelCache::drop_planned`] would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct DropPlan {
    /// Each entry.
    pub plan: Vec<DropAction>,
    /// Whether it was carried out.
    pub executed: bool,
}

impl DropPlan {
    /// Whether every entry may be removed.
    pub fn is_allowed(&self) -> bool {
        self.plan.iter().all(|action| action.allowed)
    }
}

impl ModelCache {
    /// Looks at who uses the entries. A damaged entry can be dropped as well as a good one.
    pub fn plan_drop(&self, keys: &[Sha256], host: &Host) -> Result<DropPlan, AdmissionError> {
        let plan = keys.iter().map(|key| self.plan_one(key, host)).collect::<Result<_, _>>()?;
        Ok(DropPlan { plan, executed: false })
    }

    fn plan_one(&self, key: &Sha256, host: &Host) -> Result<DropAction, AdmissionError> {
        match self.look_at(key, host) {
            // Another drop came in between: the answer is the same as if it had come before.
            Err(AdmissionError::Store(Error::Missing { .. })) => {
                Err(AdmissionError::NotFound { what: format!("the model {key}"), root: self.path().to_path_buf() })
            }
            other => other,
        }
    }

    fn look_at(&self, key: &Sha256, host: &Host) -> Result<DropAction, AdmissionError> {
        let folder = self.folder(key)?;
        let path = self.entry_path(key);
        let in_use = directory_in_use(host, &path).map_err(|e| Error::io("find the users of", &path, e))?;
        let FilesInUse { users, unreadable } = in_use;
        let users: Vec<FileUser> = users.into_iter().filter(|u| u.pid != std::process::id()).collect();
        let mut reasons: Vec<String> = users
            .iter()
            .map(|u| {
                let how: Vec<_> = u.uses.iter().map(|how| format!("{how:?}").to_lowercase()).collect();
                format!("process {} ({}) has it {}: {}", u.pid, u.comm, how.join(" and "), u.paths.join(", "))
            })
            .collect();
        let mut size_bytes = 0_u64;
        for (name, _) in folder.raw_entries()? {
            let size = b70_store::RelPath::new(&name).ok().and_then(|n| folder.stat(&n).ok()).map_or(0, |s| s.size);
            size_bytes = size_bytes.saturating_add(size);
        }
        // Looked at before anything is removed: an entry that only loses its documents would be a damaged one.
        let immutable = |file: &Expected| {
            let open = folder.open_file(&file.name);
            open.is_ok_and(|file| is_immutable(file, &path).is_ok_and(|immutable| immutable))
        };
        let opened = self.open_entry(key)?.ok();
        if opened.as_ref().is_some_and(|opened| opened.files.iter().any(immutable))
            && let Err(refused) = probe_immutable(&self.root)
        {
            reasons.push(format!("its copy is immutable, and this process may not change that ({refused})"));
        }
        let role = opened.map(|opened| opened.entry.role);
        Ok(DropAction { key: *key, role, path, size_bytes, allowed: reasons.is_empty(), reasons, users, unreadable })
    }

    /// Carries a plan out, after looking again under each entry's lock. Refused as a whole when any entry is in use:
    /// the plan that comes back says by whom and was not executed.
    pub fn drop_planned(
        &self,
        plan: &DropPlan,
        host: &Host,
        wait: Duration,
        progress: &Progress<'_>,
    ) -> Result<DropPlan, AdmissionError> {
        let mut keys: Vec<Sha256> = plan.plan.iter().map(|action| action.key).collect();
        // One order for everyone who takes several locks.
        keys.sort_unstable();
        keys.dedup();
        let mut locks = Vec::new();
        for key in &keys {
            locks.push(self.lock(&key.to_string(), "b70-cache drop", wait, progress)?);
        }
        let mut now = self.plan_drop(&keys, host)?;
        if now.is_allowed() {
            for action in &now.plan {
                fault_step("cache.drop");
                self.root.remove_tree(&constant(&action.key.to_string()))?;
            }
            now.executed = true;
        }
        Ok(now)
    }
}
