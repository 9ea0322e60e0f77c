//! The handle by which a producer takes back a timer message: URL-safe base64, padded, of `v1 <topic> <broker> <time> <UNIQ_KEY>` with single
//! blanks. Source: wire-protocol sheet 5.12.

const VERSION: &str = "v1";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// What a handle says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    pub topic: String,
    pub broker_name: String,
    /// One ms behind the time of the message's slot, as text.
    pub time: String,
    pub uniq_key: String,
}

pub fn handle(topic: &str, broker_name: &str, time_ms: i64, uniq_key: &str) -> String {
    let text = format!("{VERSION} {topic} {broker_name} {time_ms} {uniq_key}");
    let mut out = String::with_capacity(text.len().div_ceil(3) * 4);
    for three in text.as_bytes().chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let six = (bits >> (18 - 6 * place)) & 63;
            out.push(if place <= three.len() { char::from(ALPHABET[six as usize]) } else { '=' });
        }
    }
    out
}

/// `None` when it is no handle of this version.
pub fn parse(handle: &str) -> Option<Recall> {
    let text = String::from_utf8(decode(handle)?).ok()?;
    let mut parts = text.split(' ').map(str::to_owned);
    if parts.next()? != VERSION {
        return None;
    }
    let recall =
        Recall { topic: parts.next()?, broker_name: parts.next()?, time: parts.next()?, uniq_key: parts.next()? };
    parts.next().is_none().then_some(recall)
}

/// The bytes of URL-safe base64, padded or not; `None` when it is none, or empty.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if text.is_empty() || text.len() - digits.len() > 2 || digits.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for four in digits.as_bytes().chunks(4) {
        let mut bits = 0u32;
        for byte in four {
            let six = ALPHABET.iter().position(|digit| digit == byte)?;
            bits = bits << 6 | six as u32;
        }
        bits <<= 6 * (4 - four.len());
        out.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of Apache's broker 5.5.0.
    #[test]
    fn handles_are_apaches() {
        let golden = "djEgVCBicm9rZXItYSAxNzk2MDQ0MjQyMDAxIEZEMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAyMUQ1NjFEQkQxNkE2OTgyQzUw\
                      NDYwMDAx";
        let key = "FD0000000000000000000000000000021D561DBD16A6982C50460001";
        assert_eq!(handle("T", "broker-a", 1_796_044_242_001, key), golden);
        let parsed = parse(golden).unwrap();
        assert_eq!((parsed.topic.as_str(), parsed.broker_name.as_str()), ("T", "broker-a"));
        assert_eq!((parsed.time.as_str(), parsed.uniq_key.as_str()), ("1796044242001", key));
    }

    #[test]
    fn each_length_comes_back_and_rubbish_does_not() {
        for bytes in 0..7 {
            let handle = handle("T", "b", 1, &"k".repeat(bytes));
            assert_eq!(handle.len() % 4, 0);
            assert_eq!(parse(&handle).map(|recall| recall.uniq_key.len()), Some(bytes));
        }
        for odd in ["", "=", "====", "x", "djE", "dj Eg", "djEgVCBi+/", "/w==", &handle("T T", "b", 1, "k"), "\u{e9}"] {
            assert_eq!(parse(odd), None, "{odd}");
        }
        assert_eq!(parse("djIgVCBiIDEgaw=="), None, "v2");
    }
}
