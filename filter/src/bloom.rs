//! The Bloom filter by which a message's bit map says which subscriptions it matches. Each subscription has a few places in the map; a message
//! that matches has all of them set. Source: behaviour sheet 10.4, checked against Apache's 5.5.0 (`BloomFilter`, `BitsArray`).

/// How long the map is, and how many places each subscription has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bloom {
    hashes: u32,
    bits: u32,
}

impl Bloom {
    /// For `subscriptions` (`expectConsumerNumUseFilter`) and this rate of wrong hits in per cent (`maxErrorRateOfBloomFilter`). `None` where either
    /// is out of its range (at least 1; 1 to 99), or the map would have more bits than a Java int counts.
    pub fn new(subscriptions: u32, error_percent: u32) -> Option<Self> {
        if subscriptions == 0 || !(1..100).contains(&error_percent) {
            return None;
        }
        let log = |base: f64, of: f64| of.ln() / base.ln();
        let rate = f64::from(error_percent) / 100.0;
        let hashes = log(0.5, rate).ceil() as u32;
        let bits = (f64::from(subscriptions) * log(2.0, 1.0 / rate) * log(2.0, std::f64::consts::E)).ceil();
        let bits = (bits / 8.0).ceil() * 8.0;
        (bits <= f64::from(i32::MAX)).then_some(Bloom { hashes, bits: bits as u32 })
    }

    /// Length of the map in bits, a multiple of 8.
    pub fn bits(self) -> u32 {
        self.bits
    }

    pub fn map_bytes(self) -> usize {
        self.bits as usize / 8
    }

    /// Whether these could be the places of a subscription.
    pub fn fits(self, bits: u32, places: &[u32]) -> bool {
        bits == self.bits && places.len() == self.hashes as usize && places.iter().all(|place| *place < self.bits)
    }

    /// The places of a group's subscription on a topic.
    pub fn places(self, group: &str, topic: &str) -> Vec<u32> {
        let hash = murmur3(format!("{group}#{topic}").as_bytes());
        let (first, second) = (hash as u32 as i32, (hash >> 32) as u32 as i32);
        let place = |n: i32| {
            let mixed = first.wrapping_add(n.wrapping_mul(second));
            (if mixed < 0 { !mixed } else { mixed }) as u32 % self.bits
        };
        (1..=self.hashes as i32).map(place).collect()
    }
}

/// Marks a subscription in a message's map.
pub fn set(map: &mut [u8], places: &[u32]) {
    for place in places {
        map[*place as usize / 8] |= 1 << (place % 8);
    }
}

/// Whether all places of a subscription are set. A map that is too short has none.
pub fn is_set(map: &[u8], places: &[u32]) -> bool {
    places.iter().all(|place| map.get(*place as usize / 8).is_some_and(|byte| byte & (1 << (place % 8)) != 0))
}

/// The first half of MurmurHash3 of 128 bits for 64-bit machines, seed 0. Source: its public description (A. Appleby).
fn murmur3(bytes: &[u8]) -> u64 {
    const C1: u64 = 0x87c3_7b91_1142_53d5;
    const C2: u64 = 0x4cf5_ad43_2745_937f;
    let mix1 = |k: u64| k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2);
    let mix2 = |k: u64| k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1);
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let (mut h1, mut h2) = (0u64, 0u64);
    let blocks = bytes.chunks_exact(16);
    let rest = blocks.remainder();
    for block in blocks {
        h1 ^= mix1(word(&block[..8]));
        h1 = h1.rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 ^= mix2(word(&block[8..]));
        h2 = h2.rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    if rest.len() > 8 {
        h2 ^= mix2(word(&rest[8..]));
    }
    if !rest.is_empty() {
        h1 ^= mix1(word(&rest[..rest.len().min(8)]));
    }
    let length = bytes.len() as u64;
    (h1, h2) = (h1 ^ length, h2 ^ length);
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    let finish = |mut k: u64| {
        k = (k ^ (k >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        k = (k ^ (k >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        k ^ (k >> 33)
    };
    finish(h1).wrapping_add(finish(h2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_and_places_of_the_sheet() {
        let bloom = Bloom::new(32, 20).unwrap();
        assert_eq!((bloom.hashes, bloom.bits(), bloom.map_bytes()), (3, 112, 14));
        assert_eq!(bloom.places("GroupA", "TopicTest"), [105, 17, 70]);
        assert!(bloom.fits(112, &[105, 17, 70]));
        assert!(!bloom.fits(120, &[105, 17, 70]) && !bloom.fits(112, &[105, 17]) && !bloom.fits(112, &[112, 17, 70]));
    }

    /// What Apache's filter gives.
    #[test]
    fn places_of_keys_of_all_lengths() {
        let places =
            |subscriptions, error, group, topic| Bloom::new(subscriptions, error).unwrap().places(group, topic);
        let (group, topic) = ("a-longer-group-name-of-more-than-32-bytes", "some.topic.é");
        assert_eq!(places(32, 20, "G", "T"), [24, 26, 83]);
        assert_eq!(places(32, 20, group, topic), [45, 2, 71]);
        assert_eq!(places(1000, 1, group, topic), [3853, 1890, 9519, 7556, 5593, 3630, 1667]);
        assert_eq!((places(1, 99, group, topic), places(7, 50, group, topic)), (vec![5], vec![13]));
    }

    #[test]
    fn what_no_filter_can_be_made_of() {
        for (subscriptions, error) in [(0, 20), (32, 0), (32, 100), (u32::MAX, 1)] {
            assert_eq!(Bloom::new(subscriptions, error), None, "{subscriptions} {error}");
        }
        assert!(Bloom::new(1, 99).is_some_and(|bloom| bloom.bits() == 8 && bloom.hashes == 1));
    }

    #[test]
    fn a_subscription_is_found_by_all_its_places() {
        let bloom = Bloom::new(32, 20).unwrap();
        let mut map = vec![0; bloom.map_bytes()];
        let (a, b) = (bloom.places("a", "T"), bloom.places("b", "T"));
        set(&mut map, &a);
        assert!(is_set(&map, &a) && !is_set(&map, &b), "{a:?} {b:?}");
        assert!(!is_set(&[], &a) && !is_set(&map[..1], &[8]));
    }
}
