//! What a message's properties say of when it is to be delivered, and what becomes of it when it is stored. Used by sends on any shard, by
//! commits and by recalls. Source: behaviour sheet 7.2, checked against Apache's broker 5.5.0; known faults D01, D08.
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::shard::Shard;
use uringmq_proto::codes::response as code;
use uringmq_proto::message::{self, prop};

/// The timer properties of one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish<'a> {
    delay_sec: Option<&'a str>,
    delay_ms: Option<&'a str>,
    deliver_ms: Option<&'a str>,
    /// It has its time already (TIMER_OUT_MS): it was delivered once and is sent on.
    timed: bool,
    deletes: bool,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Stored under its own topic.
    Now,
    /// Stored under the timer topic with this TIMER_OUT_MS, the time of its slot.
    Waits { out_ms: i64 },
}

impl<'a> Wish<'a> {
    pub fn of(properties: &'a str) -> Self {
        let mut wish = Wish::default();
        message::properties(properties).for_each(|(name, value)| wish.take(name, value));
        wish
    }

    /// Looks at one property; an empty value is none.
    pub fn take(&mut self, name: &str, value: &'a str) {
        let value = (!value.is_empty()).then_some(value);
        match name {
            prop::TIMER_DELAY_SEC => self.delay_sec = value,
            prop::TIMER_DELAY_MS => self.delay_ms = value,
            prop::TIMER_DELIVER_MS => self.deliver_ms = value,
            prop::TIMER_OUT_MS => self.timed = value.is_some(),
            prop::TIMER_DEL_UNIQKEY => self.deletes = value.is_some(),
            _ => {}
        }
    }

    pub fn is_timer(&self) -> bool {
        !self.timed && self.has_time()
    }

    /// It says when, whether that counts or not.
    pub fn has_time(&self) -> bool {
        self.delay_sec.is_some() || self.delay_ms.is_some() || self.deliver_ms.is_some()
    }

    /// The time that was asked for, given that it was stored at `stored_ms`; a past one when it lies before all times.
    ///
    /// `None` when it is no number, or behind all times.
    pub fn time(&self, stored_ms: i64) -> Option<i64> {
        let number = |text: &str| text.parse::<i64>().ok();
        match (self.delay_sec, self.delay_ms, self.deliver_ms) {
            (Some(text), ..) => {
                let sec = number(text)?;
                let ms = if sec < 0 { sec.saturating_mul(1000) } else { sec.checked_mul(1000)? };
                stored_ms.checked_add(ms)
            }
            (None, Some(text), _) => stored_ms.checked_add(number(text)?),
            (None, None, Some(text)) => number(text),
            (None, None, None) => None,
        }
    }

    fn is_relative(&self) -> bool {
        self.delay_sec.is_some() || self.delay_ms.is_some()
    }

    /// The very time that a waiting message was asked for, to the ms: its slot says it to the precision only. `rolled`: it is not as it was
    /// stored first; its TIMER_DELIVER_MS counts then. Never before the time that was asked for.
    pub fn due_ms(&self, out_ms: i64, stored_ms: i64, rolled: bool, precision_ms: i64) -> i64 {
        let (first, last) = (out_ms.saturating_add(1), out_ms.saturating_add(precision_ms));
        let asked = match rolled && self.is_relative() {
            true => self.deliver_ms.and_then(|text| text.parse().ok()).filter(|ms| (first..=last).contains(ms)),
            false => self.time(stored_ms),
        };
        asked.unwrap_or(last).clamp(first, last)
    }

    /// Decides what becomes of the message when it is stored at `now_ms`.
    ///
    /// # Errors
    /// What its sender is told.
    pub fn fate(&self, config: &BrokerConfig, now_ms: i64) -> Result<Fate, BrokerError> {
        if !self.is_timer() {
            return Ok(Fate::Now);
        }
        if !config.timer_wheel {
            let remark = "accurate timer message is not enabled, timerWheelEnable is false";
            return Err(BrokerError::refused(code::SYSTEM_ERROR, remark));
        }
        let max_ms = config.timer_max_delay_sec.saturating_mul(1000);
        let illegal = || {
            let remark = format!(
                "timer message illegal, the delay time should not be bigger than the max delay {max_ms}ms; or if set del msg, the \
                 delay time should be bigger than the current time"
            );
            BrokerError::refused(code::MESSAGE_ILLEGAL, remark)
        };
        let deliver_ms = self.time(now_ms).ok_or_else(illegal)?;
        if deliver_ms <= now_ms {
            return if self.deletes { Err(illegal()) } else { Ok(Fate::Now) };
        }
        if deliver_ms - now_ms > max_ms {
            return Err(illegal());
        }
        Ok(Fate::Waits { out_ms: slot_of(deliver_ms, config.timer_precision_ms) })
    }
}

/// The time of the slot that has passed when `deliver_ms` comes.
fn slot_of(deliver_ms: i64, precision_ms: i64) -> i64 {
    deliver_ms - 1 - (deliver_ms - 1).rem_euclid(precision_ms)
}

/// What a waiting message holds besides its own properties.
pub fn push_times(text: &mut String, out_ms: i64, topic: &str, queue: u32) {
    message::push_property(text, prop::TIMER_OUT_MS, &out_ms.to_string());
    message::push_property(text, prop::REAL_TOPIC, topic);
    message::push_property(text, prop::REAL_QID, &queue.to_string());
}

/// Whether the messages of a slot are counted before it takes another.
pub fn has_limit(config: &BrokerConfig) -> bool {
    config.timer_congest_each_slot < i64::from(i32::MAX)
}

/// On shard 0: whether the slot of this message is too full for it.
///
/// # Errors
/// What its sender is told.
pub fn check_congestion(shard: &Shard, properties: &str) -> Result<(), BrokerError> {
    let (config, now_ms) = (shard.config(), shard.now_ms());
    let level: i32 = message::property(properties, prop::DELAY).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    if level > 0 || !has_limit(&config) {
        return Ok(());
    }
    // What is refused for another reason is refused where it is stored.
    let Ok(Fate::Waits { out_ms }) = Wish::of(properties).fate(&config, now_ms) else { return Ok(()) };
    let dice = (shard.timer.enqueued.get() as i64).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(now_ms) >> 33;
    match is_congested(shard.timer.waiting_at(out_ms), config.timer_congest_each_slot, dice.rem_euclid(1000)) {
        true => Err(congested()),
        false => Ok(()),
    }
}

/// Whether a slot with `num` messages takes another: all up to `limit`, none from twice that on; in between, as in Apache's broker, the
/// odds of a refusal fall. `dice`: 0 to 999.
fn is_congested(num: i64, limit: i64, dice: i64) -> bool {
    num > limit
        && (num >= limit.saturating_mul(2) || dice as f64 > 1000.0 * (num - limit) as f64 / (limit as f64 + 0.1))
}

fn congested() -> BrokerError {
    let remark = "timer message is under flow control, its slot holds more than timerCongestNumEachSlot";
    BrokerError::refused(code::SYSTEM_ERROR, remark)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_250;

    fn fate(pairs: &[(&str, &str)]) -> Result<Fate, i32> {
        let mut text = String::new();
        pairs.iter().for_each(|(name, value)| message::push_property(&mut text, name, value));
        Wish::of(&text).fate(&BrokerConfig::default(), NOW).map_err(|e| crate::responses::code_of(&e))
    }

    /// Known faults D01 and D08; what is not 13 here is as with Apache's broker 5.5.0.
    #[test]
    fn odd_times_are_refused_or_past() {
        let waits = |out_ms| Ok(Fate::Waits { out_ms });
        let second = NOW - 250;
        for (name, value, want) in [
            ("TIMER_DELAY_SEC", "2", waits(second + 2000)),
            ("TIMER_DELAY_SEC", "+3", waits(second + 3000)),
            ("TIMER_DELAY_SEC", "259200", waits(second + 259_200_000)),
            ("TIMER_DELAY_SEC", "259201", Err(13)),
            ("TIMER_DELAY_SEC", "9007199254740992", Err(13)),
            ("TIMER_DELAY_SEC", "9223372036854775807", Err(13)),
            ("TIMER_DELAY_SEC", "9223372036854775808", Err(13)),
            ("TIMER_DELAY_SEC", "-1", Ok(Fate::Now)),
            ("TIMER_DELAY_SEC", "0", Ok(Fate::Now)),
            ("TIMER_DELAY_SEC", "-9223372036854775808", Ok(Fate::Now)),
            ("TIMER_DELAY_SEC", "1e3", Err(13)),
            ("TIMER_DELAY_SEC", " 5", Err(13)),
            ("TIMER_DELAY_SEC", "", Ok(Fate::Now)),
            ("TIMER_DELAY_MS", "2500", waits(second + 2000)),
            ("TIMER_DELAY_MS", "750", waits(second)),
            ("TIMER_DELAY_MS", "751", waits(second + 1000)),
            ("TIMER_DELAY_MS", "259200000", waits(second + 259_200_000)),
            ("TIMER_DELAY_MS", "259200001", Err(13)),
            ("TIMER_DELAY_MS", "9223372036854775807", Err(13)),
            ("TIMER_DELIVER_MS", "1800000004000", waits(second + 3000)),
            ("TIMER_DELIVER_MS", "1800000004001", waits(second + 4000)),
            ("TIMER_DELIVER_MS", "1800000000250", Ok(Fate::Now)),
            ("TIMER_DELIVER_MS", "1800000000251", waits(second)),
            ("TIMER_DELIVER_MS", "0", Ok(Fate::Now)),
            ("TIMER_DELIVER_MS", "-9223372036854775808", Ok(Fate::Now)),
            ("TIMER_DELIVER_MS", "9223372036854775807", Err(13)),
        ] {
            assert_eq!(fate(&[(name, value)]), want, "{name} = '{value}'");
        }
    }

    #[test]
    fn the_first_of_the_three_counts() {
        let three = [("TIMER_DELIVER_MS", "5"), ("TIMER_DELAY_MS", "100000"), ("TIMER_DELAY_SEC", "3")];
        let at = |out_ms| Ok(Fate::Waits { out_ms });
        assert_eq!(fate(&three), at(NOW - 250 + 3000));
        assert_eq!(fate(&three[..2]), at(NOW - 250 + 100_000));
        assert_eq!(fate(&three[..1]), Ok(Fate::Now));
        assert_eq!(fate(&[("TIMER_DELAY_SEC", "x"), ("TIMER_DELAY_MS", "5")]), Err(13));
        assert_eq!(fate(&[("TIMER_DELAY_SEC", "5"), ("TIMER_OUT_MS", "7")]), Ok(Fate::Now), "it has its time already");
        assert_eq!(fate(&[]), Ok(Fate::Now));
        assert_eq!(fate(&[("TIMER_DEL_UNIQKEY", "k")]), Ok(Fate::Now));
        assert_eq!(fate(&[("TIMER_DEL_UNIQKEY", "k"), ("TIMER_DELIVER_MS", "5")]), Err(13));
    }

    #[test]
    fn switched_off_means_refused() {
        let mut config = BrokerConfig::default();
        config.timer_wheel = false;
        let refused = Wish::of("TIMER_DELAY_SEC\u{1}5\u{2}").fate(&config, NOW).unwrap_err();
        assert!(refused.to_string().starts_with("accurate timer message is not enabled"), "{refused}");
        assert_eq!(Wish::of("").fate(&config, NOW).unwrap(), Fate::Now);
    }

    #[test]
    fn the_asked_time_is_known_to_the_ms_and_never_early() {
        let due = |text: &str, out_ms, stored_ms, rolled| Wish::of(text).due_ms(out_ms, stored_ms, rolled, 1000);
        let (sec, at) = ("TIMER_DELAY_SEC\u{1}5\u{2}", "TIMER_DELIVER_MS\u{1}9300\u{2}");
        assert_eq!(due(at, 9000, 77, false), 9300);
        assert_eq!(due(sec, 9000, 4250, false), 9250);
        assert_eq!(due(sec, 9000, 5250, false), 10_000, "it was stored a second after its time was set");
        assert_eq!(due(sec, 9000, 1, false), 9001);
        assert_eq!(due(sec, 9000, 4250, true), 10_000, "rolled by Apache's broker: only the slot is known");
        assert_eq!(due(&format!("{sec}{at}"), 9000, 4250, true), 9300);
        assert_eq!(due("", 9000, 4250, false), 10_000);
    }

    #[test]
    fn congestion_refuses_some_then_all() {
        for (num, dice, want) in
            [(10, 999, false), (11, 0, false), (11, 999, true), (19, 999, true), (19, 850, false), (20, 0, true)]
        {
            assert_eq!(is_congested(num, 10, dice), want, "{num} {dice}");
        }
        assert!(is_congested(1, 0, 0));
    }
}
