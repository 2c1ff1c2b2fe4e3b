//! The folder alone: a C program that knows only the header in it checks every output.

mod common;

use std::process::Command;

use b70_golden::{FixtureOptions, HEADER, HEADER_NAME, SET_NAME, SetParameters, prepare};
use b70_testkit::run;

#[test]
fn a_c_program_reads_the_set_by_its_own_header() {
    assert!(HEADER.lines().count() < 100);
    let root = tempfile::tempdir().expect("a scratch folder");
    let parameters = SetParameters { k: 192, n: 48, widths: vec![1, 3, 16], packed: true, ..SetParameters::default() };
    prepare(root.path(), &parameters, &FixtureOptions::default()).expect("a set");
    let set = root.path().join(SET_NAME);
    assert_eq!(std::fs::read_to_string(set.join(HEADER_NAME)).expect("the header travels with the set"), HEADER);
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/consumer.c");
    let program = root.path().join("consumer");
    let mut compile = Command::new(&compiler);
    compile.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-I"]).arg(&set);
    compile.arg(source).arg("-o").arg(&program);
    assert!(
        Command::new(&compiler).arg("--version").output().is_ok(),
        "this test needs a C compiler: install one (Debian, Ubuntu: apt-get install gcc) or name it in CC"
    );
    run(&mut compile);
    let said = run(Command::new(&program).arg(&set).args(["192", "48", "1", "3", "16"]));
    assert_eq!(said, "960 outputs, 0 wrong\n");
}
