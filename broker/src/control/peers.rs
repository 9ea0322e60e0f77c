//! Other brokers of the cluster: what of a static topic's logical queue is theirs is asked of them, in strict mode whether a queue is
//! locked, and what an acting slave delivers is sent to them. Part of the control role, which knows the NameServers. Source: behaviour sheet 11.2; checked against Apache's broker 5.5.0 (`RpcClientImpl`, `ClientMetadata`).
use crate::config::HostPort;
use crate::registration::resolve::resolve;
use crate::shard::Shard;
use hashbrown::HashMap;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;
use uringmq_proto::command::{OwnedCommand, Value};
use uringmq_remoting::Limits;
use uringmq_remoting::client::{self, NoService};
use uringmq_remoting::connection::{CallError, Conn, Conns};

#[derive(Debug, Error)]
pub enum PeerError {
    /// As Apache's says it.
    #[error("cannot find addr for broker {0}")]
    Unknown(String),
    #[error("broker {broker}, {at}: {why}")]
    Address { broker: String, at: String, why: String },
    #[error("broker {broker}: {source}")]
    Call {
        broker: String,
        #[source]
        source: CallError,
    },
}

/// Connections to them, by their addresses.
#[derive(Default)]
pub struct Peers {
    conns: Rc<Conns>,
    open: RefCell<HashMap<String, Rc<Conn>>>,
}

impl Peers {
    /// Asks the master of that name, and gives what it answers, whatever the code.
    ///
    /// # Errors
    /// No NameServer knows it, or it cannot be reached, or does not answer within `timeout`.
    pub async fn ask(
        &self,
        shard: &Shard,
        broker: &str,
        code: i32,
        ext: Vec<(String, String)>,
        timeout: Duration,
    ) -> Result<OwnedCommand, PeerError> {
        let addr = shard.control().registration.master_of(broker).await;
        let addr = addr.ok_or_else(|| PeerError::Unknown(broker.to_owned()))?;
        let ext: Vec<(&str, Value<'_>)> = ext.iter().map(|(name, value)| (&**name, Value::from(&**value))).collect();
        self.call(broker, &addr, (code, &ext, &[]), timeout).await
    }

    /// Asks the one at `addr`; `broker` is for errors.
    ///
    /// # Errors
    /// It cannot be reached within `timeout`, or does not answer within it.
    pub async fn call(
        &self,
        broker: &str,
        addr: &str,
        (code, ext, body): (i32, &[(&str, Value<'_>)], &[u8]),
        timeout: Duration,
    ) -> Result<OwnedCommand, PeerError> {
        let conn = self.connect(broker, addr, timeout).await?;
        let failed = |source| PeerError::Call { broker: broker.to_owned(), source };
        conn.call(code, ext, body, timeout).await.map_err(failed)
    }

    /// The open connection to `addr`, made when there is none.
    ///
    /// # Errors
    /// It is no address, or cannot be reached within `timeout`.
    pub async fn connect(&self, broker: &str, addr: &str, timeout: Duration) -> Result<Rc<Conn>, PeerError> {
        self.open.borrow_mut().retain(|_, conn| conn.is_open());
        if let Some(conn) = self.open.borrow().get(addr) {
            return Ok(conn.clone());
        }
        let wrong = |why| PeerError::Address { broker: broker.to_owned(), at: addr.to_owned(), why };
        let at = HostPort::read(addr).map_err(wrong)?;
        let peer = *resolve(&at).await.map_err(wrong)?.first().expect("a resolved name has an address");
        let opened = client::connect(peer, &self.conns, Rc::new(NoService), Limits::default(), timeout).await;
        let conn = opened.map_err(|source| PeerError::Call { broker: broker.to_owned(), source })?;
        self.open.borrow_mut().insert(addr.to_owned(), conn.clone());
        Ok(conn)
    }

    pub fn close(&self) {
        self.conns.close_all("the broker stops");
    }
}
