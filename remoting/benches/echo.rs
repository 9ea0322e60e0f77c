//! Requests per second through two executors, one serving and one calling: `cargo bench -p uringmq-remoting`.
//!
//! On a busy machine look at the processor time, not at the rate. Each request has the header fields of a small send and 100 bytes of body; the answer has those of a send's answer.
use glommio::{LocalExecutorBuilder, Placement};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uringmq_proto::command::{Command, Response};
use uringmq_remoting::client::{NoService, connect};
use uringmq_remoting::connection::{Conn, Conns};
use uringmq_remoting::listener::{self, Spread};
use uringmq_remoting::stop::Gate;
use uringmq_remoting::{Limits, Service};

const SECONDS: u64 = 2;

struct Answerer;
impl Service for Answerer {
    fn on_request(&self, conn: &Rc<Conn>, cmd: &Command<'_>, _: &[u8]) {
        let response = Response::ok()
            .with("msgId", "7F00000100002A9F000000000000ABCD")
            .with("queueId", 3)
            .with("queueOffset", cmd.opaque);
        conn.respond(cmd.opaque, &response);
    }
}

fn main() {
    let bound = listener::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let addr = bound.addr;
    let server = LocalExecutorBuilder::new(Placement::Fixed(0)).spawn(move || async move {
        let (gate, spread, conns) = (Gate::new(), Spread::new(1), Rc::new(Conns::default()));
        glommio::spawn_local(listener::accept(bound, spread.clone(), gate.clone())).detach();
        listener::serve(spread, 0, conns, Rc::new(Answerer), Limits::default(), gate).await;
    });
    let server = server.expect("an executor");
    let client = LocalExecutorBuilder::new(Placement::Fixed(1)).spawn(move || async move {
        for (conns, inflight) in [(1, 1), (1, 32), (1, 256), (8, 32), (8, 256)] {
            let (all, mine) = (cpu(libc::CLOCK_PROCESS_CPUTIME_ID), cpu(libc::CLOCK_THREAD_CPUTIME_ID));
            let (requests, rate) = measure(addr, conns, inflight).await;
            let calling = cpu(libc::CLOCK_THREAD_CPUTIME_ID) - mine;
            let serving = cpu(libc::CLOCK_PROCESS_CPUTIME_ID) - all - calling;
            let each = |seconds: f64| seconds * 1e6 / requests as f64;
            println!(
                "{conns} connections x {inflight} in flight: {rate:.0} requests/s; processor time of a request: {:.2} us serving, {:.2} us calling",
                each(serving),
                each(calling),
            );
        }
    });
    client.expect("an executor").join().expect("the calling executor");
    drop(server); // it serves until the process ends
    std::process::exit(0);
}

/// Seconds of processor time.
fn cpu(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec to be filled.
    let failed = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(failed, 0, "no such clock");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Requests answered, and their number per second.
async fn measure(addr: std::net::SocketAddr, conns: usize, inflight: usize) -> (u64, f64) {
    let table = Rc::new(Conns::default());
    let done = Rc::new(Cell::new(0u64));
    let started = Instant::now();
    let until = started + Duration::from_secs(SECONDS);
    let mut tasks = Vec::new();
    for _ in 0..conns {
        let wait = Duration::from_secs(5);
        let conn =
            connect(addr, &table, Rc::new(NoService), Limits::default(), wait).await.expect("the server listens");
        for queue in 0..inflight {
            let (conn, done) = (conn.clone(), done.clone());
            tasks.push(glommio::spawn_local(async move {
                let ext = [("a", "group".into()), ("b", "SomeTopic".into()), ("e", queue.to_string().into())];
                while Instant::now() < until {
                    conn.call(310, &ext, &[b'x'; 100], wait).await.expect("an answer");
                    done.set(done.get() + 1);
                }
            }));
        }
    }
    for task in tasks {
        task.await;
    }
    table.close_all("measured");
    table.emptied().await;
    (done.get(), done.get() as f64 / started.elapsed().as_secs_f64())
}
