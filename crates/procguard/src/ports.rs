//! Is a port free, and whose is it?

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with, sockopt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::host::{Host, is_gone};

/// One line of `/proc/net/tcp` or `tcp6`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSocket {
    /// Its own address.
    pub local: SocketAddr,
    /// State, `0x0a` for listening, `0x01` for established.
    pub state: u8,
    /// Owner's user id.
    pub uid: u32,
    /// Inode of the socket; 0 once nobody holds it (e.g. `TIME_WAIT`).
    pub inode: u64,
}

/// State of a listening socket.
pub(crate) const TCP_LISTEN: u8 = 0x0a;

/// A process that holds a socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct SocketHolder {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub comm: String,
}

/// A socket in the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortOwner {
    /// Its local address.
    pub address: String,
    /// `listening`, or the kernel's state in a word: `established` may be an outgoing connection that was given this port.
    pub state: String,
    /// Owner's user id.
    pub uid: u32,
    /// Processes that hold it; empty when they could not be found.
    pub holders: Vec<SocketHolder>,
    /// Some processes' files could not be read, so holders may be missing.
    pub incomplete: bool,
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum PortState {
    /// It can be bound now. The last word is the server's own bind.
    Free,
    /// It cannot, because of these; empty when the socket is not in the kernel's tables (bound but not listening).
    InUse {
        /// Who is in the way.
        owners: Vec<PortOwner>,
    },
    /// It cannot be bound for another reason: address not of this machine, privileged port, …
    Refused {
        /// The kernel's words.
        reason: String,
    },
}

/// Whose is the listening socket at an address?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum ListenerOwnership {
    /// Every listener there is held by the processes asked about.
    Ours {
        /// Those of them that hold it.
        pids: Vec<u32>,
    },
    /// Others hold one too, or alone: answers may come from them.
    Foreign {
        /// They.
        owners: Vec<PortOwner>,
    },
    /// Nobody listens.
    NotListening,
    /// It could not be determined.
    Unknown {
        /// Why.
        reason: String,
    },
}

impl TcpSocket {
    /// Parses one line; `None` for the header and anything else.
    pub fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (ip, port) = fields.get(1)?.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        if !ip.is_ascii() {
            return None;
        }
        // 32-bit words in the machine's byte order, each printed as a number.
        let word = |i: usize| u32::from_str_radix(ip.get(i * 8..i * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
        let ip: IpAddr = match ip.len() {
            8 => Ipv4Addr::from(word(0)?).into(),
            32 => {
                let mut bytes = [0; 16];
                for i in 0..4 {
                    bytes[i * 4..i * 4 + 4].copy_from_slice(&word(i)?);
                }
                Ipv6Addr::from(bytes).into()
            }
            _ => return None,
        };
        Some(Self {
            local: SocketAddr::new(ip, port),
            state: u8::from_str_radix(fields.get(3)?, 16).ok()?,
            uid: fields.get(7)?.parse().ok()?,
            inode: fields.get(9)?.parse().ok()?,
        })
    }
}

/// All TCP sockets of the looking process's network namespace.
pub(crate) fn tcp_sockets(host: &Host) -> io::Result<Vec<TcpSocket>> {
    let mut all: Vec<TcpSocket> = host.read_text("/proc/net/tcp")?.lines().filter_map(TcpSocket::parse).collect();
    match host.read_text("/proc/net/tcp6") {
        Ok(text) => all.extend(text.lines().filter_map(TcpSocket::parse)),
        Err(e) if is_gone(&e) => {}
        Err(e) => return Err(e),
    }
    Ok(all)
}

/// Could a socket bound at `theirs` stand in the way of one at `ours`? A dual-stack `[::]` covers IPv4 too; whether it
/// is dual-stack is not in the table, so this is "could".
fn overlaps(ours: SocketAddr, theirs: SocketAddr) -> bool {
    let v4 = |ip: IpAddr| match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    };
    let (a, b) = (v4(ours.ip()), v4(theirs.ip()));
    ours.port() == theirs.port() && (a == b || a.is_unspecified() || b.is_unspecified())
}

/// Probes an address as llama-server will bind it: `SO_REUSEADDR` only, never `SO_REUSEPORT`, no `listen`.
///
/// A bind for an instant would make a server fail that starts at the same instant, so where the kernel's table already
/// shows a listener on exactly this address nothing is bound. `v6_only` as the server will set it: llama-server does
/// when it is given several addresses.
pub fn probe_port(address: SocketAddr, v6_only: bool) -> io::Result<PortState> {
    let host = Host::real();
    let sockets = tcp_sockets(&host)?;
    let exact = sockets.iter().any(|s| s.state == TCP_LISTEN && s.local == address && address.port() != 0);
    if exact {
        return Ok(PortState::InUse { owners: owners(&host, &sockets, address) });
    }
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, v6_only)?;
    }
    match bind(&fd, &address) {
        Ok(()) => Ok(PortState::Free),
        Err(rustix::io::Errno::ADDRINUSE) => {
            drop(fd);
            Ok(PortState::InUse { owners: owners(&host, &tcp_sockets(&host)?, address) })
        }
        Err(e) => Ok(PortState::Refused { reason: e.to_string() }),
    }
}

/// Names the sockets of a host that overlap an address, listening ones first.
pub fn port_owners(host: &Host, address: SocketAddr) -> io::Result<Vec<PortOwner>> {
    Ok(owners(host, &tcp_sockets(host)?, address))
}

fn owners(host: &Host, sockets: &[TcpSocket], address: SocketAddr) -> Vec<PortOwner> {
    let hits: Vec<&TcpSocket> = sockets.iter().filter(|s| overlaps(address, s.local)).collect();
    let (holders, incomplete) = socket_holders(host, &hits.iter().map(|s| s.inode).filter(|i| *i != 0).collect());
    let mut found: Vec<PortOwner> = hits
        .iter()
        .map(|s| PortOwner {
            address: s.local.to_string(),
            state: state_word(s.state),
            uid: s.uid,
            holders: holders.get(&s.inode).cloned().unwrap_or_default(),
            incomplete,
        })
        .collect();
    found.sort_by_key(|o| o.state != "listening");
    found
}

/// The kernel's TCP states in words.
fn state_word(state: u8) -> String {
    match state {
        0x01 => "established",
        0x02 => "connecting",
        0x04 | 0x05 | 0x09 | 0x0b => "closing",
        0x06 => "time-wait",
        0x07 => "closed",
        0x08 => "close-wait",
        TCP_LISTEN => "listening",
        other => return format!("state {other:#04x}"),
    }
    .into()
}

/// Which processes hold which of these sockets, and whether some processes could not be asked.
fn socket_holders(host: &Host, inodes: &BTreeSet<u64>) -> (BTreeMap<u64, Vec<SocketHolder>>, bool) {
    let mut found: BTreeMap<u64, Vec<SocketHolder>> = BTreeMap::new();
    let mut incomplete = false;
    if inodes.is_empty() {
        return (found, incomplete);
    }
    let Ok(pids) = host.pids() else { return (found, true) };
    for pid in pids {
        let names = match host.list(&format!("/proc/{pid}/fd")) {
            Ok(names) => names,
            Err(e) => {
                incomplete |= !is_gone(&e);
                continue;
            }
        };
        let mut held = BTreeSet::new();
        for name in names {
            let Ok(link) = host.link(&format!("/proc/{pid}/fd/{name}")) else { continue };
            let inode = link.strip_prefix("socket:[").and_then(|l| l.strip_suffix(']')).and_then(|i| i.parse().ok());
            held.extend(inode.filter(|i| inodes.contains(i)));
        }
        for inode in held {
            let comm =
                host.read_text(&format!("/proc/{pid}/comm")).map(|c| c.trim_end().to_owned()).unwrap_or_default();
            found.entry(inode).or_default().push(SocketHolder { pid, comm });
        }
    }
    (found, incomplete)
}

/// Whose listener answers at `address`: asked after a start, so that another server's answers are not taken for ours.
///
/// Several processes may hold one socket (by `fork`) and several sockets one port (by `SO_REUSEPORT`): it is ours only
/// if each listener that could answer is held by one of `pids`.
pub fn listening_inode_belongs_to(host: &Host, address: SocketAddr, pids: &BTreeSet<u32>) -> ListenerOwnership {
    let sockets = match tcp_sockets(host) {
        Ok(sockets) => sockets,
        Err(e) => return ListenerOwnership::Unknown { reason: format!("/proc/net/tcp: {e}") },
    };
    let listeners: Vec<TcpSocket> =
        sockets.into_iter().filter(|s| s.state == TCP_LISTEN && overlaps(address, s.local)).collect();
    if listeners.is_empty() {
        return ListenerOwnership::NotListening;
    }
    let (holders, incomplete) = socket_holders(host, &listeners.iter().map(|s| s.inode).collect());
    let ours = |s: &TcpSocket| holders.get(&s.inode).is_some_and(|h| h.iter().any(|p| pids.contains(&p.pid)));
    if listeners.iter().all(ours) {
        let held: BTreeSet<u32> = holders.values().flatten().map(|h| h.pid).filter(|p| pids.contains(p)).collect();
        return ListenerOwnership::Ours { pids: held.into_iter().collect() };
    }
    let unnamed = listeners.iter().any(|s| !holders.contains_key(&s.inode));
    if unnamed && incomplete {
        return ListenerOwnership::Unknown {
            reason: "the listener's process is among those whose files cannot be read".into(),
        };
    }
    ListenerOwnership::Foreign { owners: owners(host, &listeners, address) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let line = "   0: 0100007F:4D08 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 3309 1 0 100 0 0 10 0";
        let s = TcpSocket::parse(line).unwrap();
        assert_eq!(
            (s.local.to_string().as_str(), s.state, s.uid, s.inode),
            ("127.0.0.1:19720", TCP_LISTEN, 1000, 3309)
        );
        let line = "   1: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0 100 0 0 10 0";
        assert_eq!(TcpSocket::parse(line).unwrap().local.to_string(), "[::1]:8080");
        assert_eq!(TcpSocket::parse("  sl  local_address rem_address   st"), None);
    }

    #[test]
    fn wildcards_overlap_and_loopbacks_do_not() {
        let a = |t: &str| t.parse().unwrap();
        assert!(overlaps(a("127.0.0.1:80"), a("0.0.0.0:80")));
        assert!(overlaps(a("127.0.0.1:80"), a("[::]:80")));
        assert!(overlaps(a("127.0.0.1:80"), a("[::ffff:127.0.0.1]:80")));
        assert!(!overlaps(a("127.0.0.1:80"), a("127.0.0.2:80")));
        assert!(!overlaps(a("127.0.0.1:80"), a("127.0.0.1:81")));
    }

    proptest::proptest! {
        #[test]
        fn no_line_panics(line in ".{0,80}", like in "[0-9]: [0-9A-F]{0,34}:[0-9A-F]{0,5} x [0-9A-F]{0,3} a b c [0-9]{0,12} d [0-9]{0,22}") {
            let _ = TcpSocket::parse(&line);
            let _ = TcpSocket::parse(&like);
        }
    }
}
