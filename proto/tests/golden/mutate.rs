//! Goldens damaged at random: an error or a value, never a panic, never an allocation by a length not yet checked.
use super::goldens;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use uringmq_proto::body::{self, heartbeat, offset, register, route, stats};
use uringmq_proto::command::Command;
use uringmq_proto::frame::{Split, split};
use uringmq_proto::headers::{Header, pull::PullMessage, send::SendMessage};
use uringmq_proto::{message, properties, record};

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, noting the largest allocation of each thread.
struct Noting;

// SAFETY: every call goes to the system's allocator unchanged; the note is a plain thread-local cell without a destructor.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System.alloc` with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static NOTING: Noting = Noting;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Bytes that mean something to one of the parsers.
const TELLING: &[u8] =
    &[0, 1, 2, 0x7F, 0x80, 0xFF, b'"', b'\\', b'{', b'}', b'[', b']', b':', b',', b'u', b'-', b'0', 0xC3];

fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        let telling = TELLING[random.below(TELLING.len())];
        match random.below(6) {
            _ if bytes.is_empty() => bytes.push(telling),
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = telling,
            2 => bytes.insert(at, telling),
            3 => drop(bytes.remove(at)),
            4 => bytes.truncate(at),
            _ => {
                let from = random.below(bytes.len());
                let piece: Vec<u8> = bytes[from..].iter().take(random.below(40)).copied().collect();
                bytes.splice(at..at, piece);
            }
        }
    }
}

fn read_everything(bytes: &[u8]) {
    if let Ok(Split::Whole { frame, .. }) = split(bytes, true)
        && let Ok(command) = Command::decode(frame)
    {
        let _ = SendMessage::decode(&command);
        let _ = PullMessage::decode(&command);
        assert!(command.body.len() < bytes.len());
    }
    for check in [true, false] {
        if let Ok(record::Found::Record(r)) = record::parse(bytes, check) {
            assert!(r.bytes <= bytes.len());
            record::index_key_hashes(r.topic, r.properties, r.sys_flag, |_| {});
        }
    }
    let _ = record::store_timestamp_ms(bytes);
    let items = message::batch_items(bytes).take_while(Result::is_ok).count();
    assert!(items <= bytes.len() / 22);
    let _ = body::parse::<heartbeat::HeartbeatData>(bytes);
    let _ = body::parse::<route::TopicRouteData>(bytes);
    let _ = body::parse::<offset::ConsumerOffsetTable>(bytes);
    let _ = body::parse::<stats::ConsumeStats>(bytes);
    let _ = register::RegisterBrokerBody::decode_plain(bytes);
    let text = String::from_utf8_lossy(bytes);
    let _ = properties::parse(&text);
    let _ = message::parse_offset_id(&text);
    message::properties(&text).for_each(drop);
}

#[test]
fn damaged_goldens_are_errors_or_values() {
    let seed = 20_240_611;
    let mut random = Random(seed);
    for (name, whole) in goldens() {
        for round in 0..400 {
            let mut bytes = whole.clone();
            damage(&mut random, &mut bytes);
            LARGEST.set(0);
            read_everything(&bytes);
            // Tables grow by doubling, entries are larger than their text; 64 times the input is far from any length field's 2 GiB.
            let limit = 64 * bytes.len() + 16 * 1024;
            let largest = LARGEST.get();
            assert!(
                largest <= limit,
                "{name}, seed {seed}, round {round}: allocated {largest} for {} bytes",
                bytes.len()
            );
        }
    }
}

#[test]
fn damaged_compressed_registrations_stay_within_their_limit() {
    let whole = super::golden("body-register-zlib");
    let mut random = Random(7);
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        damage(&mut random, &mut bytes);
        LARGEST.set(0);
        let _ = register::RegisterBrokerBody::decode_compressed(&bytes, 513);
        assert!(LARGEST.get() <= 2 * register::INFLATED_BYTES_MAX);
    }
}

#[test]
fn random_bytes_behind_a_good_prefix() {
    let mut random = Random(3);
    for round in 0..100_000 {
        let mut bytes = vec![0, 0, 0, 0, 0, 0, 0, 0];
        let header = random.below(80);
        bytes.extend((0..header).map(|_| match random.below(3) {
            0 => TELLING[random.below(TELLING.len())],
            1 => random.next() as u8,
            _ => b"\"code\":1,\"opaque\":{}"[random.below(20)],
        }));
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        bytes[4] = round as u8 & 1;
        bytes[7] = header as u8;
        let Ok(Split::Whole { frame, .. }) = split(&bytes, true) else { panic!("a whole frame") };
        let _ = Command::decode(frame);
    }
}
