//! The differential suite: the requests of `cases/*.txt`, made of ours here and of Apache's broker on demand, their answers side by side
//! in `answers/`. Codes, header fields, bodies and records are compared; remarks are shown only, since each broker words its own.
//!
//! A case that begins with a line `! reason` is one in which ours is to differ, and then it must. `./test.sh differential` starts
//! Apache's broker and writes its answers anew; [`DIFFERENTIAL_BROKER`](BROKER_KEY) and [`DIFFERENTIAL_NAMESRV`](NAMESRV_KEY) name servers that run already.
#[path = "../common/mod.rs"]
mod common;
mod script;
mod shown;

use common::Server;
use script::{Case, Servers};
use std::path::{Path, PathBuf};

/// Environment: the addresses of Apache's broker and NameServer, whose answers are to be written.
const BROKER_KEY: &str = "DIFFERENTIAL_BROKER";
const NAMESRV_KEY: &str = "DIFFERENTIAL_NAMESRV";

/// Environment: areas to run, separated by commas; all without it.
const AREAS_KEY: &str = "DIFFERENTIAL_AREAS";

/// What the servers of both sides are started with.
const SETTINGS: &str =
    "brokerName=broker-a\nshards=2\nenablePropertyFilter=true\nenableLmq=true\nenableMultiDispatch=true\n";

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential")
}

fn areas() -> Vec<String> {
    let files = std::fs::read_dir(here().join("cases")).expect("the cases");
    let mut names: Vec<String> = files
        .map(|file| file.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    if let Ok(only) = std::env::var(AREAS_KEY) {
        names.retain(|name| only.split(',').any(|area| area == name));
    }
    names.sort();
    names
}

fn cases(area: &str) -> Vec<Case> {
    let path = here().join(format!("cases/{area}.txt"));
    script::parse(area, &std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

fn answers(area: &str, side: &str) -> PathBuf {
    here().join(format!("answers/{area}.{side}.txt"))
}

/// What was written, cut into cases: name and answers.
fn written(path: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let cases = text.split("\n== ").filter(|case| !case.trim().is_empty());
    cases
        .map(|case| {
            let (name, answers) = case.split_once('\n').unwrap_or((case, ""));
            (name.trim_start_matches("== ").to_owned(), answers.trim_end().to_owned())
        })
        .collect()
}

/// Answers without what is only shown.
fn judged(answers: &str) -> String {
    answers
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n")
        .trim_end()
        .to_owned()
}

fn run_all(area: &str, servers: Servers) -> Vec<(Case, String)> {
    cases(area)
        .into_iter()
        .map(|case| {
            let answers = script::run(&case, servers);
            (case, answers)
        })
        .collect()
}

fn text_of(all: &[(Case, String)]) -> String {
    all.iter().map(|(case, answers)| format!("== {}\n{}\n\n", case.name, answers.trim_end())).collect()
}

/// Ours against Apache's answers as they were written. Ours go into `answers/` when `DIFFERENTIAL_WRITE` is set.
#[test]
fn ours_answers_as_apaches() {
    let server = Server::start("differential", SETTINGS);
    let mut faults = Vec::new();
    let mut count = 0;
    for area in areas() {
        let ours = run_all(&area, Servers { broker: server.broker, namesrv: server.namesrv });
        let file = answers(&area, "ours");
        if std::env::var_os("DIFFERENTIAL_WRITE").is_some() {
            std::fs::write(&file, text_of(&ours)).expect("the answers");
        }
        let apaches = written(&answers(&area, "apache"));
        let before = written(&file);
        assert_eq!(ours.len(), apaches.len(), "{area}: the answers are of other cases; run ./test.sh differential");
        for (at, (case, answers)) in ours.iter().enumerate() {
            count += 1;
            let (name, apache) = &apaches[at];
            assert_eq!(name, &case.name, "{area}: the answers are of other cases; run ./test.sh differential");
            let same = judged(answers) == judged(apache);
            match &case.differs {
                None if !same => faults.push(format!("{area}: {name}\n--- apache\n{apache}\n--- ours\n{answers}")),
                Some(why) if same => faults.push(format!("{area}: {name}: no longer differs ({why})")),
                _ => {}
            }
            let was = before.get(at).map(|(_, was)| judged(was));
            if case.differs.is_some() && was.as_ref() != Some(&judged(answers)) {
                faults.push(format!("{area}: {name}: ours was\n{}\n--- and is\n{answers}", was.unwrap_or_default()));
            }
        }
    }
    println!("{count} cases");
    assert!(faults.is_empty(), "{} of {count} cases:\n\n{}", faults.len(), faults.join("\n\n"));
    server.check_healthy("all cases");
}

/// Writes Apache's answers. Only where a broker of Apache's is named.
#[test]
fn apaches_answers_are_written() {
    let named = |key| {
        let addr = std::env::var(key).ok()?;
        Some(addr.parse().unwrap_or_else(|e| panic!("{key}={addr}: {e}")))
    };
    let (Some(broker), Some(namesrv)) = (named(BROKER_KEY), named(NAMESRV_KEY)) else { return };
    for area in areas() {
        let all = run_all(&area, Servers { broker, namesrv });
        std::fs::write(answers(&area, "apache"), text_of(&all)).expect("the answers");
        println!("{area}: {} cases", all.len());
    }
}
