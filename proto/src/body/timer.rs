//! The table of waiting timer messages (61, `config/timermetrics`). Source: wire-protocol sheet 9, store-format sheet 8.
use crate::body::nullable;
use crate::body::topic::DataVersion;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TimerMetrics {
    #[serde(deserialize_with = "nullable")]
    pub data_version: DataVersion,
    /// By real topic.
    #[serde(deserialize_with = "nullable")]
    pub timing_count: BTreeMap<String, TimerMetric>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TimerMetric {
    /// Messages that wait.
    #[serde(deserialize_with = "nullable")]
    pub count: i64,
    /// When it changed last, ms.
    #[serde(deserialize_with = "nullable")]
    pub time_stamp: i64,
}
