//! llama.cpp's own device flags: configuration files, then environment, then command line.

use std::collections::{BTreeMap, BTreeSet};

use super::get;

/// A program that computes with ggml, as far as its own flags are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LlamaProgram {
    /// `llama-server`, `llama serve`, `llama-bench`, … with llama.cpp's common flags.
    Common,
    /// `rpc-server`: computes for a client elsewhere.
    RpcServer,
    /// A runner of ollama or a Python server: only the environment pins it.
    Embedded,
}

/// Programs of the same name family that never compute on a GPU; the last two only start servers.
const NO_GPU: &[&str] =
    &["llama-quantize", "llama-gguf", "llama-gguf-hash", "llama-gguf-split", "llama-swap", "llama-mdl"];

/// Recognises a ggml program by its names. A name is a label, never ownership: it widens what blocks a card, and
/// nothing is ever signalled because of it.
pub fn llama_program(comm: &str, argv: &[String], exe: Option<&str>) -> Option<LlamaProgram> {
    let base = |p: &str| {
        let p = p.strip_suffix(" (deleted)").unwrap_or(p);
        p.rsplit('/').next().unwrap_or(p).to_owned()
    };
    let names: Vec<String> =
        [Some(base(comm)), argv.first().map(|a| base(a)), exe.map(base)].into_iter().flatten().collect();
    let is = |f: &dyn Fn(&str) -> bool| names.iter().any(|n| f(n));
    if is(&|n| NO_GPU.contains(&n)) {
        return None;
    }
    if is(&|n| n == "rpc-server" || n == "ggml-rpc-server") {
        return Some(LlamaProgram::RpcServer);
    }
    if is(&|n| n == "llama" || n.starts_with("llama-")) {
        return Some(LlamaProgram::Common);
    }
    let runner = is(&|n| n.starts_with("ollama")) && argv.iter().skip(1).any(|a| a == "runner");
    let python = argv.iter().any(|a| a == "llama_cpp.server" || a == "llama_cpp");
    (runner || python || is(&|n| n.starts_with("ollama_llama"))).then_some(LlamaProgram::Embedded)
}

/// Options that take no value (llama.cpp b11434); every other known or unknown option takes one.
const NO_VALUE: &str = "-h --help --usage --version -cl --cache-list --completion-bash --verbose-prompt --display-prompt \
--no-display-prompt --swa-full -kvu --kv-unified -no-kvu --no-kv-unified --cache-idle-slots --no-cache-idle-slots \
--context-shift --no-context-shift --perf --no-perf --show-timings --no-show-timings -e --escape --no-escape \
--prompt-cache-all --prompt-cache-ro -sp --special -cnv --conversation -no-cnv --no-conversation -st --single-turn -i \
--interactive -if --interactive-first -mli --multiline-input --in-prefix-bos --warmup --no-warmup --spm-infill \
--ignore-eos -bs --backend-sampling -kvo --kv-offload -nkvo --no-kv-offload --repack -nr --no-repack --no-host \
--hellaswag --winogrande --multiple-choice --kl-divergence -cb --cont-batching -nocb --no-cont-batching --mmproj-auto \
--no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload --list-devices -cmoe --cpu-moe --check-tensors \
--op-offload --no-op-offload --mtp --dflash --eagle3 --nextn --ppl --no-ppl --reuse-port --cors-credentials \
--no-cors-credentials --ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy -ag --agent -no-ag \
--no-agent --ui --webui --no-ui --no-webui --embedding --embeddings --rerank --reranking --cache-prompt \
--no-cache-prompt --metrics --props --slots --no-slots --models-autoload --no-models-autoload --jinja --no-jinja \
--reasoning-preserve --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing --prefill-assistant \
--no-prefill-assistant --lora-init-without-apply --simple-io --log-disable --log-jsonl --no-log-jsonl -v --verbose \
--log-verbose --offline --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps --spec-draft-cpu-moe -cmoed \
--cpu-moe-draft --spec-draft-backend-sampling --no-spec-draft-backend-sampling --embd-gemma-default \
--fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec \
--fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default \
--vision-gemma-12b-default --spec-default --no-mmap --mmap --mlock";

/// (canonical name, its spellings on the command line, its environment variable).
const OPTIONS: &[(&str, &[&str], Option<&str>)] = &[
    ("device", &["-dev", "--device"], Some("LLAMA_ARG_DEVICE")),
    ("split-mode", &["-sm", "--split-mode"], Some("LLAMA_ARG_SPLIT_MODE")),
    ("main-gpu", &["-mg", "--main-gpu"], Some("LLAMA_ARG_MAIN_GPU")),
    ("draft-device", &["-devd", "--spec-draft-device", "--device-draft"], None),
    ("mmproj-device", &["-mmdev", "--mmproj-device"], Some("MTMD_BACKEND_DEVICE")),
    ("override-tensor", &["-ot", "--override-tensor"], Some("LLAMA_ARG_OVERRIDE_TENSOR")),
    ("draft-override-tensor", &["-otd", "--spec-draft-override-tensor", "--override-tensor-draft"], None),
    ("mmproj", &["-mm", "--mmproj"], Some("LLAMA_ARG_MMPROJ")),
    ("mmproj-url", &["-mmu", "--mmproj-url"], Some("LLAMA_ARG_MMPROJ_URL")),
    ("hf-repo", &["-hf", "-hfr", "--hf-repo"], Some("LLAMA_ARG_HF_REPO")),
    ("sleep-idle-seconds", &["--sleep-idle-seconds"], None),
];

/// The device flags of one llama.cpp process, after precedence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LlamaDevices {
    values: BTreeMap<&'static str, String>,
    /// Why the flags cannot be trusted, if so.
    pub doubt: Option<String>,
}

/// Where a process's flags put it, in terms of the devices visible to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Placement {
    /// No flag narrows: every visible device.
    Default,
    /// No GPU at all.
    Cpu,
    /// These SYCL devices.
    Sycl(BTreeSet<u32>),
    /// The n-th of the list of models' devices, and perhaps the first one as well.
    MainGpu { index: u32, first_too: bool },
    /// Cannot be told.
    Unknown(String),
}

impl LlamaDevices {
    /// Collects flags from configuration files (in their order), environment and command line; later wins.
    pub fn collect(program: LlamaProgram, config_files: &[String], env: &[(String, String)], argv: &[String]) -> Self {
        let mut found = Self::default();
        if program == LlamaProgram::Embedded {
            return found;
        }
        if program == LlamaProgram::RpcServer {
            found.rpc_server(argv);
            return found;
        }
        for text in config_files {
            found.config_file(text);
        }
        for (name, _, variable) in OPTIONS {
            if let Some(value) = variable.and_then(|v| get(env, v)) {
                found.values.insert(name, value.to_owned());
            }
        }
        found.command_line(argv);
        found
    }

    /// Does the server unload its model when idle? Then it holds no memory now and takes it back at the next request.
    pub fn may_sleep(&self) -> bool {
        self.values.get("sleep-idle-seconds").is_some_and(|v| v.trim() != "-1")
    }

    fn config_file(&mut self, text: &str) {
        // Sections `*` then `default` (also what stands before any header) apply; a repeated header starts it anew.
        let mut sections: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
        let mut current = String::from("default");
        for line in text.split(['\n', '\r']) {
            let line = line.trim_matches([' ', '\t']);
            if let Some(header) = line.strip_prefix('[').and_then(|l| l.split_once(']')) {
                header.0.trim_matches([' ', '\t']).clone_into(&mut current);
                sections.insert(current.clone(), Vec::new());
            } else if let Some((key, value)) = line.split_once('=')
                && !line.starts_with(['#', ';'])
            {
                let value = value.split([';', '#']).next().unwrap_or("").trim_matches([' ', '\t']);
                sections
                    .entry(current.clone())
                    .or_default()
                    .push((key.trim_matches([' ', '\t']).to_owned(), value.to_owned()));
            }
        }
        for section in ["*", "default"] {
            for (key, value) in sections.get(section).into_iter().flatten() {
                let option = OPTIONS.iter().find(|(_, spellings, variable)| {
                    *variable == Some(key.as_str()) || spellings.iter().any(|s| s.trim_start_matches('-') == key)
                });
                if let Some((name, _, _)) = option {
                    self.values.insert(name, value.clone());
                }
            }
        }
    }

    fn command_line(&mut self, argv: &[String]) {
        let no_value: BTreeSet<&str> = NO_VALUE.split_ascii_whitespace().collect();
        let mut args = argv.iter().skip(1).peekable();
        // `llama serve …`: the word before the flags is a subcommand.
        if args.peek().is_some_and(|a| !a.starts_with('-')) {
            args.next();
        }
        while let Some(arg) = args.next() {
            let arg = if arg.starts_with("--") { arg.replace('_', "-") } else { arg.clone() };
            if no_value.contains(arg.as_str()) {
                continue;
            }
            if arg == "--control-vector-layer-range" {
                args.next();
                args.next();
                continue;
            }
            let option = OPTIONS.iter().find(|(_, spellings, _)| spellings.contains(&arg.as_str()));
            let next_is_flag = args.peek().is_some_and(|n| OPTIONS.iter().any(|(_, s, _)| s.contains(&n.as_str())));
            match option {
                Some((name, _, _)) => match args.next() {
                    Some(value) => {
                        self.values.insert(name, value.clone());
                    }
                    None => self.doubt = Some(format!("{arg} stands without its value")),
                },
                // An option of another version: whether it takes the next word decides what that word means.
                None if next_is_flag => {
                    self.doubt =
                        Some(format!("it is not known whether {arg} takes a value, and a device flag follows"));
                }
                None if arg.starts_with('-') => {
                    let unknown_flag = args.peek().is_some_and(|n| n.starts_with("--"));
                    if !unknown_flag {
                        args.next();
                    }
                }
                None => {}
            }
        }
    }

    fn rpc_server(&mut self, argv: &[String]) {
        let mut args = argv.iter().skip(1);
        while let Some(arg) = args.next() {
            if arg == "-d" || arg == "--device" {
                match args.next() {
                    Some(value) => drop(self.values.insert("device", value.clone())),
                    None => self.doubt = Some(format!("{arg} stands without its value")),
                }
            }
        }
    }

    /// Where the flags put the model, its draft and its projector.
    pub(crate) fn placement(&self) -> Placement {
        if let Some(doubt) = &self.doubt {
            return Placement::Unknown(doubt.clone());
        }
        let mut set = BTreeSet::new();
        let value = |name: &str| self.values.get(name).map(String::as_str);
        for name in ["draft-device", "mmproj-device", "override-tensor", "draft-override-tensor"] {
            let Some(text) = value(name) else { continue };
            let words: Vec<&str> = if name.ends_with("tensor") {
                text.split(',').filter_map(|rule| rule.rsplit_once('=').map(|(_, b)| b.trim())).collect()
            } else {
                text.split(',').collect()
            };
            for word in words {
                match device_word(word) {
                    Word::Sycl(n) => drop(set.insert(n)),
                    Word::NoCard => {}
                    Word::Other => {
                        return Placement::Unknown(format!("{name} names {word:?}, whose card cannot be told"));
                    }
                }
            }
        }
        let main = match value("device") {
            Some(text) => {
                let mut listed = BTreeSet::new();
                for word in text.split(',') {
                    match device_word(word) {
                        Word::Sycl(n) => drop(listed.insert(n)),
                        Word::NoCard => {}
                        Word::Other => {
                            return Placement::Unknown(format!("--device names {word:?}, whose card cannot be told"));
                        }
                    }
                }
                listed
            }
            None => return self.default_list(&set),
        };
        set.extend(main);
        if set.is_empty() { Placement::Cpu } else { Placement::Sycl(set) }
    }

    fn default_list(&self, others: &BTreeSet<u32>) -> Placement {
        if self.values.get("split-mode").is_none_or(|m| m != "none") {
            return Placement::Default;
        }
        let index = match self.values.get("main-gpu").map(|v| v.trim().parse::<i64>()) {
            None => 0,
            Some(Ok(n)) => n,
            Some(Err(_)) => return Placement::Unknown("--main-gpu is not a number".into()),
        };
        if !others.is_empty() {
            // The model by position, the rest by name: two numberings at once. Every visible device covers both.
            return Placement::Default;
        }
        // The projector goes to the first device unless --device or --mmproj-device says otherwise.
        let first_too = ["mmproj", "mmproj-url", "hf-repo"].iter().any(|n| self.values.contains_key(n));
        match u32::try_from(index) {
            Ok(index) => Placement::MainGpu { index, first_too },
            Err(_) if first_too => Placement::Default,
            Err(_) => Placement::Cpu,
        }
    }
}

enum Word {
    Sycl(u32),
    NoCard,
    Other,
}

fn device_word(word: &str) -> Word {
    if word == "none" || word == "CPU" || word.starts_with("CPU_") || word.starts_with("RPC") || word == "SYCL_Host" {
        return Word::NoCard;
    }
    match word.strip_prefix("SYCL").map(str::parse) {
        Some(Ok(n)) => Word::Sycl(n),
        _ => Word::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn place(config: &[&str], env: &[(&str, &str)], argv: &str) -> Placement {
        let config: Vec<String> = config.iter().map(|c| (*c).to_owned()).collect();
        let env: Vec<_> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        LlamaDevices::collect(LlamaProgram::Common, &config, &env, &words(argv)).placement()
    }

    fn sycl(list: &[u32]) -> Placement {
        Placement::Sycl(list.iter().copied().collect())
    }

    #[test]
    fn flags_place_a_server() {
        let rows: &[(&str, Placement)] = &[
            ("llama-server -m x.gguf", Placement::Default),
            ("llama-server -m x.gguf -dev SYCL1", sycl(&[1])),
            ("llama-server -m x.gguf --device SYCL0,SYCL2", sycl(&[0, 2])),
            ("llama-server -m x.gguf --device none", Placement::Cpu),
            ("llama-server -m x.gguf -dev SYCL0 -devd SYCL1", sycl(&[0, 1])),
            ("llama-server -m x.gguf -dev SYCL0 --spec_draft_device SYCL3", sycl(&[0, 3])),
            ("llama-server -m x.gguf -dev SYCL0 -mmdev SYCL2 -ot exps=SYCL1,attn=CPU", sycl(&[0, 1, 2])),
            ("llama-server -sm none -mg 1", Placement::MainGpu { index: 1, first_too: false }),
            ("llama-server -sm none", Placement::MainGpu { index: 0, first_too: false }),
            ("llama-server -sm none -mg -1", Placement::Cpu),
            ("llama-server -mg 1", Placement::Default),
            ("llama-server -sm none -mg 1 --mmproj p.gguf", Placement::MainGpu { index: 1, first_too: true }),
            ("llama-server --jinja -dev SYCL1 --metrics", sycl(&[1])),
            ("llama-server -p -dev -dev SYCL1", sycl(&[1])),
            ("llama serve -dev SYCL1", sycl(&[1])),
            ("llama-server -dev SYCL0 -dev SYCL1", sycl(&[1])),
        ];
        for (argv, expected) in rows {
            let got = place(&[], &[], argv);
            // `-p -dev`: the prompt is the text "-dev"; told apart only because -p takes a value.
            if argv.contains("-p -dev") {
                assert!(matches!(got, Placement::Unknown(_)), "{argv}: {got:?}");
            } else {
                assert_eq!(got, *expected, "{argv}");
            }
        }
        for argv in ["llama-server -dev Vulkan0", "llama-server -dev", "llama-server --brand-new -dev SYCL0"] {
            assert!(matches!(place(&[], &[], argv), Placement::Unknown(_)), "{argv}");
        }
    }

    #[test]
    fn the_command_line_wins_over_the_environment_and_that_over_files() {
        let system = "device = SYCL0\n";
        let user = "[default]\n; comment\nLLAMA_ARG_DEVICE = SYCL1 # mine\n[other-model]\ndevice = SYCL3\n";
        assert_eq!(place(&[system], &[], "llama-server"), sycl(&[0]));
        assert_eq!(place(&[system, user], &[], "llama-server"), sycl(&[1]));
        assert_eq!(place(&[system, user], &[("LLAMA_ARG_DEVICE", "SYCL2")], "llama-server"), sycl(&[2]));
        assert_eq!(place(&[system, user], &[("LLAMA_ARG_DEVICE", "SYCL2")], "llama-server -dev SYCL3"), sycl(&[3]));
        assert_eq!(place(&["[*]\ndev = SYCL2\n"], &[], "llama-server"), sycl(&[2]));
    }

    #[test]
    fn programs_are_known_by_any_of_their_names() {
        let known = |comm: &str, argv: &str| llama_program(comm, &words(argv), None);
        assert_eq!(known("llama-server", "/opt/bin/llama-server -m x"), Some(LlamaProgram::Common));
        assert_eq!(known("llama", "llama serve"), Some(LlamaProgram::Common));
        assert_eq!(known("renamed", "./llama-server"), Some(LlamaProgram::Common));
        assert_eq!(known("ollama", "/usr/bin/ollama runner --model x"), Some(LlamaProgram::Embedded));
        assert_eq!(known("ollama", "/usr/bin/ollama serve"), None);
        assert_eq!(known("python3", "python3 -m llama_cpp.server"), Some(LlamaProgram::Embedded));
        assert_eq!(known("llama-quantize", "llama-quantize a b q4_0"), None);
        assert_eq!(known("tee", "tee llama-server.log"), None);
        assert_eq!(known("rpc-server", "rpc-server -p 50052"), Some(LlamaProgram::RpcServer));
    }

    #[test]
    fn sleeping_is_a_flag() {
        let sleeps = |argv: &str| LlamaDevices::collect(LlamaProgram::Common, &[], &[], &words(argv)).may_sleep();
        assert!(sleeps("llama-server --sleep-idle-seconds 300"));
        assert!(!sleeps("llama-server --sleep-idle-seconds -1"));
    }

    proptest::proptest! {
        #[test]
        fn no_arguments_panic(argv in proptest::collection::vec("(-[a-z]{1,4}|--[a-z_-]{1,10}|SYCL[0-9]|none|-dev|-sm|-mg|[0-9]{1,12})", 0..12), config in "[a-z=\\[\\]\n;#* -]{0,60}") {
            let _ = LlamaDevices::collect(LlamaProgram::Common, &[config], &[], &argv).placement();
        }
    }
}
