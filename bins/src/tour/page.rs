//! The tour's table as one self-contained HTML page, light and dark.

use b70_cli::seconds_text;

use crate::tour::report::Report;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2430;--dim:#5b6675;--line:#d9dee5;--good:#1a7f4b;--bad:#b3261e;--back:#ffffff;--code:#f3f5f8}\
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--dim:#9aa5b4;--line:#333c48;--good:#5fd39a;--bad:#ff8a80;--back:#14181e;--code:#1d232b}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:70rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem;margin:0 0 .25rem}p{color:var(--dim);margin:.25rem 0 1.25rem}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.5rem .75rem;border-bottom:1px solid var(--line)}\
th{font-weight:600;color:var(--dim)}td.time{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}.skipped{color:var(--dim)}\
code{display:block;margin-top:.25rem;padding:.25rem .5rem;background:var(--code);font-size:.85em;color:var(--dim);overflow-wrap:anywhere;border-radius:4px}";

/// The page.
pub(crate) fn html(report: &Report) -> String {
    let mut rows = String::new();
    for row in &report.steps {
        let word = row.verdict().1;
        let class = match (row.skipped, row.passed) {
            (true, _) => "skipped",
            (false, true) => "good",
            (false, false) => "bad",
        };
        rows.push_str(&format!(
            "<tr><td class=\"{class}\">{word}</td><td>{}</td><td>{}<code>{}</code></td><td class=\"time\">{}</td></tr>\n",
            escaped(row.step),
            escaped(&row.proved),
            escaped(&row.command),
            escaped(&seconds_text(row.seconds)),
        ));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>b70-tour</title>\
         <style>{STYLE}</style></head><body>\n<h1>What the tour proved</h1>\n\
         <p>{}. A generated model of random weights, no GPU: proofs about bytes and processes, \
         none about the speed of a card.</p>\n\
         <table><thead><tr><th>Outcome</th><th>Step</th><th>What it showed, and the command that does the same</th>\
         <th>Time</th></tr></thead><tbody>\n{rows}</tbody></table>\n</body></html>\n",
        escaped(&report.summary()),
    )
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tour::report::StepRow;

    #[test]
    fn text_from_outside_cannot_become_markup() {
        let row = StepRow {
            step: "step",
            command: "b70-pack inspect --model '<b>.gguf'".to_owned(),
            passed: false,
            skipped: false,
            proved: "a < b & \"c\"".to_owned(),
            seconds: 0.5,
        };
        let page = html(&Report { schema_version: 1, passed: false, steps: vec![row], seconds: 1.0 });
        assert!(page.contains("a &lt; b &amp; &quot;c&quot;") && page.contains("&#39;&lt;b&gt;.gguf&#39;"));
        assert!(!page.contains("<b>") && page.contains("0 of 1 steps proved") && !page.contains("http"));
    }
}
