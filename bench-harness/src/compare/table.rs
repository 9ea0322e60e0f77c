//! What was measured, as Markdown, as JSON lines, and in a README.
use super::loads::{self, Figure, Row};
use super::rmqload::Outcome;
use super::{CompareArgs, QUEUES};
use crate::error::BenchError;
use crate::report::median;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

const BEGIN: &str = "<!-- speed -->";
const END: &str = "<!-- end speed -->";

/// The column of what the disk itself gives.
pub(super) const FIO: &str = "fio";

/// All rounds of every figure and side, and of every send load's percentiles.
#[derive(Default)]
pub(super) struct Measured {
    figures: BTreeMap<(&'static str, Figure, &'static str), Vec<f64>>,
    /// By load and side: p50, p99, p99.9, p99.99 and the longest, in ms, a list a round; and msg/s.
    plots: BTreeMap<(&'static str, &'static str), Vec<[f64; 6]>>,
}

impl Measured {
    pub(super) fn note(&mut self, row: Row, side: &'static str, value: f64) {
        self.figures.entry((row.load, row.figure, side)).or_default().push(value);
    }

    pub(super) fn plot(&mut self, load: &'static str, side: &'static str, o: &Outcome) {
        let figures = [o.p50_ms, o.p99_ms, o.p999_ms, o.p9999_ms, o.max_ms, o.msg_per_s];
        self.plots.entry((load, side)).or_default().push(figures);
    }

    pub(super) fn last(&self, row: Row, side: &'static str) -> Option<f64> {
        self.figures.get(&(row.load, row.figure, side))?.last().copied()
    }

    /// Sorted; `None` when it was not measured.
    fn rounds(&self, row: Row, side: &'static str) -> Option<Vec<f64>> {
        let mut rounds = self.figures.get(&(row.load, row.figure, side))?.clone();
        rounds.sort_by(f64::total_cmp);
        Some(rounds)
    }

    /// The median of each of a load's plotted figures.
    pub(super) fn plotted(&self, load: &'static str, side: &'static str) -> Option<[f64; 6]> {
        let rounds = self.plots.get(&(load, side))?;
        Some(std::array::from_fn(|at| {
            let mut values: Vec<f64> = rounds.iter().map(|round| round[at]).collect();
            values.sort_by(f64::total_cmp);
            median(&values)
        }))
    }
}

/// The table: a column a side, the ratio of ours to Apache's, what is wanted of ours, and whether that is reached: `yes`, or the value that is
/// missed, which [`loads::Wanted::value`] bounds by what the machine allows.
pub(super) fn markdown(args: &CompareArgs, measured: &Measured, sides: &[&'static str]) -> String {
    let title = |side: &&str| match *side {
        "apache" => format!("Apache {}", args.apache_version),
        "uringmq" => "UringMQ".to_owned(),
        "rust" => "rocketmq-rust".to_owned(),
        FIO => "the disk by fio".to_owned(),
        other => format!("{other} server"),
    };
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let head = std::iter::once("load".to_owned()).chain(sides.iter().map(title));
    let head: Vec<String> = head.chain(["ratio", "wanted", "reached"].map(str::to_owned)).collect();
    let mut out = line(head.clone()) + &line(vec!["---".to_owned(); head.len()]);
    for row in loads::rows() {
        let rounds: Vec<Option<Vec<f64>>> = sides.iter().map(|side| measured.rounds(row, side)).collect();
        if rounds.iter().all(Option::is_none) {
            continue;
        }
        let of = |name| measured.rounds(row, name).map(|rounds| median(&rounds));
        let ratio = match (of("apache"), of("uringmq")) {
            (Some(theirs), Some(mine)) => ratio(row.figure, theirs, mine),
            _ => "-".to_owned(),
        };
        let mut cells = vec![format!("{}{}", row.load, row.figure.told())];
        cells.extend(rounds.iter().map(|rounds| rounds.as_ref().map_or("-".to_owned(), |r| cell(row.figure, r))));
        let wanted = row.wanted.value(row.figure, of("apache"), of("null"));
        let reached =
            of("uringmq").zip(wanted).map_or("-".to_owned(), |(mine, wanted)| reached(row.figure, mine, wanted));
        cells.extend([ratio, row.wanted.told(row.figure), reached]);
        out += &line(cells);
    }
    out += &format!(
        "\n1 KiB messages and {QUEUES} queues unless said, {} s a load, median of {} rounds that alternate (smallest - largest).\n",
        args.secs, args.rounds
    );
    out
}

/// Median and spread of sorted values.
fn cell(figure: Figure, values: &[f64]) -> String {
    let (middle, unit) = (number(median(values)), figure.unit());
    match values {
        [_] => format!("{middle} {unit}"),
        _ => format!("{middle} {unit} ({} - {})", number(values[0]), number(values[values.len() - 1])),
    }
}

fn ratio(figure: Figure, theirs: f64, mine: f64) -> String {
    match (theirs, mine) {
        (0.0, 0.0) => "equal".to_owned(),
        (_, 0.0) | (0.0, _) => "-".to_owned(),
        _ if figure.more_is_better() => format!("{:.2}x", mine / theirs),
        _ => format!("1/{:.1}", theirs / mine),
    }
}

fn reached(figure: Figure, mine: f64, wanted: f64) -> String {
    match if figure.more_is_better() { mine >= wanted } else { mine <= wanted } {
        true => "yes".to_owned(),
        false => format!("no: {} {}", number(wanted), figure.unit()),
    }
}

/// A number with as many digits as are worth reading.
fn number(value: f64) -> String {
    match value {
        _ if value >= 1000.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[derive(Serialize)]
struct JsonLine<'a> {
    load: &'a str,
    figure: String,
    unit: &'a str,
    side: &'a str,
    median: f64,
    rounds: &'a [f64],
}

pub(super) fn print_json(measured: &Measured, sides: &[&'static str]) {
    for row in loads::rows() {
        for side in sides {
            let Some(rounds) = measured.rounds(row, side) else { continue };
            crate::report::print_json(&JsonLine {
                load: row.load,
                figure: format!("{:?}", row.figure),
                unit: row.figure.unit(),
                side,
                median: median(&rounds),
                rounds: &rounds,
            });
        }
    }
}

/// Replaces what stands between the marks of the file.
pub(super) fn put_into(path: &Path, table: &str) -> Result<(), BenchError> {
    let text = std::fs::read_to_string(path).map_err(BenchError::io(format!("reading {}", path.display())))?;
    let text = replaced(&text, table)
        .ok_or_else(|| BenchError::Process(format!("{} has no lines {BEGIN} and {END}", path.display())))?;
    std::fs::write(path, text).map_err(BenchError::io(format!("writing {}", path.display())))
}

fn replaced(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_told() {
        let mut measured = Measured::default();
        let row = loads::DRAIN;
        for (side, values) in [("apache", [100.0, 300.0, 200.0]), ("uringmq", [400.0, 800.0, 500.0])] {
            values.into_iter().for_each(|value| measured.note(row, side, value));
        }
        assert_eq!(measured.rounds(row, "uringmq").unwrap(), [400.0, 500.0, 800.0]);
        assert!(measured.rounds(row, "null").is_none());
        assert_eq!(ratio(Figure::MsgPerS, 200.0, 500.0), "2.50x");
        assert_eq!(ratio(Figure::P999, 20.0, 2.0), "1/10.0");
        let judged = |mine| reached(Figure::P99, mine, 1.0);
        assert_eq!((judged(0.9), judged(1.25)), ("yes".to_owned(), "no: 1.000 ms".to_owned()));
        assert_eq!(
            (reached(Figure::MsgPerS, 9.0, 10.0), reached(Figure::MsgPerS, 11.0, 10.0)),
            ("no: 10.0 msg/s".into(), "yes".into())
        );
        assert_eq!((ratio(Figure::Refused, 0.0, 0.0), ratio(Figure::Refused, 3.0, 0.0)), ("equal".into(), "-".into()));
    }

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        assert_eq!(replaced(&text, "new\n").unwrap(), format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
        assert_eq!(replaced("a\n", "new"), None);
    }
}
