//! The controllers of one group: numbers and addresses. Source of the text's form: replication sheet 11, 12.
use std::collections::BTreeMap;

/// By number: `n2-host:port` is number 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers(BTreeMap<u64, String>);

impl Peers {
    /// Reads `n0-host:port;n1-host:port`.
    ///
    /// # Errors
    /// What is wrong, to stand after the text.
    pub fn read(text: &str) -> Result<Peers, String> {
        let mut peers = BTreeMap::new();
        for item in text.split(';').map(str::trim).filter(|item| !item.is_empty()) {
            let wrong = || format!("has '{item}', which is not like n0-host:port");
            let (id, address) = item.split_once('-').ok_or_else(wrong)?;
            let number = Self::number(id).ok_or_else(wrong)?;
            let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
            if host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
                return Err(wrong());
            }
            if peers.insert(number, address.to_owned()).is_some() {
                return Err(format!("names {id} twice"));
            }
        }
        let mut addresses: Vec<&String> = peers.values().collect();
        addresses.sort();
        match addresses.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("names {} twice", pair[0])),
            None => Ok(Peers(peers)),
        }
    }

    /// 2 of `n2`.
    pub fn number(id: &str) -> Option<u64> {
        id.strip_prefix('n').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn address(&self, number: u64) -> Option<&str> {
        self.0.get(&number).map(String::as_str)
    }

    pub fn port(&self, number: u64) -> Option<u16> {
        self.address(number)?.rsplit_once(':')?.1.parse().ok()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &str)> {
        self.0.iter().map(|(number, address)| (*number, address.as_str()))
    }

    /// As code 1005 lists them: `n0:host:port;n1:host:port;`.
    pub fn to_listing(&self) -> String {
        self.iter().map(|(number, address)| format!("n{number}:{address};")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_in_any_order() {
        let peers = Peers::read("n2-c:3; n0-a.b-c:1;n11-[::1]:2;").unwrap();
        assert_eq!(peers.to_listing(), "n0:a.b-c:1;n2:c:3;n11:[::1]:2;");
        assert_eq!((peers.address(0), peers.port(11), peers.port(5)), (Some("a.b-c:1"), Some(2), None));
        assert!(Peers::read("").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_list_of_peers_is_told() {
        for (text, want) in [
            ("n0", "has 'n0'"),
            ("n0-a", "not like"),
            ("n0-a:0", "not like"),
            ("n0-:1", "not like"),
            ("n0-a:99999", "not like"),
            ("x0-a:1", "not like"),
            ("n-a:1", "not like"),
            ("n+1-a:1", "not like"),
            ("n0-a:1;n0-b:1", "names n0 twice"),
            ("n0-a:1;n1-a:1", "names a:1 twice"),
        ] {
            let why = Peers::read(text).unwrap_err();
            assert!(why.contains(want), "{text}: {why}");
        }
    }
}
