//! Bind probes against real sockets.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
};

use b70_procguard::{Host, ListenerOwnership, PortState, listening_inode_belongs_to, probe_port};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket, sockopt};

fn raw(reuse_address: bool, reuse_port: bool) -> (OwnedFd, SocketAddr) {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&fd, reuse_address).unwrap();
    sockopt::set_socket_reuseport(&fd, reuse_port).unwrap();
    bind(&fd, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = SocketAddr::try_from(getsockname(&fd).unwrap()).unwrap();
    (fd, address)
}

fn owners(state: PortState) -> Vec<b70_procguard::PortOwner> {
    match state {
        PortState::InUse { owners } => owners,
        other => panic!("expected in use, got {other:?}"),
    }
}

/// Another test's child may hold a copy of a closed socket between its fork and its exec.
fn becomes_free(address: SocketAddr) -> bool {
    (0..200).any(|_| {
        let free = probe_port(address, false).unwrap() == PortState::Free;
        if !free {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        free
    })
}

#[test]
fn a_listener_is_named_and_its_wildcard_overlap_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let me = std::process::id();
    let found = owners(probe_port(address, false).unwrap());
    assert!(found[0].state == "listening" && found[0].holders.iter().any(|h| h.pid == me), "{found:?}");
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
    assert!(owners(probe_port(any, false).unwrap()).iter().any(|o| o.holders.iter().any(|h| h.pid == me)));
    let other = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), address.port()));
    assert_eq!(probe_port(other, false).unwrap(), PortState::Free);
    let host = Host::real();
    assert_eq!(listening_inode_belongs_to(&host, address, &[me].into()), ListenerOwnership::Ours { pids: vec![me] });
    assert!(matches!(listening_inode_belongs_to(&host, address, &[1].into()), ListenerOwnership::Foreign { .. }));
    drop(listener);
    assert!(becomes_free(address));
    assert_eq!(listening_inode_belongs_to(&host, address, &[me].into()), ListenerOwnership::NotListening);
}

#[test]
fn bound_and_not_listening_is_in_use_although_the_tables_show_nothing() {
    let (fd, address) = raw(false, false);
    assert!(TcpStream::connect(address).is_err(), "a connect test would call it free");
    assert_eq!(probe_port(address, false).unwrap(), PortState::InUse { owners: vec![] });
    drop(fd);
    assert!(becomes_free(address));
}

#[test]
fn a_sharing_listener_is_not_shared_with() {
    let (fd, address) = raw(true, true);
    listen(&fd, 1).unwrap();
    assert_eq!(owners(probe_port(address, false).unwrap()).len(), 1);
}

#[test]
fn an_outgoing_connection_holds_its_port() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let local = stream.local_addr().unwrap();
    let found = owners(probe_port(local, false).unwrap());
    assert!(found.iter().any(|o| o.state == "established"), "{found:?}");
}

#[test]
fn an_address_of_another_machine_is_refused_with_the_kernels_words() {
    let state = probe_port("192.0.2.1:8080".parse().unwrap(), false).unwrap();
    assert!(matches!(&state, PortState::Refused { reason } if !reason.is_empty()), "{state:?}");
}
