//! One HTML file: no script, no network, every text escaped, light and dark by what the reader prefers.

use std::fmt::Write as _;

use b70_manifest::calibration::{CalibrationRow, Comparison};
use serde_json::Value;

use super::class_word;
use super::figures::FIGURES;
use super::plot::{Bar, SERIES, Series, bars, columns, lines};
use super::text::number;
use crate::compare::ONE_RUN_NOTE;
use crate::load::{LoadedResult, ResultSource};
use crate::row::{error_code, metric_offsets};
use crate::stats::{mean, median, percentile, stdev, t_quantile};

const STYLE: &str = "
:root{color-scheme:light dark;--bg:#fcfcfb;--panel:#ffffff;--ink:#1c1e21;--soft:#5b626a;--line:#dcdfe3;--grid:#e9ebee;
--good:#1a7f46;--bad:#b3261e;--warn:#8a5a00;--s0:#2a6fdb;--s1:#d1600f;--s2:#17876d;--s3:#9c3fb0;--s4:#b0203f;--s5:#6b7a00;--s6:#0f7f9e;--s7:#7a5a3a}
@media (prefers-color-scheme:dark){:root{--bg:#15171a;--panel:#1c1f23;--ink:#e6e8ea;--soft:#a2a9b1;--line:#343a41;--grid:#2a2f35;
--good:#5fd08d;--bad:#ff8a80;--warn:#f0b95a;--s0:#7db0ff;--s1:#ffa45c;--s2:#5fd3b3;--s3:#dc93ec;--s4:#ff8fa3;--s5:#c9d45c;--s6:#6fd0ea;--s7:#d3ab84}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:34px 0 8px}
p{margin:6px 0;max-width:75ch}.soft{color:var(--soft)}.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.panel{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:14px 16px;margin:12px 0;overflow-x:auto}
.note{border-left:4px solid var(--warn)}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13.5px}
th,td{padding:5px 7px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}th{font-weight:600;color:var(--soft);white-space:normal;vertical-align:bottom}
th:first-child,td:first-child,th.words{text-align:left}td.words{text-align:left;white-space:normal;min-width:22ch}
tr:last-child td{border-bottom:0}svg{display:block;width:100%;height:auto;min-width:560px}svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
svg text.name{fill:var(--ink)}svg text.axis{fill:var(--ink)}.grid{stroke:var(--grid);stroke-width:1}.reference{stroke:var(--soft);stroke-width:1.5;stroke-dasharray:5 4}
.line{fill:none;stroke-width:1.4;stroke-opacity:.75}.dot,.value{stroke:var(--panel);stroke-width:1}.faint{fill-opacity:.28}.interval{fill:none;stroke-width:2.5}
.key{display:flex;flex-wrap:wrap;gap:6px 18px;margin:2px 0 8px;padding:0;list-style:none;font-size:14px}.key i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px}
code{font:13px ui-monospace,SFMono-Regular,Menlo,monospace;overflow-wrap:anywhere}details{margin:6px 0}summary{cursor:pointer}
";

/// Text as HTML shows it literally; control characters, which no text of a report needs, become spaces.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

/// What a series is called: the endpoint, and where it stands in a comparison.
fn series_label(result: &LoadedResult) -> String {
    let measured = result.judged.measured();
    let arm = measured.arm.map_or_else(String::new, |arm| format!(", {arm}"));
    let period = measured.period.map_or_else(String::new, |period| format!(", period {period}"));
    format!("{}{arm}{period}", result.name())
}

fn complete(result: &LoadedResult) -> impl Iterator<Item = &CalibrationRow> {
    result.judged.measured().rows.iter().filter(|row| row.error.is_none())
}

/// The report as one HTML file, with the comparison if there is one.
pub fn html_report(results: &[LoadedResult], comparison: Option<&Comparison>) -> String {
    let mut style = STYLE.to_owned();
    for colour in 0..SERIES {
        let _ = write!(
            style,
            ".line.s{colour},.interval.s{colour}{{stroke:var(--s{colour})}}.dot.s{colour},.value.s{colour},.faint.s{colour}{{fill:var(--s{colour})}}.key .s{colour}{{background:var(--s{colour})}}"
        );
    }
    let mut body = String::new();
    head(&mut body, results);
    if let Some(comparison) = comparison {
        compared(&mut body, comparison);
    }
    figures(&mut body, results);
    medians(&mut body, results);
    arrivals(&mut body, results);
    first_tokens(&mut body, results);
    gaps(&mut body, results);
    gates(&mut body, results);
    rows(&mut body, results);
    identities(&mut body, results);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>Cold calibration</title><style>{style}</style></head><body><main>{body}</main></body></html>\n"
    )
}

fn head(body: &mut String, results: &[LoadedResult]) {
    body.push_str("<h1>Cold calibration</h1>");
    if let Some(first) = results.first() {
        let measured = first.judged.measured();
        let _ = write!(
            body,
            "<p class=\"soft\">Suite {} (<code>{}</code>), {} prompts; api {}, up to {} tokens, window of {} events, {} endpoints at once; {}</p>",
            escape(&measured.suite.suite_id),
            &measured.suite.sha256.to_string()[..12],
            measured.suite.prompts.len(),
            escape(&measured.settings.api),
            measured.settings.max_tokens,
            measured.settings.metric_window,
            measured.settings.endpoints_at_once,
            escape(measured.created_utc.as_deref().unwrap_or("time unknown")),
        );
    }
    let _ = write!(body, "<div class=\"panel note\"><p><strong>{}</strong></p></div>", escape(ONE_RUN_NOTE));
}

fn key(body: &mut String, results: &[LoadedResult]) {
    body.push_str("<ul class=\"key\">");
    for (index, result) in results.iter().enumerate() {
        let _ = write!(body, "<li><i class=\"s{}\"></i>{}</li>", index % SERIES, escape(&series_label(result)));
    }
    body.push_str("</ul>");
}

fn table(body: &mut String, head: &[&str], rows: &[Vec<String>]) {
    body.push_str("<div class=\"panel\"><table><thead><tr>");
    for cell in head {
        let class = if *cell == "gates" { " class=\"words\"" } else { "" };
        let _ = write!(body, "<th{class}>{}</th>", escape(cell));
    }
    body.push_str("</tr></thead><tbody>");
    for row in rows {
        body.push_str("<tr>");
        for cell in row {
            body.push_str(cell);
        }
        body.push_str("</tr>");
    }
    body.push_str("</tbody></table></div>");
}

fn cell(text: &str) -> String {
    format!("<td>{}</td>", escape(text))
}

fn figures(body: &mut String, results: &[LoadedResult]) {
    body.push_str("<h2>Figures</h2><p class=\"soft\">Tokens per second. Median, p10, mean and balanced (every prompt class of one weight) count 99 intervals; <em>legacy</em> counts 100 events over the same time, 1.0101 times as much.</p>");
    let mut head = vec!["endpoint", "card", "rows"];
    head.extend(FIGURES.iter().map(|figure| figure.long));
    let rows: Vec<Vec<String>> = results
        .iter()
        .map(|result| {
            let measured = result.judged.measured();
            let card = measured.identity.card.as_ref().map(|card| card.pci).or(measured.endpoint.card);
            let done = complete(result).count();
            let counted = if done == measured.rows.len() {
                done.to_string()
            } else {
                format!("{done} of {}", measured.rows.len())
            };
            let mut cells =
                vec![series_label(result), card.map_or_else(|| "–".to_owned(), |card| card.to_string()), counted];
            cells.extend(FIGURES.iter().map(|figure| figure.text(result)));
            cells.iter().map(|text| cell(text)).collect()
        })
        .collect();
    table(body, &head, &rows);
}

/// The t interval of the mean of logarithms, as rates: over prompts, so it says nothing about other cards.
fn prompt_interval(rates: &[f64]) -> Option<(f64, f64)> {
    let logarithms: Vec<f64> = rates.iter().filter(|rate| **rate > 0.0).map(|rate| rate.ln()).collect();
    let (mean, sd) = (mean(&logarithms)?, stdev(&logarithms)?);
    let half = t_quantile(0.975, logarithms.len().checked_sub(1)?)? * sd / (logarithms.len() as f64).sqrt();
    Some(((mean - half).exp(), (mean + half).exp()))
}

fn medians(body: &mut String, results: &[LoadedResult]) {
    let shown: Vec<Bar> = results
        .iter()
        .enumerate()
        .filter_map(|(index, result)| {
            let rates: Vec<f64> = complete(result).filter_map(|row| row.tok_s_1_100_intervals_after_ttft).collect();
            Some(Bar {
                label: series_label(result),
                value: median(&rates)?,
                interval: prompt_interval(&rates),
                dots: rates,
                colour: index,
            })
        })
        .collect();
    body.push_str("<h2>Median rate of each endpoint</h2><p class=\"soft\">Large dot: median over the prompts; faint dots: the prompts; bar: 95 % t interval of the geometric mean over prompts. Overlap or not, these bars rank no cards.</p><div class=\"panel\">");
    body.push_str(&bars("Median rate of each endpoint", "tokens per second, 99 intervals", &shown, None));
    body.push_str("</div>");
}

fn arrivals(body: &mut String, results: &[LoadedResult]) {
    body.push_str("<h2>Arrival of tokens</h2><p class=\"soft\">Events received over the time since the request was sent, one line a prompt. A straight line is a steady rate, a step a pause.</p><div class=\"panel\">");
    key(body, results);
    let series: Vec<Series> = results
        .iter()
        .enumerate()
        .flat_map(|(colour, result)| {
            complete(result).map(move |row| {
                let offsets = metric_offsets(row);
                // Enough points for a line of 800 pixels.
                let stride = (offsets.len() / 160).max(1);
                let mut points: Vec<(f64, f64)> = offsets
                    .iter()
                    .enumerate()
                    .step_by(stride)
                    .map(|(event, offset)| (*offset, event as f64 + 1.0))
                    .collect();
                points.extend(offsets.last().map(|last| (*last, offsets.len() as f64)));
                Series { label: format!("{}: {}", series_label(result), row.prompt_id), points, colour }
            })
        })
        .collect();
    body.push_str(&lines("Arrival of tokens", "seconds since the request", "events", &series, true));
    body.push_str("</div>");
}

/// Prompts in the order in which the first result has them.
fn prompts(results: &[LoadedResult]) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    for row in results.iter().flat_map(|result| &result.judged.measured().rows) {
        if !ids.contains(&row.prompt_id) {
            ids.push(row.prompt_id.clone());
        }
    }
    ids
}

fn by_prompt(results: &[LoadedResult], value: fn(&CalibrationRow) -> Option<f64>) -> (Vec<String>, Vec<Series>) {
    let ids = prompts(results);
    let series = results.iter().enumerate().map(|(colour, result)| Series {
        label: series_label(result),
        points: complete(result)
            .filter_map(|row| {
                let column = ids.iter().position(|id| *id == row.prompt_id)?;
                Some((column as f64, value(row).filter(|value| value.is_finite())?))
            })
            .collect(),
        colour,
    });
    let series = series.collect();
    (ids, series)
}

fn first_tokens(body: &mut String, results: &[LoadedResult]) {
    body.push_str("<h2>Time to the first token</h2><p class=\"soft\">By prompt, in the order of the requests. The first request of a server is the coldest.</p><div class=\"panel\">");
    key(body, results);
    let (ids, series) = by_prompt(results, |row| row.ttft_s.map(|seconds| seconds * 1e3));
    body.push_str(&columns("Time to the first token", "milliseconds", &ids, &series));
    body.push_str("</div>");
}

fn gaps(body: &mut String, results: &[LoadedResult]) {
    body.push_str("<h2>Gaps between events</h2><p class=\"soft\">Share of the gaps within the window that are at most as long, all prompts together, up to the 99th percentile. Tokens of one verification arrive together: their gaps are near zero, and the gap between bursts is the cycle of the card.</p><div class=\"panel\">");
    key(body, results);
    let series: Vec<Series> = results
        .iter()
        .enumerate()
        .map(|(colour, result)| {
            let window = result.judged.measured().settings.metric_window as usize;
            let mut gaps: Vec<f64> = complete(result)
                .flat_map(|row| {
                    let offsets = metric_offsets(row);
                    offsets[..offsets.len().min(window)]
                        .windows(2)
                        .map(|pair| (pair[1] - pair[0]) * 1e3)
                        .collect::<Vec<_>>()
                })
                .filter(|gap| gap.is_finite())
                .collect();
            gaps.sort_by(f64::total_cmp);
            let points = (0..=99)
                .filter_map(|percent| Some((percentile(&gaps, f64::from(percent) / 100.0)?, f64::from(percent))));
            Series { label: series_label(result), points: points.collect(), colour }
        })
        .collect();
    body.push_str(&lines("Gaps between events", "milliseconds", "percent of gaps", &series, true));
    let (ids, series) = by_prompt(results, |row| row.burst_gap_s_median.map(|seconds| seconds * 1e3));
    if series.iter().any(|series| !series.points.is_empty()) {
        body.push_str("<p class=\"soft\">Median gap between bursts (pauses longer than 20 ms), by prompt.</p>");
        body.push_str(&columns("Median gap between bursts", "milliseconds", &ids, &series));
    } else {
        body.push_str("<p class=\"soft\">No pause was longer than 20 ms: the tokens came in one stream, and there are no bursts to tell apart.</p>");
    }
    body.push_str("</div>");
}

fn gates(body: &mut String, results: &[LoadedResult]) {
    body.push_str("<h2>Gates</h2><p class=\"soft\">Run again over the rows when this report was made; what a file claims of itself does not count.</p>");
    let mut rows = Vec::new();
    for result in results {
        let class = class_word(result.judged.evidence_class());
        let mut words = String::new();
        if !result.disagreements.is_empty() {
            let _ = write!(
                words,
                "<span class=\"bad\">{} figures of the file are not what its rows give</span><br>",
                result.disagreements.len()
            );
        }
        if !result.is_finished() {
            words.push_str("<span class=\"warn\">unfinished: the run was cut short</span><br>");
        }
        if result.source == ResultSource::Lab {
            words.push_str("<span class=\"soft\">a file of upstream's script; no identity to check</span><br>");
        }
        for (name, gate) in result.judged.gates() {
            let (class, outcome) =
                if gate.passed { ("good", "passed".to_owned()) } else { ("bad", gate.codes.join(", ")) };
            let _ = write!(words, "{}: <span class=\"{class}\">{}</span><br>", escape(name), escape(&outcome));
        }
        let eligible = if result.promotion().is_some() { "<span class=\"good\">yes</span>" } else { "no" };
        rows.push(vec![
            cell(&series_label(result)),
            cell(&class),
            format!("<td>{eligible}</td>"),
            format!("<td class=\"words\">{words}</td>"),
        ]);
    }
    table(body, &["endpoint", "class", "promotion-eligible", "gates"], &rows);
}

fn rows(body: &mut String, results: &[LoadedResult]) {
    body.push_str("<h2>Rows</h2>");
    for result in results {
        let _ = write!(body, "<details><summary>{}</summary>", escape(&series_label(result)));
        let head = ["prompt", "class", "tok/s", "legacy", "TTFT ms", "tokens", "cached", "finish", "text"];
        let all: Vec<Vec<String>> = result
            .judged
            .measured()
            .rows
            .iter()
            .map(|row| {
                let last = match error_code(row) {
                    Some(code) => format!(
                        "<td class=\"words bad\">{}: {}</td>",
                        escape(code),
                        escape(row.error.as_deref().unwrap_or_default())
                    ),
                    None => format!(
                        "<td><code>{}</code></td>",
                        row.sha256.map(|sha| sha.to_string()[..12].to_owned()).unwrap_or_default()
                    ),
                };
                vec![
                    cell(&row.prompt_id),
                    cell(row.prompt_class.as_deref().unwrap_or("–")),
                    cell(&number(row.tok_s_1_100_intervals_after_ttft, 2)),
                    cell(&number(row.tok_s_1_100_after_ttft_legacy_inclusive_events, 2)),
                    cell(&number(row.ttft_s.map(|seconds| seconds * 1e3), 1)),
                    cell(&row.completion_tokens.map_or_else(|| "–".to_owned(), |count| count.to_string())),
                    cell(&row.cached_tokens.as_ref().map_or_else(|| "missing".to_owned(), Value::to_string)),
                    cell(&row.finish_reasons.join(", ")),
                    last,
                ]
            })
            .collect();
        table(body, &head, &all);
        body.push_str("</details>");
    }
}

fn identities(body: &mut String, results: &[LoadedResult]) {
    body.push_str("<h2>What ran</h2>");
    for result in results {
        let measured = result.judged.measured();
        let identity = &measured.identity;
        let digest = |digest: Option<b70_manifest::Sha256Hex>| {
            digest.map_or_else(|| "unknown".to_owned(), |digest| digest.to_string())
        };
        let list = [
            ("address", measured.endpoint.url.clone()),
            ("model", digest(identity.target_model_sha256)),
            (
                "draft model",
                identity.draft_model_sha256.map_or_else(|| "none on record".to_owned(), |draft| draft.to_string()),
            ),
            ("executable", digest(identity.binary_sha256)),
            ("build", digest(identity.build_fingerprint_sha256)),
            ("command", identity.command.as_ref().map_or_else(|| "unknown".to_owned(), |command| command.join(" "))),
            (
                "workers at once",
                identity.workers_at_once.map_or_else(|| "unknown".to_owned(), |count| count.to_string()),
            ),
            ("file", format!("{} ({})", result.path.display(), result.sha256)),
        ];
        let _ = write!(
            body,
            "<details><summary>{}</summary><div class=\"panel\"><table><tbody>",
            escape(&series_label(result))
        );
        for (name, value) in list {
            let _ = write!(body, "<tr><td>{name}</td><td class=\"words\"><code>{}</code></td></tr>", escape(&value));
        }
        body.push_str("</tbody></table></div></details>");
    }
}

fn compared(body: &mut String, comparison: &Comparison) {
    let verdict = comparison.verdict.as_str();
    let class = match verdict {
        "win" => "good",
        "loss" => "bad",
        _ => "warn",
    };
    let _ = write!(body, "<h2>Comparison: <span class=\"{class}\">{verdict}</span></h2><div class=\"panel\">");
    let percent = |ratio: f64| format!("{:+.2} %", (ratio - 1.0) * 100.0);
    let mut shown: Vec<Bar> = comparison
        .per_card
        .iter()
        .map(|card| Bar {
            label: card.card.to_string(),
            value: card.ratio,
            interval: None,
            dots: Vec::new(),
            colour: 0,
        })
        .collect();
    if let Some(effect) = &comparison.effect {
        let _ = write!(
            body,
            "<p>Candidate over control {}, t interval {} to {} with {} degrees of freedom.</p>",
            percent(effect.ratio),
            percent(effect.t.lower),
            percent(effect.t.upper),
            effect.t.degrees_of_freedom
        );
        shown.push(Bar {
            label: "all cards, t interval".to_owned(),
            value: effect.ratio,
            interval: Some((effect.t.lower, effect.t.upper)),
            dots: Vec::new(),
            colour: 1,
        });
        if let Some(bootstrap) = &effect.bootstrap {
            shown.push(Bar {
                label: "all cards, bootstrap".to_owned(),
                value: effect.ratio,
                interval: Some((bootstrap.lower, bootstrap.upper)),
                dots: Vec::new(),
                colour: 2,
            });
        }
    }
    if !shown.is_empty() {
        body.push_str(&bars("Candidate over control", "ratio of rates, candidate over control", &shown, Some(1.0)));
    }
    body.push_str("<ul>");
    for reason in &comparison.reasons {
        let _ = write!(body, "<li>{}</li>", escape(reason));
    }
    body.push_str("</ul></div>");
}
