//! Removing secrets from what is shown or recorded.

/// What stands in a secret's place.
pub const REDACTED: &str = "<removed>";

/// Does a variable's name say that its value is a secret?
fn is_secret_name(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "AUTHORIZATION", "BEARER", "COOKIE"]
        .iter()
        .any(|w| upper.contains(w))
}

/// Flags whose next argument is a secret.
const SECRET_FLAGS: &[&str] = &["--api-key", "--hf-token", "-hft", "--token", "--password", "--secret", "--auth"];

/// The value to show of a variable.
pub fn redact_variable<'a>(name: &str, value: &'a str) -> &'a str {
    // The kit's own session mark is no secret to anybody who can read the environment, and verdicts rest on it.
    if is_secret_name(name) && name != crate::process::SESSION_TOKEN_VARIABLE { REDACTED } else { value }
}

/// A command line with secrets replaced: `--api-key X`, `--api-key=X`, `NAME_TOKEN=X`.
pub fn redact_arguments(argv: &[String]) -> Vec<String> {
    let mut hide_next = false;
    argv.iter()
        .map(|arg| {
            let secret_flag = |flag: &str| {
                let flag = flag.replace('_', "-");
                SECRET_FLAGS.contains(&flag.as_str())
                    || (flag.starts_with("--") && is_secret_name(&flag) && !is_keyless(&flag))
            };
            if std::mem::take(&mut hide_next) {
                return REDACTED.to_owned();
            }
            match arg.split_once('=') {
                Some((name, _))
                    if secret_flag(name)
                        || (!name.starts_with('-') && !name.contains([' ', '/']) && is_secret_name(name)) =>
                {
                    format!("{name}={REDACTED}")
                }
                _ => {
                    hide_next = secret_flag(arg);
                    arg.clone()
                }
            }
        })
        .collect()
}

/// Flags that only sound secret: token *counts*, key *types*, and files that hold a secret, of llama.cpp and others.
fn is_keyless(flag: &str) -> bool {
    let ordinary = ["tokens", "cache-type-k", "tokenizer", "keyframe", "keep", "token-bucket"];
    flag.ends_with("-file") || ordinary.iter().any(|w| flag.contains(w))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_and_the_rest_is_kept() {
        let argv = |t: &str| t.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let rows = [
            ("llama-server --api-key abc -m x", "llama-server --api-key <removed> -m x"),
            ("llama-server --hf_token abc", "llama-server --hf_token <removed>"),
            ("x --api-key=abc --port 1", "x --api-key=<removed> --port 1"),
            ("env HF_TOKEN=abc llama-server", "env HF_TOKEN=<removed> llama-server"),
            ("x --max-tokens 512 --device SYCL0", "x --max-tokens 512 --device SYCL0"),
            ("x --api-key", "x --api-key"),
            ("x --api-key-file /run/key --ssl-key-file=/run/tls", "x --api-key-file /run/key --ssl-key-file=/run/tls"),
        ];
        for (given, expected) in rows {
            assert_eq!(redact_arguments(&argv(given)).join(" "), expected);
        }
        assert_eq!(redact_variable("OPENAI_API_KEY", "abc"), REDACTED);
        assert_eq!(redact_variable("db_password", "abc"), REDACTED);
        assert_eq!(redact_variable("ZE_AFFINITY_MASK", "1"), "1");
    }
}
