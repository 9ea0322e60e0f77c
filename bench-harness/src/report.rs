//! What a round measured, and how it is told: a progress line on a terminal, a line a round, JSON on request, median and spread.
use crate::error::BenchError;
use crate::hlog::Hlog;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

/// Counts of one round; latencies in nanoseconds.
#[derive(Clone)]
pub(crate) struct Tally {
    pub(crate) latency: Histogram<u64>,
    pub(crate) msgs: u64,
    pub(crate) bytes: u64,
    /// Requests by response code.
    pub(crate) codes: BTreeMap<i32, u64>,
    /// Sent and never answered, or sent and never arrived.
    pub(crate) missing: u64,
    /// How much later than intended the generator itself sent, at most.
    pub(crate) late_ns: u64,
}

const LATENCY_MAX_NS: u64 = 600_000_000_000;

impl Default for Tally {
    fn default() -> Self {
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("constant bounds that are right");
        Tally { latency, msgs: 0, bytes: 0, codes: BTreeMap::new(), missing: 0, late_ns: 0 }
    }
}

impl Tally {
    pub(crate) fn took(&mut self, ns: u64) {
        self.latency.saturating_record(ns.max(1));
    }

    pub(crate) fn errors(&self) -> u64 {
        self.codes.iter().filter(|(code, _)| **code != 0).map(|(_, count)| count).sum::<u64>() + self.missing
    }

    pub(crate) fn figures(&self, over: Duration) -> Figures {
        let ms = |quantile: f64| self.latency.value_at_quantile(quantile) as f64 / 1e6;
        let secs = over.as_secs_f64().max(1e-9);
        Figures {
            msg_per_s: self.msgs as f64 / secs,
            mb_per_s: self.bytes as f64 / secs / 1e6,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            p999_ms: ms(0.999),
            p9999_ms: ms(0.9999),
            max_ms: self.latency.max() as f64 / 1e6,
        }
    }
}

#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) msg_per_s: f64,
    pub(crate) mb_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    pub(crate) p9999_ms: f64,
    pub(crate) max_ms: f64,
}

impl Figures {
    fn fields(&self) -> [f64; 7] {
        [self.msg_per_s, self.mb_per_s, self.p50_ms, self.p99_ms, self.p999_ms, self.p9999_ms, self.max_ms]
    }

    /// Each field chosen from that of all rounds, which are given sorted.
    fn of_each(rounds: &[Figures], choose: impl Fn(&[f64]) -> f64) -> Figures {
        let field = |at: usize| {
            let mut values: Vec<f64> = rounds.iter().map(|round| round.fields()[at]).collect();
            values.sort_by(f64::total_cmp);
            choose(&values)
        };
        Figures {
            msg_per_s: field(0),
            mb_per_s: field(1),
            p50_ms: field(2),
            p99_ms: field(3),
            p999_ms: field(4),
            p9999_ms: field(5),
            max_ms: field(6),
        }
    }
}

/// The middle of sorted values; of an even number the mean of the two.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    assert!(!sorted.is_empty(), "a median of nothing");
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 }
}

#[derive(Serialize)]
struct RoundLine<'a> {
    kind: &'a str,
    round: u32,
    msgs: u64,
    errors: u64,
    secs: f64,
    #[serde(flatten)]
    figures: Figures,
    generator_late_ms: f64,
    codes: &'a BTreeMap<i32, u64>,
}

#[derive(Serialize)]
struct StagesLine<'a> {
    kind: &'a str,
    stages_us: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct SummaryLine<'a> {
    kind: &'a str,
    rounds: usize,
    errors: u64,
    median: Figures,
    min: Figures,
    max: Figures,
}

/// Tells rounds as they end and all of them at last.
pub(crate) struct Report {
    kind: &'static str,
    json: bool,
    terminal: bool,
    rounds: Vec<Figures>,
    errors: u64,
    hlog: RefCell<Option<Hlog>>,
}

/// The phase of a round that counts.
pub(crate) const MEASURING: &str = "measuring";

impl Report {
    /// `hlog`: latencies also go into this file.
    pub(crate) fn new(kind: &'static str, json: bool, hlog: Option<&Path>) -> Result<Self, BenchError> {
        let terminal = !json && std::io::stderr().is_terminal();
        let hlog = RefCell::new(hlog.map(|path| Hlog::create(path, kind)).transpose()?);
        Ok(Report { kind, json, terminal, rounds: Vec::new(), errors: 0, hlog })
    }

    /// The line that is written over and over on a terminal; nothing elsewhere. `over`: since the phase began.
    pub(crate) fn progress(&self, phase: &str, tally: &Tally, over: Duration) {
        if let Some(hlog) = &mut *self.hlog.borrow_mut()
            && phase == MEASURING
        {
            hlog.note(&tally.latency, over);
        }
        if self.terminal {
            let figures = tally.figures(over);
            eprint!(
                "\r\x1b[K{} {phase} {:5.1} s  {:>9.0} msg/s  p50 {:.3} p99 {:.3} ms  errors {}",
                self.kind,
                over.as_secs_f64(),
                figures.msg_per_s,
                figures.p50_ms,
                figures.p99_ms,
                tally.errors(),
            );
            let _ = std::io::stderr().flush();
        }
    }

    pub(crate) fn round(&mut self, tally: &Tally, over: Duration) {
        let figures = tally.figures(over);
        if let Some(hlog) = self.hlog.get_mut() {
            hlog.end_round(&tally.latency, over);
        }
        self.rounds.push(figures);
        self.errors += tally.errors();
        let line = RoundLine {
            kind: self.kind,
            round: self.rounds.len() as u32,
            msgs: tally.msgs,
            errors: tally.errors(),
            secs: over.as_secs_f64(),
            figures,
            generator_late_ms: tally.late_ns as f64 / 1e6,
            codes: &tally.codes,
        };
        if self.json {
            return print_json(&line);
        }
        if self.terminal {
            eprint!("\r\x1b[K");
        }
        println!(
            "{} round {}: {} messages in {:.2} s: {}; errors {} codes {:?}",
            self.kind,
            line.round,
            line.msgs,
            line.secs,
            text(&figures),
            line.errors,
            tally.codes
        );
        if tally.late_ns > 1_000_000 {
            println!("  (the generator itself was up to {:.1} ms late)", line.generator_late_ms);
        }
    }

    /// Where the broker says that the time went.
    pub(crate) fn stages(&self, stages: &[(String, String)]) {
        if self.json {
            let stages: BTreeMap<&str, &str> =
                stages.iter().map(|(name, told)| (name.as_str(), told.as_str())).collect();
            return print_json(&StagesLine { kind: self.kind, stages_us: stages });
        }
        if stages.is_empty() {
            println!("  this broker tells no stages");
        }
        stages.iter().for_each(|(name, told)| println!("  {name:<9} {told}"));
    }

    /// Median and spread, when there was more than one round; the log of latencies is whole now.
    pub(crate) fn end(self) -> Result<(), BenchError> {
        if self.rounds.len() > 1 {
            self.summary();
        }
        self.hlog.into_inner().map_or(Ok(()), Hlog::finish)
    }

    fn summary(&self) {
        let line = SummaryLine {
            kind: self.kind,
            rounds: self.rounds.len(),
            errors: self.errors,
            median: Figures::of_each(&self.rounds, median),
            min: Figures::of_each(&self.rounds, |sorted| sorted[0]),
            max: Figures::of_each(&self.rounds, |sorted| sorted[sorted.len() - 1]),
        };
        if self.json {
            return print_json(&line);
        }
        println!("{} median of {}: {}", self.kind, line.rounds, text(&line.median));
        println!("{} smallest: {}", self.kind, text(&line.min));
        println!("{} largest: {}", self.kind, text(&line.max));
    }
}

fn text(figures: &Figures) -> String {
    format!(
        "{:.0} msg/s {:.1} MB/s, ms: p50 {:.3} p99 {:.3} p99.9 {:.3} p99.99 {:.3} max {:.3}",
        figures.msg_per_s,
        figures.mb_per_s,
        figures.p50_ms,
        figures.p99_ms,
        figures.p999_ms,
        figures.p9999_ms,
        figures.max_ms
    )
}

/// Text for a page.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

pub(crate) fn print_json(line: &impl Serialize) {
    println!("{}", serde_json::to_string(line).expect("plain numbers and text"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_from_counts_and_latencies() {
        let mut tally = Tally::default();
        (1..=1000).for_each(|ms| tally.took(ms * 1_000_000));
        (tally.msgs, tally.bytes, tally.missing) = (1000, 2_000_000, 3);
        tally.codes.extend([(0, 990), (2, 10)]);
        assert_eq!(tally.errors(), 13);
        let figures = tally.figures(Duration::from_secs(2));
        assert_eq!((figures.msg_per_s, figures.mb_per_s), (500.0, 1.0));
        for (got, want) in
            [(figures.p50_ms, 500.0), (figures.p99_ms, 990.0), (figures.p999_ms, 999.0), (figures.max_ms, 1000.0)]
        {
            assert!((got - want).abs() / want < 0.002, "{got} for {want}");
        }
        tally.took(u64::MAX);
        assert!(tally.figures(Duration::from_secs(2)).max_ms >= 600_000.0, "the longest is kept, not dropped");
    }

    #[test]
    fn the_median_of_each_field_is_of_its_own() {
        let figures = |n: f64| Figures {
            msg_per_s: n,
            mb_per_s: -n,
            p50_ms: n * n,
            p99_ms: 0.0,
            p999_ms: 0.0,
            p9999_ms: 0.0,
            max_ms: 100.0 - n,
        };
        let all = [figures(3.0), figures(-1.0), figures(2.0)];
        let middle = Figures::of_each(&all, median);
        assert_eq!((middle.msg_per_s, middle.mb_per_s, middle.p50_ms, middle.max_ms), (2.0, -2.0, 4.0, 98.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
    }
}
