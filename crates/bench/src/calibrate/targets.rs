//! Endpoints as people name them.

use std::path::Path;

use b70_manifest::document;
use b70_manifest::state::WorkerIdentity;
use b70_manifest::workers::{Arm, Workers};
use b70_manifest::{GpuRef, PciAddress};
use b70_procguard::{Cards, Host};

use super::{CalibrateError, Target};
use crate::identity::IdentityInputs;

/// Reads `NAME=URL[,card=PCI][,arm=control|candidate][,period=N][,identity=FILE]`.
///
/// ```
/// let target = b70_bench::parse_endpoint("gpu0=http://127.0.0.1:19720,card=0000:03:00.0,arm=control,period=1").unwrap();
/// assert_eq!((target.name.as_str(), target.period), ("gpu0", Some(1)));
/// assert!(b70_bench::parse_endpoint("http://127.0.0.1:19720").is_err());
/// ```
///
/// # Errors
/// What is wrong, in a sentence.
pub fn parse_endpoint(text: &str) -> Result<Target, String> {
    let mut parts = text.split(',');
    let (name, url) = parts
        .next()
        .and_then(|first| first.split_once('='))
        .filter(|(name, url)| !name.is_empty() && !name.contains("://") && !url.is_empty())
        .ok_or_else(|| format!("{text:?} is not NAME=URL[,card=PCI][,arm=ARM][,period=N][,identity=FILE]"))?;
    let mut target = Target {
        name: name.to_owned(),
        url: url.to_owned(),
        card: None,
        arm: None,
        period: None,
        inputs: IdentityInputs::default(),
    };
    for part in parts {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
        match key {
            "card" => target.card = Some(value.parse::<PciAddress>().map_err(|error| error.to_string())?),
            "arm" => target.arm = Some(parse_arm(value)?),
            "period" => target.period = Some(value.parse().map_err(|_| format!("period {value:?} is not a number"))?),
            "identity" => target.inputs.worker_identity = Some(value.into()),
            other => return Err(format!("{other:?} is unknown; expected card, arm, period or identity")),
        }
    }
    Ok(target)
}

fn parse_arm(text: &str) -> Result<Arm, String> {
    let known = Arm::ALL.iter().find(|arm| arm.as_str() == text).copied();
    known.ok_or_else(|| format!("arm {text:?} is unknown; expected control or candidate"))
}

/// The workers of a `workers.json` as targets; those named, or all. The card is the one a worker names by its address, else
/// the one its running record names, else what its ordinal means on this host.
///
/// # Errors
/// [`CalibrateError::Config`] with every error of the file; [`CalibrateError::Invalid`] for a name that is not in it.
pub fn targets_of_workers(config: &Path, names: &[String], host: &Host) -> Result<Vec<Target>, CalibrateError> {
    let workers: Workers = document::read(config)?;
    if let Some(unknown) = names.iter().find(|name| workers.worker(name).is_none()) {
        return Err(CalibrateError::Invalid {
            what: "worker",
            found: format!("{unknown:?}"),
            expected: "the name of a worker of the configuration",
        });
    }
    let folder =
        std::path::absolute(config).ok().and_then(|path| path.parent().map(Path::to_owned)).unwrap_or_default();
    let cards = Cards::scan(host).ok();
    let address = match workers.common.host.trim_matches(['[', ']']) {
        "0.0.0.0" | "localhost" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    };
    let wanted = workers.workers.iter().filter(|worker| names.is_empty() || names.contains(&worker.name));
    Ok(wanted
        .map(|worker| {
            let identity =
                folder.join(&workers.runtime_root).join("workers").join(&worker.name).join("resolved-identity.json");
            let record = document::read::<WorkerIdentity>(&identity).ok();
            let card = match worker.gpu {
                GpuRef::Pci(pci) => Some(pci),
                GpuRef::Ordinal(ordinal) => record
                    .and_then(|record| record.card)
                    .or_else(|| Some(cards.as_ref()?.resolve(GpuRef::Ordinal(ordinal)).ok()?.pci)),
            };
            Target {
                name: worker.name.clone(),
                url: format!("http://{address}:{}", worker.port),
                card,
                arm: worker.arm,
                period: None,
                inputs: IdentityInputs {
                    worker_identity: identity.is_file().then_some(identity),
                    profile: Some(worker.profile.clone()),
                    ..IdentityInputs::default()
                },
            }
        })
        .collect())
}
