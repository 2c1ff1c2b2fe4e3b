//! Two workers side by side, and units.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use b70_procguard::{Host, ProcStat, ProcessSignal, Signaller, VerifiedProcess};

use crate::real::support::{Lane, pid_of};
use b70_testkit::{in_pid_namespace, port_from};

#[test]
#[ignore = "needs a llama-server, a model, root and systemd: cargo xtask test --all"]
fn two_real_workers() {
    if !in_pid_namespace("workers::two_real_workers") {
        return;
    }
    let mut lane = Lane::new(2, 18_900, |_| ());
    let (validation, code) = lane.run(&["validate"]);
    assert_eq!(code, 0, "{validation:#}");
    let (plan, code) = lane.run(&["start"]);
    assert_eq!((code, plan["executed"].as_bool()), (0, Some(false)), "{plan:#}");
    assert!(!lane.dir.path().join("state").exists(), "a dry run touches nothing");

    let begun = Instant::now();
    let (started, code) = lane.run(&["start", "--execute", "--wait", "240"]);
    assert_eq!(code, 0, "{started:#}");
    println!("two workers ready after {:.1} s", begun.elapsed().as_secs_f64());
    let pids: Vec<u32> = started["results"].as_array().unwrap().iter().map(pid_of).collect();
    let (second, code) = lane.run(&["start", "--execute"]);
    assert_eq!((code, second["executed"].as_bool()), (1, Some(false)));
    println!("a second start: {}", second["plan"][0]["reasons"]);
    let states = lane.states("60");
    assert!(states.iter().all(|(s, _)| s == "healthy"), "{states:?}");

    // One works for a client, the other is stopped.
    let mut client = TcpStream::connect(("127.0.0.1", lane.ports[0])).unwrap();
    let body = r#"{"prompt":"Count:","n_predict":400,"ignore_eos":true,"stream":true}"#;
    write!(client, "POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let signaller = Signaller::new();
    let halted = VerifiedProcess::of_child(pids[1]).unwrap();
    signaller.send(&halted, ProcessSignal::Stop).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    let states = lane.states("6");
    println!("busy and stopped read {states:?} within {:.1} s", begun.elapsed().as_secs_f64());
    assert_eq!(states.iter().map(|(s, _)| s.as_str()).collect::<Vec<_>>(), ["busy", "wedged"]);
    signaller.send(&halted, ProcessSignal::Cont).unwrap();
    drop(client);

    // A foreign server that may use both cards blocks both, and is not touched.
    let (stopped, code) = lane.run(&["stop", "--execute", "--wait", "120"]);
    assert_eq!(code, 0, "{stopped:#}");
    println!("stopped: {}", stopped["results"]);
    assert!(pids.iter().all(|p| ProcStat::read(&Host::real(), *p).unwrap().is_none_or(|s| s.is_dead())));
    let foreign = Command::new(&lane.server)
        .args(["--port", &port_from(19_300).to_string(), "-c", "256", "--threads", "1", "-m"])
        .arg(&lane.model)
        .env("ZE_AFFINITY_MASK", "0,1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = foreign.id();
    lane.foreign.push(foreign);
    // Its name changes with its exec.
    std::thread::sleep(Duration::from_millis(500));
    let (plan, code) = lane.run(&["start", "--execute"]);
    assert_eq!((code, plan["executed"].as_bool()), (1, Some(false)), "{plan:#}");
    for action in plan["plan"].as_array().unwrap() {
        let reasons = action["reasons"].to_string();
        assert!(reasons.contains(&format!("foreign process {pid}")), "{reasons}");
        println!("{}: {reasons}", action["worker"]);
    }
    assert!(lane.foreign[0].try_wait().unwrap().is_none(), "the foreign server lives on");
}

#[test]
#[ignore = "needs a llama-server, a model, root and systemd: cargo xtask test --all"]
fn a_rendered_unit_passes_systemds_checker() {
    let lane = Lane::new(2, 19_100, |_| ());
    let out = lane.dir.path().join("units");
    fs::create_dir(&out).unwrap();
    let (_, code) = lane.run(&["render", "--format", "systemd", "--out", out.to_str().unwrap()]);
    assert_eq!(code, 0);
    let units: Vec<PathBuf> = fs::read_dir(&out).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(units.len(), 2);
    let checked = Command::new("systemd-analyze")
        .arg("verify")
        .args(&units)
        .output()
        .expect("systemd-analyze is needed (Debian: apt-get install systemd)");
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    println!("systemd-analyze verify: {} {said}", checked.status);
    // Lines about other units of the machine are not about these.
    let ours: Vec<&str> = said.lines().filter(|l| l.contains("b70-worker-")).collect();
    assert!(checked.status.success() && ours.is_empty(), "{said}");
}
