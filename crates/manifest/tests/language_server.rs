//! VS Code's JSON language service with our schema: it marks the wrong field and offers the right words.

use std::process::{Command, Stdio};

use b70_manifest::document::Kind;
use b70_manifest::schema;
use serde_json::{Value, json};

const SCRIPT: &str = r#"
const path = require("path");
const root = path.join(process.cwd(), "node_modules", "vscode-json-languageservice");
const { getLanguageService, TextDocument } = require(root);
const job = JSON.parse(require("fs").readFileSync(0, "utf8"));
const service = getLanguageService({});
service.configure({ validate: true, schemas: [{ uri: job.schema.$id, fileMatch: ["*.workers.json"], schema: job.schema }] });
(async () => {
  const open = (text) => {
    const document = TextDocument.create("file:///a.workers.json", "json", 1, text);
    return [document, service.parseJSONDocument(document)];
  };
  const [document, parsed] = open(job.text);
  const diagnostics = (await service.doValidation(document, parsed)).map((one) => ({
    text: document.getText(one.range), line: one.range.start.line + 1, message: one.message }));
  const completions = {};
  for (const [name, at] of Object.entries(job.places)) {
    const list = await service.doComplete(document, document.positionAt(at), parsed);
    completions[name] = list.items.map((item) => item.label);
  }
  const hover = await service.doHover(document, document.positionAt(job.hover), parsed);
  process.stdout.write(JSON.stringify({ diagnostics, completions, hover: JSON.stringify(hover && hover.contents) }));
})();
"#;

#[test]
#[ignore = "needs Node and vscode-json-languageservice: cargo xtask test --all"]
fn the_language_service_marks_the_field_and_offers_the_words() {
    let folder = std::env::var_os("B70_TEST_NODE_DIR")
        .expect("set B70_TEST_NODE_DIR to a folder prepared with: npm install vscode-json-languageservice@5");
    let text = r#"{
  "common": { "flash_attn": "onn", "n_paralel": 1,  },
  "workers": [{ "name": "a", "port": 0 }]
}"#;
    let after = |needle: &str| text.find(needle).expect("part of the text") + needle.len();
    let job = json!({
        "schema": schema::of(Kind::Workers),
        "text": text,
        "places": { "value": after("\"flash_attn\": \"o"), "key": after("\"n_paralel\": 1, ") },
        "hover": after("\"por"),
    });
    let mut child = Command::new("node")
        .args(["-e", SCRIPT])
        .current_dir(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node starts; install Node 18 or newer");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), job.to_string().as_bytes()).expect("node reads");
    let output = child.wait_with_output().expect("node ends");
    assert!(output.status.success(), "node failed: is vscode-json-languageservice installed in B70_TEST_NODE_DIR?");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    println!("{}", serde_json::to_string_pretty(&answer).expect("JSON"));
    let marked: Vec<&str> =
        answer["diagnostics"].as_array().unwrap().iter().filter_map(|d| d["text"].as_str()).collect();
    for wrong in ["\"onn\"", "\"n_paralel\"", "0"] {
        assert!(marked.contains(&wrong), "{wrong} is not marked: {marked:?}");
    }
    let offered = |name: &str| -> Vec<String> {
        let labels = answer["completions"][name].as_array().unwrap();
        labels.iter().filter_map(Value::as_str).map(|label| label.trim_matches('"').to_owned()).collect()
    };
    for word in ["on", "off", "auto"] {
        assert!(offered("value").iter().any(|label| label == word), "{word}: {:?}", offered("value"));
    }
    for field in ["n_parallel", "ctx_size", "extra_llama_args"] {
        assert!(offered("key").iter().any(|label| label == field), "{field}: {:?}", offered("key"));
    }
    assert!(answer["hover"].as_str().unwrap().contains("TCP port"));
}
