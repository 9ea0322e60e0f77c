//! The README's table of request codes is the one that requests are dispatched by. `UPDATE=1 cargo test --test request_table` writes it.
use std::fmt::Write as _;
use uringmq_broker::requests::{Home, ROWS};

const BEGIN: &str = "<!-- broker requests -->\n";
const END: &str = "<!-- end -->";

fn table() -> String {
    let mut text = String::from("| code | name | handled by | fast port |\n| --- | --- | --- | --- |\n");
    let mut rows: Vec<_> = ROWS.iter().collect();
    rows.sort_by_key(|row| row.code);
    for row in rows {
        let home = match row.home {
            Home::Local => "the connection's shard",
            Home::Control => "control",
            Home::Owner => "the queue's owner",
        };
        let fast = if row.fast { "yes" } else { "no" };
        writeln!(text, "| {} | {} | {home} | {fast} |", row.code, row.name).expect("a string takes all");
    }
    text
}

#[test]
fn readme_lists_what_is_served() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = std::fs::read_to_string(path).expect("the README is there");
    let (before, rest) = readme.split_once(BEGIN).expect("the table's begin");
    let (listed, after) = rest.split_once(END).expect("the table's end");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{}{END}{after}", table())).expect("written");
        return;
    }
    assert_eq!(listed, table(), "run it with UPDATE=1");
}

#[test]
fn no_code_is_listed_twice() {
    let mut codes: Vec<i32> = ROWS.iter().map(|row| row.code).collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), ROWS.len());
}
