//! The clock of the machine is set while messages wait for their time. The broker's own view of it is moved by a library in front of libc's,
//! so nothing else on the machine sees it.
use crate::common::{Client, Message, Pull, Server, props};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Adds the seconds that stand in the file `CLOCK` to the time of day; all other clocks stay.
const LIBRARY: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long *shift;
__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("CLOCK"), O_RDONLY);
    void *at = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || at == MAP_FAILED) abort();
    shift = at;
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = syscall(SYS_clock_gettime, clock, time);
    if (!failed && clock == CLOCK_REALTIME && shift) time->tv_sec += *shift;
    return failed;
}
"#;

/// Sets the server's clock so many seconds beside the machine's.
fn set(server: &Server, seconds: i64) {
    let mut file = std::fs::File::options().write(true).open(server.dir.join("clock")).expect("the clock");
    std::io::Write::write_all(&mut file, &seconds.to_ne_bytes()).expect("set");
}

fn build(dir: &Path) -> String {
    std::fs::write(dir.join("clock.c"), LIBRARY).expect("the source");
    let library = dir.join("clock.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(dir.join("clock.c")).status();
    assert!(built.expect("a C compiler").success());
    library.display().to_string()
}

fn start(name: &str, settings: &str) -> Server {
    let mut server = Server::start(name, settings);
    assert!(server.stop().success());
    let library = build(&server.dir);
    std::fs::write(server.dir.join("clock"), 0i64.to_ne_bytes()).expect("the clock");
    let clock = server.dir.join("clock");
    server.through = vec!["env".into(), format!("LD_PRELOAD={library}"), format!("CLOCK={}", clock.display())];
    server.start_again();
    server
}

fn send(client: &mut Client, topic: &str, property: &str, value: &str, body: &str) {
    client.sent(topic, 0, &props(&[("UNIQ_KEY", body), (property, value)]), body.as_bytes());
}

/// What came to a topic so far, and is to be this.
fn comes(client: &mut Client, topic: &str, want: &[&str]) -> Vec<Message> {
    let began = Instant::now();
    let (mut all, mut pull) = (Vec::<Message>::new(), Pull::at(topic, 0, 0).now());
    while all.len() < want.len() {
        let pulled = client.pull(&pull);
        all.extend(pulled.messages);
        pull.offset = if pulled.code == 0 { pulled.next } else { pull.offset };
        assert!(began.elapsed() < Duration::from_secs(60), "{topic}: {} of {want:?} came", all.len());
    }
    let bodies: Vec<&[u8]> = all.iter().map(|message| message.body.as_slice()).collect();
    assert_eq!(bodies, want.iter().map(|body| body.as_bytes()).collect::<Vec<_>>());
    all
}

fn a_clock_that_is_set_holds_up_nobody(name: &str, settings: &str) {
    let server = start(name, settings);
    let mut client = server.client();
    client.create_topic("timed", 1);
    client.create_topic("level", 1);
    // Set forward: what is due by the new time comes, what is not does not.
    send(&mut client, "timed", "TIMER_DELAY_SEC", "60", "a minute");
    send(&mut client, "timed", "TIMER_DELAY_SEC", "300", "five minutes");
    send(&mut client, "level", "DELAY", "5", "a minute");
    assert_eq!((client.bounds("timed", 0).1, client.bounds("level", 0).1), (0, 0));
    set(&server, 120);
    comes(&mut client, "timed", &["a minute"]);
    comes(&mut client, "level", &["a minute"]);
    // Set back: a timer keeps its time, a level never waits longer than it says, and what is sent now has the new time.
    send(&mut client, "timed", "TIMER_DELAY_MS", "1500", "before");
    send(&mut client, "level", "DELAY", "4", "at once"); // 30 s
    set(&server, 0);
    comes(&mut client, "level", &["a minute", "at once"]);
    send(&mut client, "timed", "TIMER_DELAY_MS", "2500", "after");
    comes(&mut client, "timed", &["a minute", "after"]);
    // And forward again, over all that waits.
    set(&server, 400);
    comes(&mut client, "timed", &["a minute", "after", "before", "five minutes"]);
    send(&mut client, "timed", "TIMER_DELAY_MS", "700", "last");
    send(&mut client, "level", "DELAY", "1", "last");
    comes(&mut client, "timed", &["a minute", "after", "before", "five minutes", "last"]);
    comes(&mut client, "level", &["a minute", "at once", "last"]);
    server.check_healthy(name);
}

#[test]
fn a_clock_that_is_set_holds_up_nobody_on_one_shard() {
    a_clock_that_is_set_holds_up_nobody("clock-1", "shards=1");
}

#[test]
fn a_clock_that_is_set_holds_up_nobody_on_two_shards() {
    a_clock_that_is_set_holds_up_nobody("clock-2", "shards=2");
}
