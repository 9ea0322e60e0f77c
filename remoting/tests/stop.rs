//! The gate: who is in, who may still come, who is waited for.
mod common;
use common::within;
use std::cell::RefCell;
use std::rc::Rc;
use uringmq_remoting::stop::Gate;

#[test]
fn a_gate_drains_when_the_last_pass_is_gone() {
    within(|| async {
        let (gate, said) = (Gate::new(), Rc::new(RefCell::new(Vec::new())));
        let say = |what: &'static str| {
            let said = said.clone();
            move || said.borrow_mut().push(what)
        };
        let (first, second) = (gate.enter().unwrap(), gate.enter().unwrap());
        let closed = {
            let (gate, say) = (gate.clone(), say("closed"));
            glommio::spawn_local(async move {
                gate.closed().await;
                say();
            })
        };
        let drained: Vec<_> = (0..2)
            .map(|_| {
                let (gate, say) = (gate.clone(), say("drained"));
                glommio::spawn_local(async move {
                    gate.drained().await;
                    say();
                })
            })
            .collect();
        futures_lite::future::yield_now().await;
        drop(first);
        futures_lite::future::yield_now().await;
        assert!(said.borrow().is_empty() && !gate.is_closed());
        gate.close();
        gate.close();
        closed.await;
        assert_eq!(*said.borrow(), ["closed"]);
        assert!(gate.is_closed() && gate.enter().is_none());
        drop(second);
        for task in drained {
            task.await;
        }
        assert_eq!(*said.borrow(), ["closed", "drained", "drained"]);
        gate.drained().await;
    });
}

#[test]
fn an_empty_gate_drains_at_once_but_only_when_closed() {
    within(|| async {
        let gate = Gate::new();
        drop(gate.enter());
        assert!(futures_lite::future::poll_once(gate.drained()).await.is_none());
        gate.close();
        gate.drained().await;
        gate.closed().await;
    });
}
