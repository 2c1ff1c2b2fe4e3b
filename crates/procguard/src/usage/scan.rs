//! The walk over `/proc`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io, thread,
    time::{Duration, Instant},
};

use b70_manifest::PciAddress;

use super::{Unreadable, UsageOptions};
use crate::{
    affinity::{
        Affinity, AffinitySource, DeviceSelection, LlamaDevices, LlamaProgram, get, llama_program, resolve_affinity,
    },
    cards::Cards,
    deadline::DeadlineReader,
    fdinfo::FdInfo,
    host::{Host, is_gone},
    process::{ProcStat, command_line, environment},
};

/// Inode of the first pid namespace (`PROC_PID_INIT_INO` of the kernel): whoever is in it sees every process.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

pub(super) struct Process {
    pub(super) stat: ProcStat,
    /// Set for ggml programs only.
    pub(super) affinity: Option<Affinity>,
    pub(super) may_sleep: bool,
}

pub(super) struct Client {
    pub(super) pci: PciAddress,
    pub(super) pids: BTreeSet<u32>,
    pub(super) vram: u64,
    pub(super) host_memory: u64,
    pub(super) active: bool,
}

pub(super) struct Scan {
    pub(super) processes: BTreeMap<u32, Process>,
    pub(super) clients: Vec<Client>,
    pub(super) unreadable: Vec<Unreadable>,
}

struct DrmFd {
    pid: u32,
    path: String,
    minor: u32,
    first: FdInfo,
}

pub(super) fn run(host: &Host, cards: &Cards, options: &UsageOptions) -> Scan {
    let until = Instant::now() + options.deadline;
    let mut scan = Scan { processes: BTreeMap::new(), clients: Vec::new(), unreadable: Vec::new() };
    // Settings of the processes that are visible are all that counts where there is no card to protect.
    if options.fdinfo {
        scan.unreadable = blind_spots(host);
    }
    for what in &cards.unreadable {
        scan.unreadable.push(Unreadable { pid: None, what: format!("a PCI device: {what}"), pci: None });
    }
    let mut reader = DeadlineReader::new(host, options.read_deadline, until);
    let mut fds = Vec::new();
    let mut seen = options.ignore.clone();
    // A process met late may be the child of one that was met and has gone: look again until no new ones appear.
    for _ in 0..3 {
        let pids = match host.pids() {
            Ok(pids) => pids,
            Err(e) => {
                scan.unreadable.push(Unreadable { pid: None, what: format!("the list of processes: {e}"), pci: None });
                break;
            }
        };
        let new: Vec<u32> = pids.into_iter().filter(|p| seen.insert(*p)).collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            if Instant::now() >= until {
                scan.unreadable.push(Unreadable {
                    pid: Some(pid),
                    what: "not reached before the deadline".into(),
                    pci: None,
                });
                continue;
            }
            inspect(host, cards, options, pid, &mut reader, &mut scan, &mut fds);
        }
    }
    second_sample(host, cards, options, &mut reader, &mut scan, fds);
    scan
}

/// What no walk over this `/proc` can show.
fn blind_spots(host: &Host) -> Vec<Unreadable> {
    let mut blind = Vec::new();
    let mut add = |what: &str| blind.push(Unreadable { pid: None, what: what.to_owned(), pci: None });
    match host.link("/proc/self/ns/pid") {
        Ok(link) if link == FIRST_PID_NAMESPACE => {}
        Ok(_) => add("processes outside this pid namespace (is this a container?)"),
        Err(_) => add("whether this pid namespace shows all processes"),
    }
    if host.uid() != 0 {
        match host.read_text("/proc/self/mountinfo") {
            Ok(mounts) => {
                let hides = |l: &str| {
                    l.contains(" - proc ")
                        && l.split(['=', ',', ' '])
                            .zip(l.split(['=', ',', ' ']).skip(1))
                            .any(|(k, v)| k == "hidepid" && !matches!(v, "0" | "off"))
                };
                if mounts.lines().any(hides) {
                    add("other users' processes: /proc is mounted with hidepid");
                }
            }
            Err(e) => add(&format!("how /proc is mounted: {e}")),
        }
    }
    blind
}

#[allow(clippy::too_many_arguments)]
fn inspect(
    host: &Host,
    cards: &Cards,
    options: &UsageOptions,
    pid: u32,
    reader: &mut DeadlineReader,
    scan: &mut Scan,
    fds: &mut Vec<DrmFd>,
) {
    let mut cannot = |what: String| scan.unreadable.push(Unreadable { pid: Some(pid), what, pci: None });
    let stat = match ProcStat::read(host, pid) {
        Ok(Some(stat)) => stat,
        Ok(None) => return,
        Err(e) => return cannot(format!("its state: {e}")),
    };
    if stat.is_kernel_thread() || stat.is_dead() {
        return;
    }
    // A first thread that has ended shows no files; the others still share them.
    let mut base = format!("/proc/{pid}");
    if stat.state == 'Z'
        && let Some(tid) =
            host.list(&format!("/proc/{pid}/task")).ok().and_then(|t| t.into_iter().find(|t| *t != pid.to_string()))
    {
        base = format!("/proc/{pid}/task/{tid}");
    }
    let mut process = Process { stat, affinity: None, may_sleep: false };
    match settled_command_line(host, pid, &mut process.stat) {
        Ok(argv) => {
            let exe = host.link(&format!("/proc/{pid}/exe")).ok();
            if let Some(program) = llama_program(&process.stat.comm, &argv, exe.as_deref()) {
                settings(host, cards, pid, program, &argv, &mut process, &mut cannot);
            }
        }
        Err(e) if is_gone(&e) => return,
        Err(e) => cannot(format!("its command line: {e}")),
    }
    if options.fdinfo {
        open_nodes(host, &base, pid, reader, scan, fds, cards);
    }
    scan.processes.insert(pid, process);
}

/// Arguments of a process. In the middle of an `exec` the kernel shows none, nor an environment, for an instant; a server
/// caught there would seem to have no settings, so it is looked at again, its name too.
fn settled_command_line(host: &Host, pid: u32, stat: &mut ProcStat) -> io::Result<Vec<String>> {
    let mut argv = command_line(host, pid)?;
    for _ in 0..5 {
        if !argv.is_empty() || !host.is_real() {
            break;
        }
        thread::sleep(Duration::from_millis(2));
        argv = command_line(host, pid)?;
        if let Ok(Some(now)) = ProcStat::read(host, pid)
            && now.start_time == stat.start_time
        {
            *stat = now;
        }
    }
    Ok(argv)
}

fn settings(
    host: &Host,
    cards: &Cards,
    pid: u32,
    program: LlamaProgram,
    argv: &[String],
    process: &mut Process,
    cannot: &mut impl FnMut(String),
) {
    let unknown = |why: String| Affinity {
        selection: DeviceSelection::Unknown(why),
        source: AffinitySource::Absent,
        at_most: None,
    };
    let env = match environment(host, pid) {
        Ok(env) => env,
        Err(e) if is_gone(&e) => return,
        Err(e) => {
            let why = format!("its environment: {e}");
            cannot(why.clone());
            process.affinity = Some(unknown(format!("a ggml program; cannot read {why}")));
            return;
        }
    };
    let config = match config_files(host, pid, &env) {
        Ok(files) => files,
        Err(why) => {
            cannot(why.clone());
            process.affinity = Some(unknown(format!("a ggml program; cannot read {why}")));
            return;
        }
    };
    let devices = LlamaDevices::collect(program, &config, &env, argv);
    process.may_sleep = devices.may_sleep();
    // Unreadable maps: what the environment asks for is the next best sign.
    let vulkan = host.read_text(&format!("/proc/{pid}/maps")).map_or_else(
        |_| get(&env, "GGML_VK_VISIBLE_DEVICES").is_some(),
        |m| m.contains("/libvulkan.so") || m.contains("/libggml-vulkan"),
    );
    process.affinity = Some(resolve_affinity(cards, &env, Some((program, &devices)), vulkan));
}

/// llama.cpp's configuration files, in the order in which it applies them, as paths of the process's own view.
pub(crate) fn config_paths(env: &[(String, String)]) -> Vec<String> {
    let user = match get(env, "XDG_CONFIG_HOME").filter(|d| !d.is_empty()) {
        Some(dir) => Some(dir.to_owned()),
        None => get(env, "HOME").filter(|d| !d.is_empty()).map(|home| format!("{home}/.config")),
    };
    let dirs = [Some("/etc".to_owned()), user].into_iter().flatten().filter(|d| d.starts_with('/'));
    dirs.map(|dir| format!("{dir}/llama.cpp/config.ini")).collect()
}

/// Where the looking process finds a path of another process: that one may have another root.
pub(crate) fn seen_from_outside(host: &Host, pid: u32, path: &str) -> String {
    if host.is_real() { format!("/proc/{pid}/root{path}") } else { path.to_owned() }
}

fn config_files(host: &Host, pid: u32, env: &[(String, String)]) -> Result<Vec<String>, String> {
    let mut texts = Vec::new();
    for path in config_paths(env) {
        match host.read_text(&seen_from_outside(host, pid, &path)) {
            Ok(text) => texts.push(text),
            Err(e) if is_gone(&e) || e.kind() == io::ErrorKind::NotADirectory => {}
            Err(e) => return Err(format!("its configuration file {path}: {e}")),
        }
    }
    Ok(texts)
}

fn open_nodes(
    host: &Host,
    base: &str,
    pid: u32,
    reader: &mut DeadlineReader,
    scan: &mut Scan,
    fds: &mut Vec<DrmFd>,
    cards: &Cards,
) {
    let mut cannot = |what: String, pci| scan.unreadable.push(Unreadable { pid: Some(pid), what, pci });
    let names = match host.list(&format!("{base}/fd")) {
        Ok(names) => names,
        // A recorded tree keeps only the descriptors that matter, and no empty directories.
        Err(e) if is_gone(&e) => return,
        Err(e) => return cannot(format!("its open files: {e}"), None),
    };
    for name in names {
        let fd_path = format!("{base}/fd/{name}");
        let link = match host.link(&fd_path) {
            Ok(link) => link,
            Err(e) if is_gone(&e) => continue,
            Err(e) => {
                cannot(format!("open file {name}: {e}"), None);
                continue;
            }
        };
        let Some(minor) = host.drm_minor(&fd_path, &link) else { continue };
        let path = format!("{base}/fdinfo/{name}");
        let pci = node_card(cards, minor);
        let text = match reader.read(&path, false) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            // In a live /proc the descriptor is closed again; in a record it must be there.
            Err(e) if is_gone(&e) && host.is_real() => continue,
            Err(e) => {
                cannot(format!("DRM client of open file {name} ({link}): {e}"), pci);
                continue;
            }
        };
        match FdInfo::parse(&text) {
            Ok(Some(first)) => fds.push(DrmFd { pid, path, minor, first }),
            // Drivers outside the kernel print no keys at all.
            Ok(None) => {
                cannot(format!("DRM client of open file {name} ({link}): its driver says nothing about use"), pci);
            }
            Err(e) => cannot(format!("DRM client of open file {name} ({link}): {e}"), pci),
        }
    }
}

/// The card that a node's minor number belongs to, by name: the kernel names nodes after their minors.
fn node_card(cards: &Cards, minor: u32) -> Option<PciAddress> {
    let is = |node: &Option<String>, name: &str| node.as_deref() == Some(name);
    let (render, card) = (format!("/dev/dri/renderD{minor}"), format!("/dev/dri/card{minor}"));
    cards.cards.iter().find(|c| is(&c.render_node, &render) || is(&c.card_node, &card)).map(|c| c.pci)
}

/// What makes two descriptors one client: the kernel's id, unique per device at least. One without is its own.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum ClientKey {
    Id(u64),
    File(String),
}

fn second_sample(
    host: &Host,
    cards: &Cards,
    options: &UsageOptions,
    reader: &mut DeadlineReader,
    scan: &mut Scan,
    fds: Vec<DrmFd>,
) {
    let mut clients: BTreeMap<(PciAddress, ClientKey), (Client, FdInfo, String)> = BTreeMap::new();
    let mut cannot = |pid, what: String, pci| scan.unreadable.push(Unreadable { pid: Some(pid), what, pci });
    for fd in fds {
        let Some(pci) = fd.first.pdev.or_else(|| node_card(cards, fd.minor)) else {
            cannot(fd.pid, format!("which card minor {} belongs to", fd.minor), None);
            continue;
        };
        let key = (pci, fd.first.client_id.map_or_else(|| ClientKey::File(fd.path.clone()), ClientKey::Id));
        let entry = clients.entry(key).or_insert_with(|| {
            let client = Client { pci, pids: BTreeSet::new(), vram: 0, host_memory: 0, active: false };
            (client, fd.first.clone(), fd.path.clone())
        });
        entry.0.pids.insert(fd.pid);
        // The same client read twice while it allocates: the larger figure is the safe one.
        entry.0.vram = entry.0.vram.max(fd.first.vram());
        entry.0.host_memory = entry.0.host_memory.max(fd.first.host_memory());
    }
    if !clients.is_empty() && host.is_real() {
        thread::sleep(options.sample);
    }
    for (mut client, first, path) in clients.into_values() {
        let pid = client.pids.first().copied().unwrap_or(0);
        match reader.read(&path, true).map(|b| FdInfo::parse(&String::from_utf8_lossy(&b))) {
            Ok(Ok(Some(later))) if later.client_id == first.client_id => {
                client.active = first.worked_until(&later);
                client.vram = client.vram.max(later.vram());
                client.host_memory = client.host_memory.max(later.host_memory());
                if first.work.is_empty() || later.work.is_empty() {
                    cannot(
                        pid,
                        format!("engine counters of its DRM client on {}: the driver printed none", client.pci),
                        Some(client.pci),
                    );
                }
            }
            // Closed in between; the first sample stands.
            Ok(Ok(_)) => {}
            Err(e) if is_gone(&e) => {}
            Ok(Err(e)) => cannot(pid, format!("its DRM client on {}: {e}", client.pci), Some(client.pci)),
            Err(e) => cannot(pid, format!("its DRM client on {}: {e}", client.pci), Some(client.pci)),
        }
        scan.clients.push(client);
    }
}
