//! Goldens: bytes made by Apache's own classes (`GoldenMaker.java`) in `hex/`, a line on what each is for and its bytes. They are
//! decoded, encoded and compared; then mutated, to see that no bytes from outside make the decoders panic.
mod bodies;
mod headers;
mod mutate;
mod records;

use std::path::{Path, PathBuf};
use uringmq_proto::command::{Command, Value, write_request};
use uringmq_proto::frame::{Frame, Serialize, Split, split};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hex")
}

/// Name and bytes of every golden, by name.
fn goldens() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.extension().unwrap(), "hex", "{path:?}");
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let bytes = golden(&name);
        all.push((name, bytes));
    }
    all.sort();
    all
}

fn golden(name: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(directory().join(name).with_extension("hex")).unwrap();
    let (purpose, hex) = text.split_once('\n').unwrap();
    assert!(purpose.starts_with("# ") && purpose.len() > 8, "{name} does not say what it is for");
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn frame(bytes: &[u8]) -> Frame<'_> {
    match split(bytes, true).unwrap() {
        Split::Whole { frame, bytes: took } if took == bytes.len() => frame,
        other => panic!("{other:?}"),
    }
}

fn command(bytes: &[u8]) -> Command<'_> {
    Command::decode(frame(bytes)).unwrap()
}

#[test]
fn json_requests_are_written_as_java_writes_them() {
    let mut count = 0;
    for (name, bytes) in goldens().iter().filter(|(name, _)| name.starts_with("request-") || name == "frame-oneway") {
        let command = command(bytes);
        let ext: Vec<(&str, Value<'_>)> = command.ext.0.iter().map(|(k, v)| (k.as_ref(), v.as_ref().into())).collect();
        let mut again = Vec::new();
        write_request(&mut again, command.code, command.opaque, command.is_oneway(), &ext, command.body);
        assert_eq!(String::from_utf8_lossy(&again), String::from_utf8_lossy(bytes), "{name}");
        count += 1;
    }
    assert!(count > 60, "only {count} requests");
}

#[test]
fn a_response_is_written_as_java_writes_it() {
    use uringmq_proto::command::{Response, write_response};
    let response = Response { remark: Some("FOUND \"中\"\n".into()), ..Response::ok() }
        .with("suggestWhichBrokerId", 0)
        .with("nextBeginOffset", 42u64)
        .with("maxOffset", i64::MAX)
        .with("minOffset", 0)
        .body(vec![1, 2, 3]);
    let mut out = Vec::new();
    write_response(&mut out, 9, &response);
    assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&golden("frame-response")));
    assert!(command(&out).is_response());
}

#[test]
fn binary_headers_decode() {
    let bytes = golden("frame-binary-request");
    let c = command(&bytes);
    assert_eq!((c.serialize, c.code, c.version, c.opaque, c.flag), (Serialize::Binary, 105, 513, 7, 0));
    assert_eq!((c.remark.as_deref(), c.ext.get("topic"), c.body.len()), (Some("r中"), Some("T"), 0));
    let bytes = golden("frame-binary-send");
    let c = command(&bytes);
    assert_eq!((c.code, c.opaque, c.body), (310, i32::MIN, &b"hello"[..]));
    assert_eq!(c.ext.get("i"), Some("TAGS\u{1}TagA\u{2}"));
}
