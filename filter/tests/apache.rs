//! Every expression with every set of properties, against what Apache's own filter answered. The answers were written by
//! `bench-harness/interop/golden/FilterGolden.java` from the two files of cases.
use std::collections::HashMap;
use uringmq_filter::Expression;

const PROPERTIES: &str = include_str!("golden/properties.txt");
const ANSWERS: &str = include_str!("golden/answers.txt");
const RANDOM: &str = include_str!("golden/random_answers.txt");

/// Undoes the escapes of the files: `\t`, `\n`, `\r`, `\\`, and code units as Java writes them.
fn unescape(text: &str) -> String {
    let mut units: Vec<u16> = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let plain = match (c, if c == '\\' { chars.next() } else { None }) {
            (_, Some('t')) => '\t',
            (_, Some('n')) => '\n',
            (_, Some('r')) => '\r',
            (_, Some('u')) => {
                let digits: String = chars.by_ref().take(4).collect();
                units.push(u16::from_str_radix(&digits, 16).expect("four digits"));
                continue;
            }
            (_, Some(other)) => other,
            (c, None) => c,
        };
        units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16(&units).expect("whole characters")
}

fn property_sets() -> Vec<HashMap<String, String>> {
    let lines = PROPERTIES.lines().filter(|line| !line.starts_with("##"));
    let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (unescape(name), unescape(value)));
    lines.map(|line| line.split('\t').filter_map(pair).collect()).collect()
}

fn answers(text: &str, sets: &[HashMap<String, String>]) -> String {
    let Ok(expression) = Expression::parse(text) else { return "refused".to_owned() };
    let letter = |set: &HashMap<String, String>| {
        let property = |name: &str| set.get(name).map(String::as_str);
        let answer = expression.evaluate(property);
        assert_eq!(expression.matches(property), answer == Ok(Some(true)));
        match answer {
            Ok(Some(true)) => 'T',
            Ok(Some(false)) => 'F',
            Ok(None) => 'N',
            Err(_) => 'X',
        }
    };
    sets.iter().map(letter).collect()
}

fn compare(table: &str, least: usize) {
    let sets = property_sets();
    assert!(sets.len() >= 20);
    let (mut wrong, mut rows, mut refused) = (Vec::new(), 0, 0);
    for line in table.lines() {
        let (want, escaped) = line.split_once('\t').expect("answers, a tab, the expression");
        // A bare property is no boolean to Apache's evaluation, and no match to its broker: it is FALSE here.
        let want = want.replace('O', "F");
        let got = answers(&unescape(escaped), &sets);
        if got != want {
            wrong.push(format!("{escaped}\n  Apache {want}\n  ours   {got}"));
        }
        rows += 1;
        refused += usize::from(want == "refused");
    }
    assert!(wrong.is_empty(), "{} of {rows} rows differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(rows - refused >= least, "{rows} rows, {refused} refused");
}

#[test]
fn every_cell_is_apaches() {
    compare(ANSWERS, 400);
}

/// Expressions that nobody thought of.
#[test]
fn every_cell_of_random_expressions_is_apaches() {
    compare(RANDOM, 400);
}
