//! END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323), on control. Source: behaviour sheet 8.2, 8.4; wire-protocol sheet 5.9.
use crate::delay;
use crate::error::BrokerError;
use crate::half_message::{self, halves::Claim};
use crate::handlers::query::read_at;
use crate::requests::{Answer, Request};
use crate::responses;
use crate::shard::Shard;
use crate::shard::appends::NewMessage;
use crate::timer::put::{self, Fate, Wish};
use std::rc::Rc;
use tracing::{debug, warn};
use uringmq_proto::body::topic::TopicFilterType;
use uringmq_proto::codes::response as code;
use uringmq_proto::command::Response;
use uringmq_proto::headers::Header;
use uringmq_proto::headers::transaction::{EndTransaction, ResumeCheckHalfMessage};
use uringmq_proto::message::{self, prop, sys_flag};
use uringmq_proto::names;
use uringmq_proto::record::{self, Found, Record};

/// What an end names, besides the group: it outlives the request.
#[derive(Clone, Copy, Debug)]
struct Named {
    half_offset: i64,
    phy: i64,
    from_check: bool,
}

fn failed(remark: impl Into<String>) -> BrokerError {
    BrokerError::refused(code::SYSTEM_ERROR, remark.into())
}

/// 37.
pub fn end_transaction(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Answer, BrokerError> {
    let h = EndTransaction::decode(req.cmd)?;
    if shard.follows() {
        let remark = "Message store is slave mode, so end transaction is forbidden. ";
        return Err(BrokerError::refused(code::SLAVE_NOT_AVAILABLE, remark));
    }
    let commit = match h.commit_or_rollback {
        // The producer does not know yet: a check will ask. Nobody waits for an answer, and Apache's gives none.
        sys_flag::TRANSACTION_NONE => return Ok(Answer::Later),
        sys_flag::TRANSACTION_COMMIT => true,
        sys_flag::TRANSACTION_ROLLBACK => false,
        other => {
            let remark = format!("{} commitOrRollback field wrong: {other}, not 0, 8 or 12", h.producer_group);
            return Err(failed(remark));
        }
    };
    let named = Named {
        half_offset: h.tran_state_table_offset,
        phy: h.commit_log_offset,
        from_check: h.from_transaction_check,
    };
    let (shard, group, origin) = (shard.clone(), h.producer_group.to_owned(), req.origin);
    glommio::spawn_local(async move {
        let response = end(&shard, &group, named, commit).await.unwrap_or_else(|e| {
            debug!(group, ?named, commit, error = %e, "a transaction was not ended");
            responses::of_error(&e)
        });
        shard.respond(origin, response);
    })
    .detach();
    Ok(Answer::Later)
}

async fn end(shard: &Rc<Shard>, group: &str, named: Named, commit: bool) -> Result<Response, BrokerError> {
    let bytes = read_at(shard, named.phy).await?;
    let half = bytes.as_deref().and_then(half_message::half_in);
    let half = half.ok_or_else(|| failed("Find prepared transaction message failed"))?;
    let timeout_ms = shard.config.borrow().transaction_timeout_ms as i64;
    check(&half, group, named, shard.now_ms(), timeout_ms)?;
    let offset = half.queue_offset as u64;
    let claim = shard.half_messages.claim(offset);
    if claim == Claim::Ended {
        return Ok(Response::ok());
    }
    if commit && let Err(e) = store_committed(shard, &half).await {
        shard.half_messages.give_back(offset);
        warn!(group, ?named, error = %e, "a committed message could not be stored; its half stays");
        return Err(e);
    }
    if claim == Claim::Open {
        shard.half_messages.end(offset, shard.config.borrow().transaction_op_bytes);
    }
    Ok(Response::ok())
}

/// Whether the half is the one that the producer means, and the producer may end it now.
fn check(half: &Record<'_>, group: &str, named: Named, now_ms: i64, timeout_ms: i64) -> Result<(), BrokerError> {
    let property = |name| message::property(half.properties, name);
    if let Some(text) = property(prop::CHECK_IMMUNITY_TIME_IN_SECONDS).filter(|_| !named.from_check) {
        let limit_ms = half_message::immunity_ms(text, timeout_ms).max(timeout_ms);
        if now_ms.saturating_sub(half.born_timestamp_ms) > limit_ms {
            let remark = format!("the half message is older than its immunity of {limit_ms} ms: its check decides");
            return Err(BrokerError::refused(code::ILLEGAL_OPERATION, remark));
        }
    }
    if property(prop::PGROUP) != Some(group) {
        return Err(failed("The producer group wrong"));
    }
    if half.queue_offset != named.half_offset {
        return Err(failed("The transaction state table offset wrong"));
    }
    if half.phy_offset != named.phy {
        return Err(failed("The commit log offset wrong"));
    }
    Ok(())
}

/// Stores the message that the half stands for, under its real topic or, where it is to be delayed, on its way there.
async fn store_committed(shard: &Rc<Shard>, half: &Record<'_>) -> Result<(), BrokerError> {
    let property = |name| message::property(half.properties, name);
    let real_topic = property(prop::REAL_TOPIC).ok_or_else(|| failed("the half message has no REAL_TOPIC"))?;
    let queue = property(prop::REAL_QID).and_then(|queue| queue.parse::<u32>().ok());
    let queue = queue.filter(|queue| *queue <= i32::MAX as u32);
    let queue = queue.ok_or_else(|| failed("the half message's REAL_QID is no queue"))?;
    let mut topic = shard.topic(real_topic).ok_or_else(|| BrokerError::NoTopic(real_topic.to_owned()))?;
    let mut place = queue;
    let multi_tags = topic.config.topic_filter_type == TopicFilterType::MultiTag;
    let mut text = message::without(half.properties, &[prop::REAL_TOPIC, prop::REAL_QID, prop::CRC32]);
    let levels = shard.appends.delay_levels_ms().len();
    let level: i32 = property(prop::DELAY).and_then(|level| level.parse().ok()).unwrap_or(0);
    if level > 0 && levels > 0 {
        topic =
            shard.topic(names::SCHEDULE_TOPIC).ok_or_else(|| BrokerError::NoTopic(names::SCHEDULE_TOPIC.to_owned()))?;
        text = message::without(&text, &[prop::TRAN_MSG]);
        (text, place) = delay::divert(&text, level, levels, real_topic, queue);
    } else if let Fate::Waits { out_ms } = Wish::of(&text).fate(&shard.config(), shard.now_ms())? {
        put::check_congestion(shard, &text)?;
        let timer_topic = shard.topic(names::WHEEL_TIMER_TOPIC);
        topic = timer_topic.ok_or_else(|| BrokerError::NoTopic(names::WHEEL_TIMER_TOPIC.to_owned()))?;
        text = message::without(&text, &[prop::TRAN_MSG]);
        put::push_times(&mut text, out_ms, real_topic, queue);
        place = 0;
    }
    let kept = half.sys_flag & !sys_flag::TRANSACTION_MASK;
    let committed = NewMessage {
        sys_flag: kept | sys_flag::TRANSACTION_COMMIT | if multi_tags { sys_flag::MULTI_TAGS } else { 0 },
        prepared_transaction_offset: half.phy_offset,
        wait_durable: true,
        ..NewMessage::copy_of(half, &topic, place, &text)
    };
    shard.append(committed).await?;
    Ok(())
}

/// 323: an operator wants a half that was set aside to be checked again. `msgId` is the offset id of the copy that was set aside.
pub async fn resume_check(shard: &Rc<Shard>, req: &Request<'_>) -> Result<Response, BrokerError> {
    let h = ResumeCheckHalfMessage::decode(req.cmd)?;
    let id = h.msg_id.unwrap_or_default();
    let offset = message::parse_offset_id(id).and_then(|(_, offset)| i64::try_from(offset).ok());
    let offset = offset.ok_or_else(|| failed(format!("header field msgId is no offset id: '{id}'")))?;
    let bytes = read_at(shard, offset).await?;
    let aside = match bytes.as_deref().map(|bytes| record::parse(bytes, false)) {
        Some(Ok(Found::Record(record))) if record.topic == names::TRANS_CHECK_MAX_TIME_TOPIC => record,
        _ => return Err(failed(format!("no message of {} has the id {id}", names::TRANS_CHECK_MAX_TIME_TOPIC))),
    };
    half_message::resume(shard, &aside).await?;
    Ok(Response::ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn outcome(properties: &[(&str, &str)], group: &str, named: Named, now_ms: i64) -> (i32, String) {
        let mut text = String::new();
        properties.iter().for_each(|(name, value)| message::push_property(&mut text, name, value));
        let mut bytes = testing::record(names::TRANS_HALF_TOPIC, &text);
        record::patch(&mut bytes, 5, 700, 1);
        let half = half_message::half_in(&bytes).expect("a half");
        match check(&half, group, named, now_ms, 6000) {
            Ok(()) => (code::SUCCESS, String::new()),
            Err(e) => (responses::code_of(&e), e.to_string()),
        }
    }

    #[test]
    fn an_end_must_name_its_half_exactly() {
        let named = Named { half_offset: 5, phy: 700, from_check: false };
        let of_group = [(prop::PGROUP, "p")];
        assert_eq!(outcome(&of_group, "p", named, 1).0, code::SUCCESS);
        for (properties, group, named, remark) in [
            (&of_group[..], "q", named, "The producer group wrong"),
            (&[], "p", named, "The producer group wrong"),
            (&of_group, "p", Named { half_offset: 4, ..named }, "The transaction state table offset wrong"),
            (&of_group, "p", Named { phy: 701, ..named }, "The commit log offset wrong"),
        ] {
            assert_eq!(outcome(properties, group, named, 1), (code::SYSTEM_ERROR, remark.to_owned()));
        }
    }

    #[test]
    fn after_its_immunity_only_a_check_ends_a_half() {
        let immune = |seconds, from_check, now_ms| {
            let named = Named { half_offset: 5, phy: 700, from_check };
            outcome(&[(prop::PGROUP, "p"), (prop::CHECK_IMMUNITY_TIME_IN_SECONDS, seconds)], "p", named, now_ms).0
        };
        for (seconds, now_ms, want) in [
            ("10", 10_001, code::SUCCESS),
            ("10", 10_002, code::ILLEGAL_OPERATION),
            ("1", 6001, code::SUCCESS), // not below the general limit
            ("1", 6002, code::ILLEGAL_OPERATION),
            ("x", 6002, code::ILLEGAL_OPERATION),
        ] {
            assert_eq!(
                (immune(seconds, false, now_ms), immune(seconds, true, now_ms)),
                (want, code::SUCCESS),
                "{seconds}"
            );
        }
    }
}
