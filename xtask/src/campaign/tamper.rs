//! Random edits of every kind of file, with the times put back: nothing edited is trusted.

use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use b70_testkit::writers::{SharedMap, StalledWrite, flip_through_map};
use serde_json::Value;

use super::lab::{Lab, Numbers, Ran, is_working_file, text, tree};
use super::{Size, Tally};
use crate::failure::{AtPath as _, Failure};
use crate::process;

/// What the commands say of an edited file.
enum Said {
    /// The edit was seen.
    Refused,
    /// It was not asked about: the answer does not rest on this file, which was read or hashed again.
    NotBelieved,
    /// The answer is as before.
    Accepted(String),
}

/// A file that is edited.
struct Target {
    kind: &'static str,
    path: PathBuf,
    asks: fn(&World<'_>) -> Result<Said, Failure>,
    /// Fields that describe and on which nothing rests.
    describes: &'static [&'static str],
}

/// Asks the commands about one area.
type Asks = fn(&World<'_>) -> Result<Said, Failure>;

/// Everything that was published, and the commands that judge it.
struct World<'a> {
    lab: &'a Lab,
    packs: String,
    ram: String,
    models: String,
    records: String,
    key: String,
    golden: String,
}

impl World<'_> {
    fn ask(&self, program: &str, args: &[&str]) -> Result<Ran, Failure> {
        self.lab.run(program, args)
    }
}

fn verdict(ran: &Ran) -> Said {
    match (ran.fault(), ran.code) {
        (None, Some(1 | 2)) => Said::Refused,
        _ => Said::Accepted(ran.brief()),
    }
}

fn set(world: &World<'_>) -> Result<Said, Failure> {
    Ok(verdict(&world.ask("b70-pack", &["verify", "--deep", "--cache-root", &world.packs])?))
}

/// No command believes the list of checksums; the next prepare writes it anew.
fn sums(world: &World<'_>) -> Result<Said, Failure> {
    let ran = world.ask("b70-pack", &["verify", "--deep", "--cache-root", &world.packs])?;
    Ok(if ran.code == Some(0) { Said::NotBelieved } else { Said::Refused })
}

/// A stage in memory is read each time.
fn stage(world: &World<'_>) -> Result<Said, Failure> {
    let args = ["stage-validate", "--cache-root", &world.packs, "--ram-root", &world.ram];
    let ran = world.ask("b70-pack", &args)?;
    if let (Some(0), Some(document)) = (ran.code, ran.json()) {
        let read = document["checked_bytes"].as_u64() == document["payload_size_bytes"].as_u64();
        if read && document["trust"] != "immutable" {
            return Ok(Said::NotBelieved);
        }
    }
    Ok(verdict(&ran))
}

/// The source's receipt saves a read of the payloads; without it they are read.
fn source_receipt(world: &World<'_>) -> Result<Said, Failure> {
    let again = world.lab.memory("again");
    super::lab::remove(&again)?;
    let args = ["stage-ram", "--cache-root", &world.packs, "--ram-root", &text(&again), "--min-free", "1048576"];
    let ran = world.ask("b70-pack", &args)?;
    let Some(document) = ran.json().filter(|_| ran.code == Some(0)) else { return Ok(verdict(&ran)) };
    // Copies are always read; the source was read, too, if twice the payloads were.
    let read = document["checked_bytes"].as_u64().unwrap_or(0);
    let payloads = document["payload_size_bytes"].as_u64().unwrap_or(u64::MAX);
    Ok(if read >= 2 * payloads { Said::NotBelieved } else { Said::Accepted(ran.brief()) })
}

fn cache(world: &World<'_>) -> Result<Said, Failure> {
    let select = ["--model", &text(&world.lab.model), "--sha256", &world.lab.sha256, "--cache-root", &world.models];
    Ok(verdict(&world.ask("b70-cache", &[&["verify"], &select[..]].concat())?))
}

/// The quick look that a worker takes: by the receipt, or not at all.
fn cache_look(world: &World<'_>) -> Result<Said, Failure> {
    let select = ["--model", &text(&world.lab.model), "--sha256", &world.lab.sha256, "--cache-root", &world.models];
    let ran = world.ask("b70-cache", &[&["status"], &select[..]].concat())?;
    let document = ran.json().unwrap_or_default();
    let looked = document["entries"][0]["valid"] == true && ran.code == Some(0);
    if looked {
        return Ok(verdict(&ran));
    }
    // Refused by the quick look; the verification that follows reads every byte.
    let ran = world.ask("b70-cache", &[&["verify"], &select[..]].concat())?;
    Ok(if ran.code == Some(0) { Said::NotBelieved } else { Said::Refused })
}

fn registry(world: &World<'_>) -> Result<Said, Failure> {
    let args = ["verify", "--pack-key", &world.key, "--registry-root", &world.records];
    Ok(verdict(&world.ask("b70-registry", &args)?))
}

fn golden(world: &World<'_>) -> Result<Said, Failure> {
    Ok(verdict(&world.ask("b70-golden", &["verify", "--artifact-root", &world.golden])?))
}

/// A stored fingerprint is a claim: made again from the build, it must come out the same.
fn fingerprint(world: &World<'_>) -> Result<Said, Failure> {
    let (source, build) = (text(&world.lab.disk("source")), text(&world.lab.disk("build")));
    let ran = world.ask("b70-registry", &["fingerprint", "--runtime", &source, "--build", &build])?;
    let stored = fs::read(world.lab.disk("fingerprint.json")).ok();
    let stored: Option<Value> = stored.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let same =
        stored.is_some() && ran.json().is_some_and(|now| strip_time(now) == strip_time(stored.unwrap_or_default()));
    Ok(if same { Said::Accepted("the same fingerprint".into()) } else { Said::Refused })
}

fn strip_time(mut document: Value) -> Value {
    if let Some(fields) = document.as_object_mut() {
        fields.retain(|name, _| !name.starts_with("created"));
    }
    document
}

const SET_WORDS: &[&str] = &[
    "/created_",
    "/tool/",
    "/plan",
    "/gguf/",
    "/pack_seconds",
    "/source_manifest",
    "/source_model/path",
    "/source_model/size_bytes",
    "/source_model/hash_",
    "/loader_contract/",
    "/build_fingerprint_sha256",
    "/kernel_abi",
    // Of a golden set: who wrote it, and what it says of itself.
    "/generator/",
    "/note",
];

const CACHE_WORDS: &[&str] = &[
    "/created_",
    "/source/path",
    // By which files an entry is found; what it holds is proved by its digest.
    "/source/identity/",
    "/packing_tool/",
    "/source/mtime_ns",
    "/cached/path",
    "/cached/mtime_ns",
    "/admission/mtime_ns",
    "/role",
    "/runtime/",
    "/target_architecture",
    "/model",
    "/admission/verified_unix",
    "/copy_",
    "/driver/",
    "/kernel_abi",
    "/layout",
];

fn build_world(lab: &Lab) -> Result<(World<'_>, Vec<Target>), Failure> {
    let (model, sha256) = (text(&lab.model), lab.sha256.clone());
    let packs = text(&lab.disk("packs"));
    lab.must("b70-pack", ["prepare", "--model", &model, "--sha256", &sha256, "--cache-root", &packs])?;
    let ram = text(&lab.memory("ram"));
    let stage_args = ["stage-ram", "--cache-root", &packs, "--ram-root", &ram, "--min-free", "1048576"];
    lab.must("b70-pack", stage_args)?;
    let models = text(&lab.memory("models"));
    let select = ["--model", &model, "--sha256", &sha256, "--cache-root", &models];
    lab.must("b70-cache", [&["prepare", "--min-free", "1", "--no-measure"], &select[..]].concat())?;
    let artifact = lab.disk("artifact");
    fs::create_dir_all(artifact.join("b")).at("create", &artifact)?;
    for (name, size) in [("a.bin", 9000_usize), ("b/c.txt", 77)] {
        fs::write(artifact.join(name), vec![3; size]).at("write", &artifact)?;
    }
    let records = text(&lab.disk("records"));
    let names = ["--packer-revision", "1", "--layout", "a-layout", "--kernel-abi", "an-abi", "--sha256", &sha256];
    let register = ["register", "--artifact", &text(&artifact), "--registry-root", &records];
    let key = lab.must("b70-registry", [&register[..], &names[..]].concat())?["key"].as_str().unwrap_or("").to_owned();
    let golden_root = text(&lab.disk("golden"));
    let sizes = ["--k", "256", "--n", "32", "--widths", "1,4", "--packed"];
    lab.must("b70-golden", [&["prepare", "--artifact-root", &golden_root], &sizes[..]].concat())?;
    make_build(lab)?;
    let (source, build) = (text(&lab.disk("source")), text(&lab.disk("build")));
    let stored = lab.must("b70-registry", ["fingerprint", "--runtime", &source, "--build", &build])?;
    let path = lab.disk("fingerprint.json");
    fs::write(&path, format!("{stored:#}\n")).at("write", &path)?;

    let world = World { lab, packs, ram, models, records, key, golden: golden_root };
    let mut targets = Vec::new();
    let areas: [(&str, PathBuf, Asks); 6] = [
        ("set", lab.disk("packs"), set),
        ("stage", lab.memory("ram"), stage),
        ("cache", lab.memory("models"), cache),
        ("artifact", artifact, registry),
        ("registry", lab.disk("records"), registry),
        ("golden", lab.disk("golden"), golden),
    ];
    for (area, folder, asks) in areas {
        for name in tree(&folder).into_keys().filter(|name| !is_working_file(name) && !name.contains(".receipts/")) {
            let end = |end: &str| name.ends_with(end);
            let (kind, asks): (&'static str, Asks) = match area {
                "set" if end("deep-validation.json") => ("set receipt", source_receipt),
                "set" if end("SHA256SUMS") => ("set SHA256SUMS", sums),
                "set" if end(".bin") => ("set payload", asks),
                "set" if end("/manifest.json") => ("set manifest", asks),
                "set" if end(".tsv") => ("set index", asks),
                "set" => ("set sidecar", asks),
                "stage" if end("ram-stage.json") => ("ram-stage.json", asks),
                "stage" if end(".bin") => ("stage payload", asks),
                "stage" if end("/manifest.json") => ("stage manifest", asks),
                "stage" if end(".tsv") => ("stage index", asks),
                "stage" if end("SHA256SUMS") => ("stage SHA256SUMS", sums),
                "stage" if end("deep-validation.json") => ("stage receipt", asks),
                "stage" => ("stage sidecar", asks),
                "cache" if end("cache-entry.json") => ("cache entry", cache_look),
                "cache" if end(".gguf") => ("cache copy", asks),
                "cache" => ("cache receipt", cache_look),
                "artifact" => ("registered artifact", asks),
                "registry" => ("registry record", asks),
                _ if end(".json") => ("golden manifest", asks),
                _ => ("golden tensor", asks),
            };
            targets.push(Target {
                kind,
                path: folder.join(&name),
                asks,
                describes: if area == "cache" { CACHE_WORDS } else { SET_WORDS },
            });
        }
    }
    targets.push(Target { kind: "fingerprint", path, asks: fingerprint, describes: &["/created_"] });
    Ok((world, targets))
}

/// A source tree and a build of it, as far as a fingerprint looks.
fn make_build(lab: &Lab) -> Result<(), Failure> {
    let source = lab.disk("source");
    let files = [
        ("source/main.cpp", "int main() {}\n".to_owned()),
        (
            "build/CMakeCache.txt",
            format!("CMAKE_CXX_COMPILER:FILEPATH=/usr/bin/c++\nCMAKE_HOME_DIRECTORY:INTERNAL={}\n", source.display()),
        ),
    ];
    for (name, content) in files {
        let path = lab.disk(name);
        fs::create_dir_all(path.parent().unwrap_or(&source)).at("create", &path)?;
        fs::write(&path, content).at("write", &path)?;
    }
    let binary = lab.disk("build/bin/llama-server");
    fs::create_dir_all(binary.parent().unwrap_or(&source)).at("create", &binary)?;
    fs::copy("/bin/true", &binary).at("copy", Path::new("/bin/true"))?;
    for args in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "one"]] {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=x", "-c", "user.email=x@example.org"]).args(args).current_dir(&source);
        process::run(&mut command, "install git")?;
    }
    Ok(())
}

pub(crate) fn run(lab: &Lab, size: Size, seed: u64, tally: &mut Tally) -> Result<(), Failure> {
    let (world, targets) = build_world(lab)?;
    let mut kinds: Vec<&str> = targets.iter().map(|target| target.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    tally.add("kinds of file", kinds.len() as u64);
    let mut numbers = Numbers(seed);
    let edits = size.pick(100, 1000);
    for turn in 0..edits {
        if lab.is_late() {
            break;
        }
        // Each kind equally often, whatever the number of its files.
        let kind = kinds[turn % kinds.len()];
        let of_kind: Vec<&Target> = targets.iter().filter(|target| target.kind == kind).collect();
        let target = *numbers.pick(&of_kind);
        // Before: all is well, and what saves reading is live, so that there is something to be deceived.
        if let Said::Refused = (target.asks)(&world)? {
            tally.violation(format!("{kind}: refused although nothing is changed"));
            mend(&world)?;
        }
        if !target.path.exists() {
            mend(&world)?;
        }
        let before = Kept::of(&target.path)?;
        let (edited, how) = edit(&before.bytes, &mut numbers);
        if edited == before.bytes {
            continue;
        }
        before.replace(&edited)?;
        tally.count("edits");
        tally.count(format!("of {kind}"));
        match (target.asks)(&world)? {
            Said::Refused => tally.count("refused"),
            // The bytes were read: then those of payloads must have been found wrong.
            Said::NotBelieved if kind.ends_with("payload") || kind.ends_with("copy") => {
                tally.violation(format!("{how} of {kind} ({}): read, and not refused", target.path.display()));
            }
            Said::NotBelieved => tally.count("not believed, bytes read instead"),
            Said::Accepted(said) => {
                let changed = changed_fields(&before.bytes, &edited);
                // A sidecar is also an entry of the manifest, by its number.
                let within = |field: &str| -> String {
                    let entry = field.strip_prefix("/tensors/").and_then(|rest| rest.split_once('/'));
                    match entry {
                        Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => format!("/{rest}"),
                        _ => field.to_owned(),
                    }
                };
                let describes = |field: &String| {
                    target.describes.iter().any(|known| {
                        let field = within(field);
                        field == *known || (known.ends_with(['/', '_']) && field.starts_with(known))
                    })
                };
                match changed {
                    Some(fields) if fields.iter().all(describes) => tally.count("words on which nothing rests"),
                    _ => tally
                        .violation(format!("{how} of {kind} ({}): {said}; fields {changed:?}", target.path.display())),
                }
            }
        }
        before.put_back()?;
        if turn % size.pick(25, 50) == 0 {
            unharmed(&world, &targets, kind, tally)?;
        }
    }
    for kind in &kinds {
        unharmed(&world, &targets, kind, tally)?;
    }
    writers(&world, &targets, size, &mut numbers, tally)
}

/// Writers that a time stamp does not tell of, or not in time; after each of them every verdict is tried against the bytes.
fn writers(
    world: &World<'_>,
    targets: &[Target],
    size: Size,
    numbers: &mut Numbers,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let victims: Vec<&Target> =
        targets.iter().filter(|target| matches!(target.kind, "set payload" | "stage payload" | "cache copy")).collect();
    mend(world)?;
    for _ in 0..size.pick(40, 1000) {
        if world.lab.is_late() {
            break;
        }
        let target = *numbers.pick(&victims);
        let (kind, path) = (target.kind, &target.path);
        let before = Kept::of(path)?;
        let (at, mask) = (numbers.below(before.bytes.len()), 1 << numbers.below(8));
        // So that there is a live receipt to be deceived by.
        world.lab.must("b70-pack", ["verify", "--deep", "--cache-root", &world.packs])?;
        let how = match numbers.below(4) {
            0 => {
                flip_through_map(path, at, mask);
                "a mapping that read first"
            }
            1 => {
                let mut bytes = before.bytes.clone();
                bytes[at] ^= mask;
                before.replace(&bytes)?;
                "the owner's chmod, times put back"
            }
            2 => {
                // Mapped while the owner had permission; what is proved meanwhile must not be believed later.
                let mut map = SharedMap::of(path);
                quick_look(world, kind)?;
                map.flip(at, mask);
                "a mapping held over a proof"
            }
            _ => {
                let Ok(stalled) = StalledWrite::begin(
                    path,
                    &before.bytes[..before.bytes.len().min(4096)].iter().map(|byte| byte ^ mask).collect::<Vec<u8>>(),
                ) else {
                    tally.count("stalled writes left out: userfaultfd needs root");
                    continue;
                };
                let released = std::thread::spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    stalled.release()
                });
                quick_look(world, kind)?;
                released.join().expect("it does not panic").at("write", path)?;
                "a write that stalled over a proof"
            }
        };
        tally.count(format!("writers: {how}"));
        let said = quick_look(world, kind)?;
        let now = fs::read(path).unwrap_or_default();
        match said {
            // prepare mends what it finds, so that its word must be true of what is there now.
            Some(said) if now != before.bytes => {
                tally.violation(format!("{how} of {kind} ({}): believed: {said}", path.display()));
            }
            Some(_) => tally.count("writers: mended, and right"),
            None => tally.count("writers: refused"),
        }
        // A document that the look took away comes back with the next one.
        before.put_back()?;
        mend(world)?;
    }
    Ok(())
}

/// The look that a start takes: what it said where it admitted the artifact.
fn quick_look(world: &World<'_>, kind: &str) -> Result<Option<String>, Failure> {
    let select = ["--model", &text(&world.lab.model), "--sha256", &world.lab.sha256, "--cache-root"];
    let ran = match kind {
        "set payload" => world.ask("b70-pack", &[&["prepare"], &select[..], &[&world.packs]].concat())?,
        "stage payload" => {
            world.ask("b70-pack", &["stage-validate", "--cache-root", &world.packs, "--ram-root", &world.ram])?
        }
        _ => world.ask("b70-cache", &[&["status"], &select[..], &[&world.models]].concat())?,
    };
    Ok((ran.code == Some(0)).then(|| ran.brief()))
}

/// With the bytes put back all is well again: a check that refused everything would prove nothing.
fn unharmed(world: &World<'_>, targets: &[Target], kind: &str, tally: &mut Tally) -> Result<(), Failure> {
    let Some(target) = targets.iter().find(|target| target.kind == kind) else { return Ok(()) };
    if let Said::Refused = (target.asks)(world)? {
        tally.violation(format!("{kind}: refused although nothing is changed any more"));
    }
    tally.count("looks at what is unharmed");
    Ok(())
}

/// A file as it was.
struct Kept<'a> {
    path: &'a Path,
    bytes: Vec<u8>,
    modified: SystemTime,
    accessed: SystemTime,
    mode: u32,
}

impl<'a> Kept<'a> {
    fn of(path: &'a Path) -> Result<Self, Failure> {
        let metadata = fs::metadata(path).at("look at", path)?;
        Ok(Self {
            path,
            bytes: fs::read(path).at("read", path)?,
            modified: metadata.modified().at("look at", path)?,
            accessed: metadata.accessed().at("look at", path)?,
            mode: metadata.permissions().mode(),
        })
    }

    /// The bytes of before; a document that a command wrote anew meanwhile stays as that command left it.
    fn put_back(&self) -> Result<(), Failure> {
        if self.path.exists() { self.replace(&self.bytes) } else { Ok(()) }
    }

    /// Other bytes in place, with the mode and the times of before.
    fn replace(&self, bytes: &[u8]) -> Result<(), Failure> {
        fs::set_permissions(self.path, Permissions::from_mode(0o644)).at("change the mode of", self.path)?;
        fs::write(self.path, bytes).at("write", self.path)?;
        let file = File::options().write(true).open(self.path).at("open", self.path)?;
        let times = FileTimes::new().set_modified(self.modified).set_accessed(self.accessed);
        file.set_times(times).at("set the times of", self.path)?;
        fs::set_permissions(self.path, Permissions::from_mode(self.mode)).at("change the mode of", self.path)
    }
}

/// Runs what publishes once more.
fn mend(world: &World<'_>) -> Result<(), Failure> {
    let (model, sha256) = (text(&world.lab.model), &world.lab.sha256);
    let select = ["--model", &model, "--sha256", sha256, "--cache-root"];
    world.lab.must("b70-pack", [&["prepare"], &select[..], &[&world.packs]].concat())?;
    let stage = ["stage-ram", "--cache-root", &world.packs, "--ram-root", &world.ram, "--min-free", "1048576"];
    world.lab.must("b70-pack", stage)?;
    let cache = [&["prepare", "--min-free", "1", "--no-measure"], &select[..], &[&world.models]].concat();
    world.lab.must("b70-cache", cache)?;
    Ok(())
}

fn edit(bytes: &[u8], numbers: &mut Numbers) -> (Vec<u8>, &'static str) {
    let mut edited = bytes.to_vec();
    if let Ok(mut document) = serde_json::from_slice::<Value>(bytes)
        && numbers.below(2) == 0
    {
        let mut leaves = Vec::new();
        collect_leaves(&document, &mut String::new(), &mut leaves);
        let pointer = numbers.pick(&leaves).clone();
        if let Some(leaf) = document.pointer_mut(&pointer) {
            *leaf = another(leaf, numbers);
            return (format!("{document:#}\n").into_bytes(), "another value");
        }
    }
    if edited.is_empty() {
        return (vec![1], "a byte where there was none");
    }
    let at = numbers.below(edited.len());
    match numbers.below(6) {
        0 | 1 => {
            edited[at] ^= 1 << numbers.below(8);
            (edited, "a bit")
        }
        2 => {
            edited[at] = numbers.next().to_le_bytes()[0];
            (edited, "a byte")
        }
        3 => {
            edited.truncate(at);
            (edited, "a cut")
        }
        4 => {
            edited.insert(at, numbers.next().to_le_bytes()[0]);
            (edited, "a byte more")
        }
        _ => {
            let other = numbers.below(edited.len());
            edited.swap(at, other);
            (edited, "two bytes that change places")
        }
    }
}

fn collect_leaves(value: &Value, at: &mut String, leaves: &mut Vec<String>) {
    let length = at.len();
    let members: Vec<(String, &Value)> = match value {
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value)).collect()
        }
        Value::Array(items) => items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect(),
        _ => {
            leaves.push(at.clone());
            return;
        }
    };
    for (name, member) in members {
        at.push('/');
        at.push_str(&name);
        collect_leaves(member, at, leaves);
        at.truncate(length);
    }
}

fn another(leaf: &Value, numbers: &mut Numbers) -> Value {
    match leaf {
        Value::Bool(value) => Value::Bool(!value),
        Value::Number(number) => {
            number.as_u64().map_or(Value::from(1), |number| Value::from(number ^ (1 << numbers.below(20))))
        }
        Value::String(text) => {
            let mut text: Vec<char> = text.chars().collect();
            if text.is_empty() {
                return Value::from("x");
            }
            let at = numbers.below(text.len());
            text[at] = if text[at] == 'a' { 'b' } else { 'a' };
            Value::from(text.into_iter().collect::<String>())
        }
        _ => Value::from(0),
    }
}

/// The fields of a JSON document that differ; nothing if either is not a JSON document.
fn changed_fields(before: &[u8], after: &[u8]) -> Option<Vec<String>> {
    let (before, after): (Value, Value) = (serde_json::from_slice(before).ok()?, serde_json::from_slice(after).ok()?);
    let mut names = Vec::new();
    for document in [&before, &after] {
        collect_leaves(document, &mut String::new(), &mut names);
    }
    names.sort_unstable();
    names.dedup();
    // A field that was not there before says nothing to anybody.
    names.retain(|name| before.pointer(name).is_some() && before.pointer(name) != after.pointer(name));
    Some(names)
}
